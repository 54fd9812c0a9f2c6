"""Masks on a Dask cluster: the run is the one without, and none of its messages is on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime import PairwiseMasks
from hierfl.runtime.sites.site_reports import Crossing
from hierfl.solvers import FedAvg
from tests.runtime.on_dask.test_dask_runtime import START, Heard, clients_alone, words
from tests.runtime.on_dask.test_faults import settings_of


@pytest.mark.slow
def test_what_crosses_is_masked(cluster: hf.runtime.Dask, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, solver = clients_alone(), FedAvg(step_size=0.1, local_steps=1, batch_size=None)
    settings: dict[str, Any] = {"rounds": 5, "x0": START, "seed": 5, "progress": False}
    plain = problem.solve(solver, runtime=cluster, **settings)
    moves, shares = (
        [],
        np.array([client.num_samples(s) for client in problem.federation.clients for s in client.samples]),
    )
    for client in problem.federation.clients:
        rows = next(iter(client.samples.values()))
        moves.append(-0.1 * 2 * rows.T @ (rows @ START - 1) / len(rows))
    crossed = list[Crossing]()
    with settings_of(cluster, masks=PairwiseMasks(), watcher=crossed.append):
        heard = Heard(monkeypatch)
        found = problem.solve(solver, runtime=cluster, **settings)
    raw = b"".join(heard.parts)
    np.testing.assert_allclose(found.trajectory["x"], plain.trajectory["x"], rtol=0, atol=1e-10)
    assert words(START)[0] in raw  # what is looked for would be found
    secret = np.stack([np.stack(moves), np.stack(moves) * (shares / shares.sum())[:, None]])
    assert not [word for word in words(secret) if word in raw]
    assert {c.step for c in crossed} == {"start", "local_steps", "unmask"}
    up = {item.name for c in crossed if c.way == "up" for item in c.items}
    assert up == {"clients", "key", "payload", "shares"} and found.settings["masks"]["sums"] == 5
