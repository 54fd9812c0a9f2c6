"""What a run says of where it stands when it ends."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.inspect.implicit.where_it_ended import slope_where_cheap
from hierfl.run_standing import runs_away, still_improving
from hierfl.solvers import FedRZO


def solve(problem: Any, **settings: Any) -> Any:
    step, rounds = settings.pop("step", 0.01), settings.pop("rounds", 100)
    return problem.solve(FedRZO(step_size=step), rounds=rounds, progress=False, **settings)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_run_that_still_improves_says_so(sign: int) -> None:
    x = cp.Variable(2, name="x")
    sense = hf.Minimize if sign == 1 else hf.Maximize
    problem = hf.Problem(sense(clients=sign * 0.5 * cp.sum_squares(x - 3)))
    short, long = solve(problem), solve(problem, step=0.1, rounds=400)
    assert short.status == long.status == "completed"
    assert "not at rest" in str(short) and "more rounds" in short.standing
    assert long.standing == "" and "not at rest" not in str(long)


def test_a_run_that_goes_to_infinity_says_so() -> None:
    x = cp.Variable(2, name="x")
    result = solve(hf.Problem(hf.Minimize(clients=0.5 * cp.norm(x) - cp.sum(x))), step=10, rounds=2000)
    assert result.status == "completed" and "x runs away: |x| = " in str(result)


def test_the_standing_is_kept_with_a_result(tmp_path: Any) -> None:
    x = cp.Variable(name="x")
    result = solve(hf.Problem(hf.Maximize(clients=-0.5 * cp.square(x - 3))))
    result.save(tmp_path / "run.npz")
    assert hf.Result.load(tmp_path / "run.npz").standing == result.standing != ""


def test_noise_and_rest_are_no_improvement() -> None:
    rng = np.random.default_rng(0)
    fooled = [still_improving(1 + 0.1 * rng.standard_normal(200), "minimize") is not None for _ in range(300)]
    assert np.mean(fooled) < 0.02
    assert still_improving(np.ones(200), "minimize") is None and still_improving(np.ones(3), "minimize") is None
    arrived = 5000 * (1 - 0.95 ** np.arange(400.0))[:, None]
    assert runs_away({"x": arrived}) is None
    falling = np.linspace(1, 0, 100)
    assert still_improving(falling, "minimize") == pytest.approx(0.25, rel=0.02)
    assert still_improving(falling, "maximize") is None
    assert runs_away({"x": 1e4 * np.arange(5.0)[:, None]}) == pytest.approx(4e4)
    assert runs_away({"x": np.array([[1e5], [1e5 + 1], [1e5 + 2]])}) is None and runs_away({}) is None


def quadratic_below() -> tuple[Any, Any]:
    """f(x) = sum (x - 1)^2 + |x|^2 where x >= 0, y(x) = x: its minimum is 1, at (.5, .5)."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    objective = hf.Minimize(clients=cp.sum_squares(x - 1) + cp.sum_squares(y))
    return hf.Problem(objective, hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]), [x >= -2, x <= 2]), x


@pytest.mark.parametrize("size", [1, 2])
def test_the_slope_of_the_smoothed_function_at_x_comes_with_an_interval(size: int) -> None:
    """f = |x - 1|^2 is its own smoothing up to a constant, with gradient 2 (x - 1)."""
    x = cp.Variable(size, name="x")
    y = cp.Variable(size, name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, cp.sum_squares(y - x + 1)))
    for rounds in (0, 5):
        result = solve(problem, rounds=rounds, step=0.05)
        norm, low, high, _ = slope_where_cheap(problem.compile(), np.atleast_1d(result.x), 0.1, 0) or (np.nan,) * 4
        assert low <= 2 * np.linalg.norm(result.x - 1) <= high and low <= norm <= high
        assert f"slope of f^eta at x {norm:.2g}, 95% interval [{low:.2g}, {high:.2g}] " in str(result)


def test_large_data_and_iterations_below_get_no_slope_unasked() -> None:
    x, a = cp.Variable(name="x"), hf.Sample(name="a")
    many = hf.Federation([hf.Client({a: np.linspace(0, 1, 6000)})])
    result = solve(hf.Problem(hf.Minimize(clients=hf.E(cp.square(x - a))), federation=many), rounds=2)
    assert "slope of f^eta" not in str(result)


def test_the_distance_to_a_reference_that_is_known_is_said(tmp_path: Any) -> None:
    problem, _ = quadratic_below()
    far, near = solve(problem, rounds=1), problem.solve(progress=False)
    assert "reference()" not in str(far)
    best = problem.reference(progress=False).value
    assert best == pytest.approx(1, abs=1e-9)
    assert f"f(x) is {far.value - best:.2g} worse than reference()" in str(far)
    assert "f(x) is that of reference()" in str(near) and "f(x) is that of reference()" in repr(near)
    far.save(tmp_path / "far.npz")
    assert "worse than reference()" in str(hf.Result.load(tmp_path / "far.npz", problem=problem))


def test_small_values_and_large_ones_are_told_from_their_reference() -> None:
    v = cp.Variable(name="v")
    for objective, worse in [(1e-7 * cp.square(v - 2), "4e-07"), (cp.square(v - 2) + 1e7, "4")]:
        problem = hf.Problem(hf.Minimize(server=objective))
        result = solve(problem, rounds=1, step=1e-9)
        problem.reference(progress=False)
        assert f"f(x) is {worse} worse than reference()" in str(result)


def test_a_reference_for_other_parameters_is_not_compared_with() -> None:
    x, y, p = cp.Variable(name="x"), cp.Variable(name="y"), cp.Parameter(name="p", value=1.0)
    problem = hf.Problem(hf.Minimize(clients=cp.square(y - p)), hf.ArgMin(y, cp.square(y - x)), [x >= -2, x <= 2])
    result = solve(problem, rounds=1)
    p.value = 5.0
    problem.reference(progress=False)
    assert "reference()" not in str(result)
    with pytest.raises(hf.SettingError, match="parameters have changed since this run"):
        _ = result.gap


def test_several_runs_say_where_the_best_one_stands() -> None:
    problem, _ = quadratic_below()
    runs = solve(problem, rounds=40, step=0.002, seeds=3)
    problem.reference(progress=False)
    assert runs.best.standing
    for printed in (str(runs), repr(runs)):
        assert "3 of 3 runs were not at rest" in printed
    assert "worse than reference() (the best run)" in str(runs)  # a card has a dozen lines


def test_the_default_method_says_that_x_runs_away_and_not_that_more_rounds_help() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    unbounded = hf.Problem(hf.Maximize(clients=cp.sum(x)), hf.ArgMin(y, cp.sum_squares(y - x)))
    result = unbounded.solve(progress=False)
    assert "x runs away" in result.standing and "more rounds" not in str(result)


def test_a_method_that_is_stuck_at_a_jump_says_so() -> None:
    """The buyer takes what leaves most of 3 - x_0 and 2 - x_1: f is x_0 where x_0 <= 1 + x_1, else x_1, so that it jumps, up to 3."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    buyer = hf.ArgMax(y, (np.array([3.0, 2.0]) - x) @ y, [y >= 0, cp.sum(y) <= 1], selection="optimistic")
    result = hf.Problem(hf.Maximize(clients=x @ y), buyer, [x >= 0, x <= 3]).solve(progress=False)
    assert result.value > 3 - 1e-3 or "f jumps" in str(result)
    assert result.status != "no descent found" or "restarts=" in result.standing
