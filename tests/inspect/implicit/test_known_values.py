"""A value asked again is not evaluated again, unless something may have changed."""

from __future__ import annotations

import cvxpy as cp
import numpy as np

import hierfl as hf

LAST = 64


def declared(scale: cp.Parameter | float = 1.0) -> hf.Problem:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    below = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0, y <= 1])
    return hf.Problem(hf.Minimize(clients=scale * cp.sum(y)), lower=below, constraints=[x >= -2, x <= 2])


def test_an_answer_that_is_written_into_does_not_change_what_is_kept() -> None:
    problem, x = declared(), np.array([0.25, 0.5])
    first = problem.implicit.response(x)
    first[:] = 7.0
    np.testing.assert_allclose(problem.implicit.response(x), x, atol=1e-12)
    x[0] = 0.75
    np.testing.assert_allclose(problem.implicit.response(x), [0.75, 0.5], atol=1e-12)


def test_more_points_than_are_kept() -> None:
    problem = declared()
    points = np.random.default_rng(0).uniform(-2, 2, (3 * LAST, 2))
    for _ in range(2):
        found = [problem.implicit(x) for x in points]
        np.testing.assert_allclose(found, np.clip(points, 0, 1).sum(axis=1), atol=1e-12)


def test_a_black_box_is_asked_each_time() -> None:
    asked: list[float] = []

    def measured(x: np.ndarray) -> float:
        asked.append(float(x[0]))
        return float(x[0]) + len(asked)

    x, y = cp.Variable(1, name="x"), cp.Variable(1, name="y")
    below = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
    upper = hf.BlackBox(measured, x) + cp.sum(y)
    problem = hf.Problem(hf.Minimize(clients=upper), lower=below, constraints=[x >= 0, x <= 1])
    first = problem.implicit(np.array([0.5]))
    count = len(asked)
    assert problem.implicit(np.array([0.5])) > first and len(asked) > count
