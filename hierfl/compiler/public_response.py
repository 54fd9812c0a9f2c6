"""The shapes in which users see y."""

from __future__ import annotations

from typing import Any

import numpy as np

from hierfl.compiler.oracles import Oracles


def public_response(oracles: Oracles, y: Any) -> Any:
    """The owners' flat y (owners, size) in the public shapes of ``Result.y``."""
    if oracles.scope == "federation" or (oracles.scope == "client" and oracles.num_clients == 1):
        return oracles.lower.unflatten(np.asarray(y)[0])
    if oracles.scope == "client":
        return oracles.lower.unflatten(y)
    clients = oracles.static_data.clients
    table = clients.tables[oracles.row_table(clients)]
    pieces = np.split(np.asarray(y), np.asarray(table.offsets)[1:])
    per_client = [oracles.lower.unflatten(piece) for piece in pieces]
    if len(oracles.lower.variables) == 1:
        return per_client
    return {variable: [piece[variable] for piece in per_client] for variable in per_client[0]}
