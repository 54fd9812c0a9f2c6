"""What ends a run, and what it leaves: divergence, a tolerance, limits."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.errors import SettingError
from hierfl.runtime import InProcess
from hierfl.runtime.records import gradient_bound
from hierfl.solvers import (
    SCAFFOLD,
    ZOHFL,
    FedAvg,
    FedProx,
    FedRZO,
    ImplicitBundle,
    ImplicitGradient,
    LocalSGD,
    LocalSGDA,
    ProjectedSGD,
    Scaffnew,
)
from tests.small_declarations import quartic

START = np.ones(2)


def quadratic(**given: Any) -> hf.Problem:
    x = cp.Variable(2, name="x")
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)), **given)


def solve(problem: hf.Problem, solver: Any, **settings: Any) -> hf.Result:
    return problem.solve(solver, **{"rounds": 60, "seed": 3, "x0": START, "progress": False, **settings})


def diverged(problem: hf.Problem, solver: Any, **settings: Any) -> tuple[hf.DivergedError, int]:
    with pytest.raises(hf.DivergedError, match=r"round \d+") as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.LowerLevelWarning)
        solve(problem, solver, **settings)
    return caught.value, int(str(caught.value).split("round ")[1].split(",")[0])


# --- divergence --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 4, 60])
@pytest.mark.parametrize("solver", [FedRZO(step_size=3.0), ZOHFL(step_size=3.0), FedAvg(3.0, 1), ImplicitGradient(3.0)])
def test_a_diverged_run_keeps_the_state_before_the_failing_round(solver: Any, block: int) -> None:
    error, failing = diverged(quartic(), solver, evaluate_every=block)
    result = error.result
    assert "NaN, infinite or beyond 1e+50" in str(error) and "step_size (here 3)" in str(error)
    assert result.status == "diverged" and result.settings["rounds_done"] == failing > 0
    assert all(len(values) == failing and np.isfinite(values).all() for values in result.history.values())
    assert np.isfinite(result.iterate).all() and np.max(np.abs(result.history["objective"])) <= 1e50
    assert result.value == pytest.approx(float(np.sum(result.x**2) ** 2))
    shorter = solve(quartic(), solver, rounds=failing)
    np.testing.assert_array_equal(result.iterate, shorter.iterate)
    assert result.communication == shorter.communication


def test_growth_that_stays_finite_is_divergence() -> None:
    """x <- -19 x, so that f is beyond 1e50 after some twenty rounds, long before infinity."""
    error, failing = diverged(quadratic(), ImplicitGradient(10.0), x0=np.zeros(2), rounds=100)
    assert 15 < failing < 25
    assert 1e48 < error.result.value <= 1e50 * 400


def test_a_diverged_run_with_a_lower_level_has_an_exact_value() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y) ** 2),
        hf.ArgMin(y, cp.sum_squares(y - x)),
        federation=hf.Federation([hf.Client()] * 2),
    )
    error, failing = diverged(problem, FedRZO(step_size=20.0, lower=LocalSGD(rounds=3, steps=2)))
    assert error.result.value == pytest.approx(float(np.sum(error.result.x**2) ** 2))
    assert error.result.settings["rounds_done"] == failing


def test_without_a_value_there_is_no_result_and_a_note_says_why() -> None:
    """f is NaN wherever x is not positive: after the first long step no state has a value."""
    x = cp.Variable(name="x")
    log = hf.Problem(hf.Minimize(clients=x - cp.log(x)))
    error, failing = diverged(log, FedAvg(step_size=50.0, local_steps=1), x0=3.0)
    assert failing == 1 and error.result is None
    assert any("no value at the last finite x" in note for note in error.__notes__)


class Forward:
    """A runtime that cannot go back within a block."""

    def execute(self, problem: Any, algorithm: Any, x0: Any, rounds: int, seed: int, block: int, at_end: Any) -> Any:
        def end(done: int, *found: Any) -> Any:
            ending = at_end(done, *found)
            return None if ending is None else type(ending)(done)

        return InProcess().execute(problem, algorithm, x0, rounds, seed, block, end)


def test_any_runtime_gives_the_last_finite_state_and_several_seeds() -> None:
    error, failing = diverged(quartic(), FedRZO(step_size=3.0), runtime=Forward())
    np.testing.assert_array_equal(error.result.iterate, solve(quartic(), FedRZO(step_size=3.0), rounds=failing).iterate)
    runs = quadratic().solve(FedRZO(), seeds=3, rounds=5, runtime=Forward(), progress=False)
    together = quadratic().solve(FedRZO(), seeds=3, rounds=5, progress=False)
    np.testing.assert_allclose([run.x for run in runs], [run.x for run in together], atol=1e-12)


# --- tolerance ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver",
    [FedRZO(0.01, 0.05, local_steps=4), FedRZO(0.01, 0.05), FedAvg(0.05, 4), ImplicitGradient(0.05), ZOHFL(0.01, 0.05)],
)
def test_the_tolerance_bounds_the_true_gradient(solver: Any) -> None:
    result = solve(quadratic(), solver, x0=-START, rounds=2000, tolerance=0.1)
    assert result.status == "gradient tolerance reached"
    assert result.settings["gradient_at_most"] <= 0.1 and result.settings["rounds_done"] < 500
    assert 1e-9 < np.linalg.norm(2 * (result.x - 1)) <= 0.1


def test_at_a_constraint_the_gradient_mapping_counts() -> None:
    x = cp.Variable(2, name="x")
    held = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)), constraints=[x <= 0.5])
    result = solve(held, ImplicitGradient(0.1), x0=-START, rounds=500, tolerance=1e-3)
    assert result.status == "gradient tolerance reached"
    np.testing.assert_allclose(result.x, [0.5, 0.5], atol=1e-3)


# --- limits ------------------------------------------------------------------------------------------------------


def test_the_communication_limit_is_never_exceeded_and_fully_used() -> None:
    problem = quadratic(federation=hf.Federation([hf.Client(), hf.Client()]))
    result = solve(problem, FedAvg(0.1, 1), communication_limit=100, metrics={"m": lambda x, y: float(x[0])})
    sent = result.communication["scalars_down"] + result.communication["scalars_up"]
    assert (
        result.status == "communication limit reached" and sent == 96
    )  # 8 a round: 12 rounds, within the second block
    assert result.settings["rounds_done"] == 12
    np.testing.assert_array_equal(result.metrics["round"], [0, 10, 12])
    np.testing.assert_array_equal(result.iterate, solve(problem, FedAvg(0.1, 1), rounds=12).iterate)
    assert solve(problem, FedAvg(0.1, 1), communication_limit=5).settings["rounds_done"] == 0
    assert solve(problem, FedAvg(0.1, 1), communication_limit=1e9).ended == "completed"
    assert solve(problem, FedAvg(0.1, 1), rounds=12, communication_limit=96).ended == "completed"  # met by the last round


def test_trial_runs_are_counted_and_may_leave_nothing() -> None:
    """A round sends 8 scalars, a trial has 20; what trials took is told, and a run has what is left."""
    problem = quadratic(federation=hf.Federation([hf.Client(), hf.Client()]))
    took = solve(problem, FedAvg(), rounds=1).settings["auto"]["took"]["scalars"]
    assert took % 160 == 0 and took >= 3 * 160
    limited = solve(problem, FedAvg(), rounds=500, budget=hf.Budget(floats=took + 80))
    assert limited.settings["rounds_done"] == 10 and limited.status == "budget spent: floats"
    with pytest.raises(hf.SettingError, match=f"its trial runs took {took:,} floats, and the limit is 100"):
        solve(problem, FedAvg(), communication_limit=100)


@pytest.mark.parametrize(
    ("unit", "each"), [("values", 2 * 2), ("lower_solves", 2 * 2), ("lower_gradients", 2 * 2 * 21), ("floats", 2 * 2 * 2 + 0)]
)
def test_a_budget_ends_a_run_within_it(unit: str, each: int) -> None:
    """Two clients, x and x + eta v, 20 steps of ProjectedSGD and a look; 2 scalars down and up."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, cp.sum_squares(y - x), scope="client"), federation=hf.Federation([hf.Client()] * 2))
    result = solve(problem, FedRZO(lower=ProjectedSGD(steps=20)), rounds=100, budget=hf.Budget(**{unit: 5.5 * each}))
    assert result.status == f"budget spent: {unit}" and result.settings["rounds_done"] == 5
    assert result.history["scalars" if unit == "floats" else unit].sum() == 5 * each
    unmade = solve(problem, FedRZO(lower=ProjectedSGD(steps=20)), rounds=100, budget=hf.Budget(**{unit: each - 1}))
    assert unmade.settings["rounds_done"] == unmade.history["scalars" if unit == "floats" else unit].size == 0


