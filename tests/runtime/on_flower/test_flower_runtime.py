"""Sites behind Flower's messages, without its processes: the same iterates as in process, and nothing but named arrays crosses."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime.sites.site_reports import Crossing
from hierfl.solvers import FedAvg
from tests.runtime.on_dask.test_dask_runtime import CASES, START, words
from tests.runtime.on_flower.loopback import LoopbackGrid, desks


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_rounds_are_those_of_a_run_in_process(case: str) -> None:
    make, solver = CASES[case]
    problem, settings = make(), {"rounds": 12, "x0": START, "seed": 5, "progress": False}
    runtime = hf.runtime.Flower(LoopbackGrid(desks(problem)), minimum=4, shared_seeds=True)
    here, there = problem.solve(solver, **settings), problem.solve(solver, runtime=runtime, **settings)
    assert np.abs(np.diff(here.trajectory["x"], axis=0)).max() > 1e-6  # it goes somewhere
    np.testing.assert_allclose(there.trajectory["x"], here.trajectory["x"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(there.history["objective"], here.history["objective"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(there.own_value or 0.0, here.own_value or 0.0, rtol=0, atol=1e-10)
    assert there.communication == here.communication and there.ended == "completed"
    assert all(site["faults"] == [] for site in there.settings["sites"].values())


def test_nothing_but_named_arrays_and_words_crosses() -> None:
    make, solver = CASES["ZO-HFL"]
    problem, crossed = make(), list[Crossing]()
    grid = LoopbackGrid(desks(problem))
    runtime = hf.runtime.Flower(grid, minimum=4, watcher=crossed.append, shared_seeds=True)
    result = problem.solve(solver, runtime=runtime, rounds=3, x0=START, progress=False)

    assert {(c.way, c.step) for c in crossed} == {
        (way, step) for way in ("down", "up") for step in ("start", "answer", "oracle.full_value")
    }
    up = {item.name for c in crossed if c.way == "up" for item in c.items}
    monitored = {f"monitor['{name}']" for name in ("value", "residual", "gap", "solves", "evaluations", "error_bound")}
    assert up == {"clients", "payload", *monitored}
    records = [(type(record).__name__, name) for _, message in grid.crossed for name, record in message.content.items()]
    assert set(records) == {("ArrayRecord", "arrays"), ("ConfigRecord", "words")}
    assert {a.stype for _, message in grid.crossed for a in message.content["arrays"].values()} == {"numpy.ndarray"}

    held = [
        v for client in problem.federation.clients for own in (client.samples, client.parameters) for v in own.values()
    ]
    raw = b"".join(serialised for serialised, _ in grid.crossed)
    assert words(START)[0] in raw  # x is sent, so that what is looked for would be found
    assert not [word for values in held for word in words(values) if word in raw]
    counted = sum(site["bytes_down"] + site["bytes_up"] for site in result.settings["sites"].values())
    assert counted == sum(c.bytes for c in crossed)
    assert abs(len(raw) - counted) < 700 * len(grid.crossed)  # but for how either is framed


def test_without_rounds_nobody_waits_for_a_slow_node() -> None:
    """Two quick sites and one that takes three seconds: they are heard as often as they answer, and the run ends beside the optimum."""
    rng, x, u, b = np.random.default_rng(2), cp.Variable(2, name="x"), hf.Sample(2, name="u"), hf.Sample(name="b")
    features, truth = rng.standard_normal((3, 40, 2)), np.array([1.0, -2.0])
    clients = [hf.Client([{u: a, b: a @ truth}]) for a in features]
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - b))), federation=hf.Federation(clients))
    grid = LoopbackGrid(desks(problem))
    grid.delays = {102: 3.0}
    solver = FedAvg(step_size=0.05, local_steps=2, batch_size=None)
    given = hf.runtime.Flower(grid, asynchronous=True, buffer=1, staleness=0.5)
    found = problem.solve(solver, runtime=given, rounds=12, seed=0, progress=False)
    heard = {site: told["rounds_answered"] for site, told in found.settings["sites"].items()}
    assert sum(heard.values()) >= 12 and heard["site 2"] < min(heard["site 0"], heard["site 1"])
    assert found.history["staleness"].shape == (12,) and np.isfinite(found.value)
    assert np.linalg.norm(found.iterate - truth) < 0.2 * np.linalg.norm(truth)
    with pytest.raises(hf.SettingError, match="asynchronous=True"):
        problem.solve(solver, runtime=given, rounds=2, checkpoint="nowhere", progress=False)
