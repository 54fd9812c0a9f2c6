"""Sites on a Dask cluster: nothing but named messages crosses. Their rounds are compared with those in process by ``tests.testing``."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime.on_dask.lines import HEADER
from hierfl.runtime.sites.site_reports import Crossing
from hierfl.solvers import ZOHFL, ProjectedSGD
from tests.runtime.levels_at_sites import leaves, personal

SIZES, START = (4, 7, 1, 5), np.array([0.3, -0.4])
PERSONAL = ZOHFL(lower=ProjectedSGD(steps=3), batch_size=2, participation=0.5)  # for ``personal``


def federation(u: hf.Sample, **parameters: hf.ClientParameter) -> hf.Federation:
    """Four clients with rows and constants of their own, on three sites: one site holds two."""
    rng = np.random.default_rng(3)
    clients = [
        hf.Client({u: rng.standard_normal((size, 2))}, {p: rng.uniform(0.2, 0.4) for p in parameters.values()})
        for size in SIZES
    ]
    return hf.Federation(clients, hf.Client({u: rng.standard_normal((5, 2))}), weights="samples")


def clients_alone() -> hf.Problem:
    x, _, u = leaves()
    return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - 1))), federation=federation(u))


class Heard:
    """Everything that this process wrote to sockets, or read from them, once it is in the clear."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.parts: list[bytes] = []
        for kind in (socket.socket, ssl.SSLSocket):
            self._listen(patch, kind)

    def _listen(self, patch: pytest.MonkeyPatch, kind: Any) -> None:
        write, read = kind.sendall, kind.recv

        def written(end: Any, data: Any, *rest: Any) -> Any:
            self.parts.append(bytes(data))
            return write(end, data, *rest)

        def arrived(end: Any, *rest: Any) -> Any:
            chunk = read(end, *rest)
            self.parts.append(chunk)
            return chunk

        patch.setattr(kind, "sendall", written)
        patch.setattr(kind, "recv", arrived)


def require_named(crossed: list[Crossing], solved: hf.Result) -> None:
    """What crosses in runs of ``PERSONAL``: its steps, by their names, and what the result counts."""
    assert {(c.way, c.step) for c in crossed} == {(way, step) for way in ("down", "up") for step in ("start", "answer", "oracle.full_value")}
    up = {item.name for c in crossed if c.way == "up" for item in c.items}
    monitored = {f"monitor['{name}']" for name in ("value", "residual", "gap", "solves", "evaluations", "error_bound")}
    assert up == {"clients", "payload", *monitored}
    assert sum(c.bytes for c in crossed) == sum(site["bytes_down"] + site["bytes_up"] for site in solved.settings["sites"].values())


def require_unsaid(secret: list[bytes], raw: bytes) -> None:
    assert words(START)[0] in raw  # x is sent, so that what is looked for would be found
    assert not [word for word in secret if word in raw]


def held_words(problem: hf.Problem) -> list[bytes]:
    """All that clients hold."""
    held = [own for client in problem.federation.clients for own in (client.samples, client.parameters)]
    return [word for own in held for values in own.values() for word in words(values)]


def words(values: Any) -> list[bytes]:
    """The numbers as they would stand in a message."""
    return [word.tobytes() for word in np.asarray(values, float).ravel()]


@pytest.mark.slow
def test_nothing_but_named_messages_crosses(cluster: hf.runtime.Dask, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, crossed = personal(federation), list[Crossing]()
    settings = {"rounds": 5, "x0": START, "progress": False}
    problem.solve(PERSONAL, runtime=cluster, **settings)  # the data are handed over once, since the sites are simulated
    object.__setattr__(cluster, "watcher", crossed.append)
    heard = Heard(monkeypatch)
    result = problem.solve(PERSONAL, runtime=cluster, **settings)
    object.__setattr__(cluster, "watcher", None)
    monkeypatch.undo()

    require_named(crossed, result)
    secret = held_words(problem)
    for client in problem.federation.clients:
        rows = next(iter(client.samples.values()))
        secret += words(np.abs(rows @ START - 1)) if len(rows) > 1 else []
    raw = b"".join(heard.parts)
    require_unsaid(secret, raw)
    assert len(raw) == sum(c.bytes for c in crossed) + HEADER.size * len(crossed) + sum(c.way == "down" for c in crossed)  # and nothing else
