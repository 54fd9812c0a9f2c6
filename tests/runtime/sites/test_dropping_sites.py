"""Half of the sites dropping at random in every round: the run is that of those who answered, converges, and says who did when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime import Delayed
from hierfl.runtime.buffered.delayed_runtime import _DelayedLinks
from hierfl.runtime.sites.letters import Letter
from hierfl.runtime.sites.parcels import Lost
from hierfl.solvers import FedAvg

SITES, ROUNDS = 20, 100
TRUTH = np.array([1.0, -2.0, 0.5])


def rounds_of(spans: list[list[int]]) -> list[int]:
    return [index for first, last in spans for index in range(first, last + 1)]


@pytest.mark.slow
def test_half_of_the_sites_drop_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that drop some cannot be asked at all, others are lost in the round."""
    rng, x = np.random.default_rng(8), cp.Variable(3, name="x")
    u, b = hf.Sample(3, name="u"), hf.Sample(name="b")
    rows = [rng.standard_normal((5, 3)) for _ in range(SITES)]
    clients = [hf.Client({u: r, b: r @ TRUTH}, name=f"c{i}" if i % 2 else None) for i, r in enumerate(rows)]
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - b))), federation=hf.Federation(clients))
    names = [client.name or str(place) for place, client in enumerate(clients)]
    dropped = np.stack([rng.permutation(SITES) < SITES // 2 for _ in range(ROUNDS)])
    at_once = rng.random((ROUNDS, SITES)) < 0.5
    now, exchange = [0], _DelayedLinks.exchange

    def ready(links: _DelayedLinks) -> frozenset[str]:
        gone = dropped[now[0] % ROUNDS] & at_once[now[0] % ROUNDS]
        now[0] += 1  # it is asked once a round
        return frozenset(site for site in links.sites if not gone[int(site)])

    def lossy(links: _DelayedLinks, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        answers = exchange(links, parcels, timeout)
        for site, parcel in parcels.items():
            asked: Any = Letter.from_bytes(parcel).words
            if asked["message"] == "Asked" and dropped[asked["round"], int(site)]:
                answers[site] = Lost("no answer")
        return answers

    monkeypatch.setattr(_DelayedLinks, "ready", ready)
    monkeypatch.setattr(_DelayedLinks, "exchange", lossy)
    settings: dict[str, Any] = {"rounds": ROUNDS, "seed": 2, "x0": np.zeros(3), "progress": False}
    given = {"step_size": 0.1, "local_steps": 2, "batch_size": 3}
    found = problem.solve(FedAvg(**given), runtime=Delayed([1.0] * SITES), **settings)
    monkeypatch.undo()
    expected = problem.solve(FedAvg(**given, participation=~dropped), **settings)
    np.testing.assert_allclose(found.trajectory["x"], expected.trajectory["x"], rtol=0, atol=1e-10)
    assert found.ended == "completed" and np.all(found.history["answered"] == SITES // 2)
    np.testing.assert_allclose(found.x, TRUTH, atol=1e-6)
    for place, name in enumerate(names):
        assert rounds_of(found.settings["answered"][name]) == np.flatnonzero(~dropped[:, place]).tolist()
        assert rounds_of(found.settings["missed"][name]) == np.flatnonzero(dropped[:, place]).tolist()
        site = found.settings["sites"][str(place)]
        assert rounds_of(site["rounds_without"]) == np.flatnonzero(dropped[:, place]).tolist()
        assert site["faults_in_all"] == np.sum(dropped[:, place] & ~at_once[:, place])