def test_what_a_solver_does_not_count_is_no_budget_for_it() -> None:
    with pytest.raises(hf.SettingError, match="does not count lower_gradients; it counts values, projections, floats"):
        solve(quadratic(), FedRZO(), budget=hf.Budget(lower_gradients=10))
    with pytest.raises(hf.SettingError, match="give a limit, such as"):
        hf.Budget()
    with pytest.raises(hf.SettingError, match="are the same"):
        solve(quadratic(), FedRZO(), budget=hf.Budget(floats=10), communication_limit=10)
    assert solve(quadratic(), FedRZO(), rounds=50, budget=hf.Budget(rounds=7)).settings["rounds_done"] == 7


def test_a_start_outside_the_set_is_projected_on_it() -> None:
    """-log x has no value at -1; FedRZO alone may begin outside, since its clients pull x towards X."""
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum(-cp.log(x))), constraints=[x >= 0.5, x <= 2])
    for solver in (FedAvg(), ImplicitGradient(0.01), ZOHFL(0.01, 0.01)):
        result = solve(problem, solver, x0=np.array([-1.0, 1.0]), rounds=1)
        np.testing.assert_allclose(result.x0, [0.5, 1.0])
        assert np.isfinite(result.value)
    outside = solve(problem, FedRZO(), x0=np.array([-1.0, 1.0]), rounds=0)
    np.testing.assert_array_equal(outside.x0, [-1.0, 1.0])


