"""Conic programs that hierfl poses are judged by hierfl: CVXPY's warnings reach nobody, its inaccurate answers are within 1e-8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.analysis.conic_solving import ENOUGH, status_of, tight_status_of

pytestmark = pytest.mark.filterwarnings("error")


def projection(size: int, point: np.ndarray) -> tuple[cp.Problem, cp.Variable]:
    y = cp.Variable(size)
    return cp.Problem(cp.Minimize(cp.sum_squares(y - point)), [cp.sum(cp.power(y, 4)) <= 1]), y


def test_what_is_stuck_before_rounding_is_right_all_the_same() -> None:
    """The optimality conditions: y^3 and the way to the point are parallel, y on the boundary."""
    ended = set()
    for seed in range(8):
        point = np.random.default_rng(seed).standard_normal(10) * 10.0 ** (seed % 4)
        problem, y = projection(10, point)
        ended.add(tight_status_of(problem))
        assert y.value is not None
        away, normal = point - y.value, y.value**3
        if np.sum(point**4) <= 1:
            assert np.abs(away).max() <= 1e-4
            continue
        assert abs(np.sum(y.value**4) - 1) <= 10 * ENOUGH
        assert away @ normal >= (1 - 1e-6) * np.linalg.norm(away) * np.linalg.norm(normal)
    assert ended == {cp.OPTIMAL, cp.OPTIMAL_INACCURATE}


def test_a_solver_that_gives_up_is_asked_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    solve = cp.Problem.solve

    def reluctant(self: cp.Problem, **settings: Any) -> Any:
        asked.append(settings["tol_feas"])
        if settings["tol_feas"] < 1e-9:
            raise cp.SolverError("stuck")
        return solve(self, **settings)

    monkeypatch.setattr(cp.Problem, "solve", reluctant)
    problem, _ = projection(2, np.ones(2))
    assert tight_status_of(problem) == cp.OPTIMAL and asked == [1e-12, 1e-8]
    assert status_of(problem, 1e-12) == cp.SOLVER_ERROR


Made = Callable[[cp.Variable, cp.Variable], hf.ArgMin]


@pytest.mark.parametrize(
    ("below", "answer"),
    [
        (  # an entropy: softmax
            lambda x, y: hf.ArgMin(y, -cp.sum(cp.entr(y)) + x @ y, [y >= 0, cp.sum(y) == 1]),
            lambda x: np.exp(-x) / np.exp(-x).sum(),
        ),
        (  # not DPP: a product of two parameters
            lambda x, y: hf.ArgMin(y, cp.norm1(y) + cp.sum_squares(y - x) + x[0] * (cp.sum(y) + x[1])),
            lambda x: np.sign(x - x[0] / 2) * np.maximum(np.abs(x - x[0] / 2) - 0.5, 0),
        ),
        (  # a set for CVXPY, and not DPP
            lambda x, y: hf.ArgMin(y, cp.sum_squares(y - x), [cp.power(y[0], 4) + x[0] * (y[0] + x[1]) <= 10]),
            None,
        ),
    ],
)
def test_no_warning_of_cvxpys_reaches_a_user(below: Made, answer: Callable[[np.ndarray], np.ndarray] | None) -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x + 1 - y)), lower=below(x, y), constraints=[x >= 0])
    for point in np.random.default_rng(3).uniform(0, 1.5, (3, 2)):
        response = problem.implicit.response(point)
        assert answer is None or np.abs(response - answer(point)).max() < 1e-6
    problem.check(samples=4, progress=False)
