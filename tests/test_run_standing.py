"""What a run says of where it stands when it ends."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
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