def test_the_lower_levels_traffic_counts() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y)),
        hf.ArgMin(y, cp.sum_squares(y - x)),
        federation=hf.Federation([hf.Client()] * 2),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.LowerLevelWarning)
        result = solve(problem, FedRZO(lower=LocalSGD(rounds=3, steps=1)), communication_limit=1000)
    sent = sum(result.communication[f"{level}scalars_{way}"] for level in ("", "lower_") for way in ("up", "down"))
    assert sent <= 1000 < sent * (1 + 1 / result.settings["rounds_done"])


@pytest.mark.parametrize("name", ["tolerance", "time_limit", "communication_limit"])
@pytest.mark.parametrize("value", [0, -1.0, np.nan, True, "fast"])
def test_limits_are_checked(name: str, value: Any) -> None:
    with pytest.raises(hf.SettingError, match=f"{name}=.*positive"):
        solve(quadratic(), FedAvg(), **{name: value})


def test_a_run_without_time_for_f_at_its_end_tells_what_its_method_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """y(x) = max(0, x), so that f = (max(0, x) - 3)^2 is 0 at 3."""
    monkeypatch.setattr("hierfl.runtime.run.QUICKLY", -1e9)
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(
        hf.Minimize((y - 3) ** 2), lower=hf.ArgMin(y, (y - x) ** 2, [y >= 0]), constraints=[x >= -1, x <= 5]
    )
    given: dict[str, Any] = {"x0": {"x": 1.0}, "time_limit": 300.0, "progress": False}
    found = problem.solve(ImplicitBundle(), **given)
    assert found.value == pytest.approx(0.0, abs=1e-8) and found.y["y"] == pytest.approx(3.0, abs=1e-4)
    assert found.certificate.lower_residual < 1e-6 and "not evaluated" not in str(found.certificate)
    unknown = problem.solve(FedRZO(smoothing=0.1, step_size=0.01), rounds=3, **given)
    assert np.isnan(unknown.value) and "not evaluated" in str(unknown.certificate)


