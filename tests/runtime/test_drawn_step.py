"""The random iterate of the theorems: where it is drawn, and that it is the mean of the clients' iterates there."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.analysis.theorems import Prescription
from hierfl.runtime.outcome import DrawnStep
from hierfl.solvers import ZOHFL, FedRZO
from tests.solvers.papers.test_theory import bounded_clients, coupled_clients

ROUNDS = 6


def two_clients() -> Any:
    """|x - a_i| in two dimensions, a_i = -1 and 1; H = 17 local steps and more by theory."""
    x, a = cp.Variable(2, name="x"), hf.ClientParameter(2, name="a")
    return hf.Problem(
        hf.Minimize(clients=cp.norm(x - a)),
        constraints=[cp.abs(x) <= 2],
        federation=hf.Federation([hf.Client(parameters={a: c * np.ones(2)}) for c in (-1.0, 1.0)]),
    )


def solve(problem: Any, solver: Any, **settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return problem.solve(solver, **{"rounds": ROUNDS, "progress": False, "evaluate_every": 1, **settings})


def test_every_local_step_is_as_likely() -> None:
    theory = Prescription(rounds=3.0, step=0.1, local_steps=4.0, bound=1.0, thetas={}, iterations=12.0)
    drawn = [DrawnStep.of(theory, 3, seed) for seed in range(6000)]
    counts = np.zeros((3, 4))
    np.add.at(counts, tuple(np.array(drawn).T), 1)
    assert np.sum((counts - 500) ** 2 / 500) < 31.3  # the 0.999 quantile of chi^2 with 11 degrees of freedom
    of_rounds = Prescription(rounds=3.0, step=0.1, local_steps=4.0, bound=1.0, thetas={})
    assert {DrawnStep.of(of_rounds, 3, seed) for seed in range(200)} == {DrawnStep(r, 0) for r in range(3)}


@pytest.mark.parametrize(("problem", "solver"), [(coupled_clients, FedRZO), (bounded_clients, ZOHFL)])
@pytest.mark.parametrize("seed", [0, 3])
def test_with_one_step_a_round_it_is_an_iterate_of_the_run(problem: Any, solver: Any, seed: int) -> None:
    declared = problem()
    result = solve(declared, solver(schedule="theory", accuracy=1.0), seed=seed, x0=0.9)
    point = result.theorem_point
    assert point is not None and point.local_step == 0
    np.testing.assert_array_equal(np.ravel(point.iterate), result.trajectory["x"][point.round])
    assert point.value == pytest.approx(declared.implicit(point.x), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_within_a_round_it_is_the_mean_of_the_clients(seed: int) -> None:
    """A run whose round k* has as few local steps ends its round in the same mean."""
    problem = two_clients()
    result = solve(problem, FedRZO(schedule="theory", accuracy=1.0), seed=seed, x0=[1.5, -1.0])
    point, theory = result.theorem_point, result.settings["theory"]
    assert theory["local_steps"] > 3
    counts = [theory["local_steps"]] * ROUNDS
    counts[point.round] = max(1, point.local_step)
    by_hand = FedRZO(step_size=theory["step_size"], local_steps=lambda r: counts[r])
    run = solve(problem, by_hand, seed=seed, x0=[1.5, -1.0])
    after = point.round + (point.local_step > 0)
    np.testing.assert_allclose(point.iterate, run.trajectory["x"][after], rtol=0, atol=1e-14)


def test_it_is_kept(tmp_path: Path) -> None:
    problem = two_clients()
    result = solve(problem, FedRZO(schedule="theory", accuracy=1.0), x0=[1.5, -1.0])
    result.save(tmp_path / "run.npz")
    loaded = hf.Result.load(tmp_path / "run.npz").theorem_point
    np.testing.assert_array_equal(loaded.iterate, result.theorem_point.iterate)
    assert loaded.value == result.theorem_point.value and loaded.round == result.theorem_point.round
    assert solve(problem, FedRZO(), x0=[1.5, -1.0]).theorem_point is None


def test_each_run_has_its_own_and_one_that_ends_before_has_none() -> None:
    problem, solver = two_clients(), FedRZO(schedule="theory", accuracy=1.0)
    runs = solve(problem, solver, x0=[1.5, -1.0], seeds=3)
    for seed, result in enumerate(runs.results):
        alone = solve(problem, solver, x0=[1.5, -1.0], seed=seed).theorem_point
        np.testing.assert_allclose(result.theorem_point.iterate, alone.iterate, atol=1e-12)
    last = max(runs.results, key=lambda result: result.theorem_point.round)
    assert last.theorem_point.round >= 2
    stopped = solve(problem, solver, x0=[1.5, -1.0], seed=last.settings["seed"], callback=lambda done, x, y: done >= 1)
    assert stopped.settings["rounds_done"] == 1 and stopped.theorem_point is None


@pytest.mark.parametrize("seed", [0, 3])
def test_it_is_found_after_a_run_at_sites(seed: int) -> None:
    solver, settings = FedRZO(schedule="theory", accuracy=1.0), {"x0": [1.5, -1.0], "seed": seed}
    here = solve(two_clients(), solver, **settings).theorem_point
    there = solve(two_clients(), solver, runtime=hf.runtime.Delayed([1.0, 1.0]), **settings).theorem_point
    np.testing.assert_allclose(there.iterate, here.iterate, atol=1e-12)


@pytest.mark.parametrize("changed", [{"aggregation": "median"}, {"asynchronous": True}])
def test_no_theorem_is_claimed_for_other_aggregates(changed: dict[str, Any]) -> None:
    with pytest.raises(hf.SettingError, match="the theorem is about weighted means"):
        solve(two_clients(), FedRZO(schedule="theory", accuracy=1.0), runtime=hf.runtime.Delayed([1.0, 1.0], **changed), x0=[1.5, -1.0])
