"""Equations that are nearly dependent determine y as exact arithmetic says, and its derivative; nearer than that no gradient is told."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

R = np.array([0.3, 0.7, -0.2])


@pytest.mark.parametrize("apart", [1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9])
def test_rows_that_are_nearly_one_are_two(apart: float) -> None:
    """Rows 1'y = 1 and (1 + apart r)'y = 1 + apart x say that 1'y = 1 and r'y = x."""
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    rows = [cp.sum(y) == 1, (1 + apart * R) @ y == 1 + apart * x]
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - [1, 2, 3]) + y[0]), hf.ArgMin(y, cp.sum_squares(y - x), rows))
    both = np.vstack([np.ones(3), R])

    def exact(at: float) -> float:
        found = at + np.linalg.lstsq(both, np.array([1, at]) - both @ np.full(3, at), rcond=None)[0]
        return float(np.sum((found - [1, 2, 3]) ** 2) + found[0])

    blur = 1e-13 / apart
    assert problem.implicit(0.3) == pytest.approx(exact(0.3), abs=1e-9 + blur)
    assert problem.implicit.gradient(0.3) == pytest.approx((exact(0.3 + 1e-3) - exact(0.3 - 1e-3)) / 2e-3, abs=1e-8 + 10 * blur)


def test_a_gradient_is_refused_where_rounding_decides() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    rows = [cp.sum(y) == 1, (1 + 1e-12 * R) @ y == 1 + 1e-12 * x]
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - [1, 2, 3])), hf.ArgMin(y, cp.sum_squares(y - x), rows))
    with pytest.raises(hf.NoGradientError):
        problem.implicit.gradient(0.3)
