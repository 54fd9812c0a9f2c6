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


def test_a_level_that_falls_where_no_curvature_stops_it_is_told_whatever_the_slope() -> None:
    """Along v = (1, -1, 1) the objective has the slope 30 x0 and no curvature but rounding, which took y to 1e9 and more."""
    curvature, slope = np.array([[20.0, 30, 10], [30, 50, 20], [10, 20, 10]]), np.array([20.0, -20, -40])
    x, y = cp.Variable(2, name="x"), cp.Variable(3, name="y")
    below = slope @ y + x[0] * (np.array([20.0, -20, -10]) @ y) + 0.5 * cp.quad_form(y, cp.psd_wrap(curvature))
    level = hf.ArgMin(y, below, [np.array([-20.0, 10, 30]) @ y + 10 * x[1] >= -10])
    problem = hf.Problem(hf.Minimize(server=np.array([0.01, 0.01, 0.02]) @ y), level, [x >= 0, x <= 3])
    assert np.abs(problem.implicit.response([0.0, 1.0])).max() < 10
    for at in np.geomspace(1e-8, 3, 30):
        with pytest.raises(hf.LowerLevelError):
            problem.implicit([at, 1.3])
