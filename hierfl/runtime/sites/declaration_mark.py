"""A declaration without anybody's data: its copy for a site, and a mark by which two processes know that theirs are the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from hierfl.analysis.declare import declare
from hierfl.compiler.content_marks import Leaves, content_mark
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.language.federation.elsewhere import Elsewhere
from hierfl.language.federation.federated_data import Federation
from hierfl.language.federation.given_arrays import has_names
from hierfl.language.printing.render import problem_text
from hierfl.language.sample import Sample


def declaration_mark(declaration: Declaration) -> str:
    """The mathematics, the values of plain parameters, the clients' names and the number of rows that each holds."""
    objective, level, roles = declaration.objective, declaration.lower_level, declaration.roles
    leaves: Leaves = {}
    parts = [
        [objective.sense, objective.server, objective.clients, list(declaration.constraints)],
        [] if level is None else [level.declared, list(level.constraints), level.scope, type(level).__name__],
        [list(roles.upper), list(roles.lower), [np.asarray(p.value, float) for p in roles.parameters]],
        [_held(client, roles.client_tables) for client in _clients(declaration)],
        declaration.client_weights,
    ]
    return content_mark([content_mark(part, leaves) for part in parts])


def declared_text(declaration: Declaration) -> str:
    """The declaration as it is printed, for a message that says how two differ."""
    return problem_text(declaration)


def without_data(declaration: Declaration) -> Declaration:
    """The same declaration with every client's arrays elsewhere; laws are part of the declaration."""
    federation = declaration.federation
    if federation is None:
        return declaration
    clients, server = [_bare(client) for client in federation.clients], federation.server
    weights: Any = federation.weights
    bare = Federation(clients, None if server is None else _bare(server), weights, points=federation.points)
    objective, level = declaration.objective, declaration.lower_level
    return declare(objective, level, declaration.constraints, bare)


def _bare(client: Client) -> Client:
    """A party with its arrays elsewhere."""

    def said(sample: Sample) -> Any:
        count = client.num_samples(sample)
        if count is None:
            return client.samples[sample]
        return Elsewhere(count, next((list(own) for own in client.labels.get(sample, ())[1:] if has_names(own)), None))

    tables = [{sample: said(sample) for sample in table} for table in client.tables]
    parameters = dict.fromkeys(client.parameters, Elsewhere())
    return Client(tables or {sample: said(sample) for sample in client.samples}, parameters, client.name)


def _clients(declaration: Declaration) -> tuple[Client, ...]:
    return declaration.federation.clients if declaration.federation else (Client(),)


def _held(client: Client, tables: Any) -> list[Any]:
    """A client's name and its numbers of rows."""
    return [client.name, [client.num_samples(sample) for table in tables for sample in table]]