def test_a_tolerance_needs_blocks_and_the_moves() -> None:
    with pytest.raises(hf.SettingError, match="evaluate_every of at least 2"):
        solve(quadratic(), FedAvg(), tolerance=0.1, evaluate_every=1)
    with pytest.raises(hf.SettingError, match="does not record"):
        gradient_bound(START, START, {"step_size": np.ones(3)})


# --- ``step_size="auto"``: found by trials from the start, told, and good enough to arrive.


TARGETS = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]])


def federated(scale: float) -> hf.Problem:
    """Three clients pull x to their own points with curvature ``scale``; the minimum is at the mean of these."""
    x, point = cp.Variable(2, name="x"), hf.ClientParameter(2, name="point")
    clients = hf.Federation([hf.Client(parameters={point: p}) for p in TARGETS])
    return hf.Problem(hf.Minimize(clients=scale * cp.sum_squares(x - point)), federation=clients)


@pytest.mark.parametrize(
    ("solver", "scale"),
    [(FedAvg, 1e-4), (FedAvg, 1e5), (FedProx, 1.0), (SCAFFOLD, 1e3), (Scaffnew, 1e-3), (FedRZO, 1e-4), (FedRZO, 1e5)],
)
def test_a_step_is_found_for_any_scale_of_f(solver: Any, scale: float) -> None:
    problem = federated(scale)
    result = problem.solve(solver(step_size="auto"), rounds=150, progress=False)
    least = scale * np.mean(np.sum((TARGETS - TARGETS.mean(axis=0)) ** 2, axis=1))
    begun = scale * np.mean(np.sum(TARGETS**2, axis=1))
    assert result.value - least < 0.05 * (begun - least)
    told = result.settings["auto"]
    assert told["step_size"] > 0 and told["trial_rounds"] >= 60 and result.settings["rounds_done"] == 150
    assert f"found by {told['trial_rounds']} rounds of trials" in str(result)


def test_with_a_lower_level_and_maximisation() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum_squares(y - 2 * x), [y >= 0], scope="client")
    problem = hf.Problem(
        hf.Maximize(clients=-cp.sum_squares(y - 1) - 0.1 * cp.sum_squares(x)), level, [x >= -1, x <= 1]
    )
    best = problem.solve(progress=False).value
    for solver in (ZOHFL(step_size="auto"), ImplicitGradient(step_size="auto")):
        result = problem.solve(solver, rounds=300, x0=np.array([0.9, 0.1]), progress=False)
        assert result.value > best - 0.02
    payoff = cp.square(x[0]) + x[1] ** 2 + y[0] * x[0] - cp.sum_squares(y)
    saddle = hf.Problem(hf.Minimize(clients=payoff), hf.ArgMax(y, payoff))
    assert saddle.solve(LocalSGDA(step_size="auto"), x0=np.ones(2), rounds=200, progress=False).value < 0.1


def test_a_run_without_a_number_of_rounds_ends_where_it_stagnates() -> None:
    result = federated(1.0).solve(FedAvg(step_size=0.05), rounds=None, progress=False)
    assert result.status == "stagnated" and 256 <= result.settings["rounds_done"] < 5000
    assert np.allclose(result.x, TARGETS.mean(axis=0), atol=1e-3)
    slow = federated(1.0).solve(FedAvg(step_size=1e-5), rounds=None, progress=False, time_limit=20.0)
    assert slow.settings["rounds_done"] > 256


def test_what_is_no_step_is_refused() -> None:
    problem = federated(1.0)
    with pytest.raises(SettingError, match="automatic"):
        problem.solve(FedAvg(step_size="automatic"), progress=False)  # type: ignore[arg-type]
    undefined = hf.Problem(hf.Minimize(clients=hf.Function(lambda v: v[0] * float("nan"), cp.Variable(2, name="x"))))
    with pytest.raises(SettingError, match="not finite with any step"):
        undefined.solve(FedAvg(step_size="auto"), progress=False)
