"""Proved optima of lower levels that are curved in other ways than quadratic: formulas of y(x) on fine grids, cones, and x at which no constraint qualification holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import expit, logit

import hierfl as hf
from tests.inspect.proved.test_proof import proved

LEVELS: dict[str, tuple[Callable[[Any, Any], tuple[Any, list[Any]]], Callable[[np.ndarray], np.ndarray], float]] = {  # level, y(x), and what f wants of y
    "exp": (lambda x, y: (cp.exp(y) - x * y, []), np.log, 0.3),
    "log": (lambda x, y: (y - x * cp.log(y), []), lambda x: x, 0.7),
    "log1p, and a row": (lambda x, y: (y - x * cp.log1p(y), [y >= 0.5]), lambda x: np.maximum(x - 1.0, 0.5), 0.8),
    "entropy": (lambda x, y: (-cp.entr(y) - x * y, []), lambda x: np.exp(x - 1.0), 1.7),
    "relative entropy": (lambda x, y: (cp.rel_entr(y, 2.0) - x * y, []), lambda x: 2.0 * np.exp(x - 1.0), 1.9),
    "relative entropy of a sum": (lambda x, y: (cp.rel_entr(1.0, y) + x * y, []), lambda x: 1.0 / x, 0.9),
    "divergence": (lambda x, y: (cp.kl_div(y, x), [y >= 1]), lambda x: np.maximum(x, 1.0), 1.2),
    "logistic": (lambda x, y: (cp.logistic(y) - 0.4 * x * y, []), lambda x: logit(0.4 * x), 0.1),
    "log_sum_exp": (lambda x, y: (cp.log_sum_exp(cp.hstack([y, 1.0, -y])) + cp.square(y) - 2 * x * y, []), lambda x: _root(x), 0.4),
    "a fractional power": (lambda x, y: (cp.power(y, 1.5) - x * y, []), lambda x: (x / 1.5) ** 2, 0.6),
    "a high power": (lambda x, y: (cp.power(y - 1, 4) - x * y, [y <= 1.7]), lambda x: np.minimum(1.0 + np.cbrt(0.25 * x), 1.7), 1.6),
    "a root": (lambda x, y: (x * y - cp.sqrt(y), []), lambda x: 0.25 / x**2, 0.2),
    "an inverse": (lambda x, y: (cp.inv_pos(y) + x * y, []), lambda x: x**-0.5, 0.9),
    "a cubic length": (lambda x, y: (cp.power(cp.abs(y - 1), 3) - 3 * cp.square(0.5 * x) * y, []), lambda x: 1.0 + 0.5 * x, 1.6),
    "a row with exp": (lambda x, y: (-y, [cp.exp(2 * y) <= x + 1]), lambda x: 0.5 * np.log(x + 1), 0.4),
    "a row with log": (lambda x, y: (cp.square(y), [cp.log(y) >= x - 1]), lambda x: np.exp(x - 1.0), 1.2),
    "a disc": (lambda x, y: (-y, [cp.square(y - x) + cp.square(x - 1) <= 2]), lambda x: x + np.sqrt(2 - (x - 1) ** 2), 1.8),
}


def _root(x: np.ndarray) -> np.ndarray:
    """Of the derivative of log(e^y + e + e^-y) + y^2 - 2 x y, by halving."""
    low, high = np.full_like(x, -10.0), np.full_like(x, 10.0)
    for _ in range(60):
        y = 0.5 * (low + high)
        up = (np.exp(y) - np.exp(-y)) / (np.exp(y) + np.e + np.exp(-y)) + 2 * y - 2 * x > 0
        low, high = np.where(up, low, y), np.where(up, y, high)
    return low


@pytest.mark.parametrize("name", LEVELS)
def test_smooth_levels_and_rows_against_formulas(name: str) -> None:
    level, formula, wanted = LEVELS[name]
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    cost, rows = level(x, y)
    found = proved(hf.Problem(hf.Minimize(server=cp.square(y - wanted) + 0.1 * x), hf.ArgMin(y, cost, rows), [x >= 0.5, x <= 2]))
    grid = np.linspace(0.5, 2, 300_001)
    best = ((formula(grid) - wanted) ** 2 + 0.1 * grid).min()
    assert best - 1e-6 <= found.value <= best + 1e-8  # a grid is never better
    np.testing.assert_allclose(found.y, formula(np.asarray(found.x, float)), atol=1e-6)


def test_shares_of_choices() -> None:
    """y = softmax of utilities less prices, by entropies under a sum: the best single price for revenue, by a grid."""
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    level = hf.ArgMin(y, -cp.sum(cp.entr(y)) + (x - 1) * y[0] - 0.5 * y[1], [cp.sum(y) == 1])
    found = proved(hf.Problem(hf.Maximize(server=x * y[0]), level, [x >= 0, x <= 5]))
    grid = np.linspace(0, 5, 300_001)
    assert found.value == pytest.approx((grid * expit(1 - grid - np.log(1 + np.exp(0.5)))).max(), abs=1e-6)


# --- second-order cones ------------------------------------------------------------------------------------------------


def test_a_norm_whose_apex_is_the_solution_and_is_not() -> None:
    """y = x (1 - 1 / |x|)+: of |y - 2 e|^2 + |x|^2 / 10 with x = (t, 0), (t - 3)^2 + t^2 / 10; and y = x of what is nearest to x by the norm itself."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    box, away = [x >= -4, x <= 4], cp.square(y[0] - 2) + cp.square(y[1])
    shrunk = hf.ArgMin(y, 0.5 * cp.sum_squares(y - x) + cp.norm(y))
    assert proved(hf.Problem(hf.Minimize(server=away + 0.1 * cp.sum_squares(x)), shrunk, box)).value == pytest.approx(9 / 11, abs=1e-6)
    nearest = hf.ArgMin(y, cp.norm(y - x) + 0.5 * y[0])
    assert proved(hf.Problem(hf.Minimize(server=away + cp.square(x[0] - 1)), nearest, box)).value == pytest.approx(0.5, abs=1e-6)


def test_the_farthest_point_of_a_ball_whose_radius_moves() -> None:
    """y = r x / |x|, in polar coordinates."""
    x, r, y = cp.Variable(2, name="x"), cp.Variable(name="r"), cp.Variable(2, name="y")
    f = cp.square(y[0] - 1) + cp.square(y[1] - 2) + cp.square(r - 1) + 0.1 * x[0]
    found = proved(hf.Problem(hf.Minimize(server=f), hf.ArgMin(y, -x @ y, [cp.norm(y) <= r]), [x >= 0.5, x <= 2, r >= 0.5, r <= 3]))
    first, second = (each[..., None] for each in np.meshgrid(np.linspace(0.5, 2, 401), np.linspace(0.5, 2, 401)))
    angle, radius = np.arctan2(second, first), np.linspace(0.5, 3, 251)
    values = (radius * np.cos(angle) - 1) ** 2 + (radius * np.sin(angle) - 2) ** 2 + (radius - 1) ** 2 + 0.1 * first
    assert values.min() - 2e-4 <= found.value <= values.min() + 1e-8


# --- constraint qualifications, and refusals -----------------------------------------------------------------------------


def test_where_no_constraint_qualification_holds_f_is_bounded_without_one() -> None:
    """Y(0) = {0} has no interior, and no multiplier: Dempe's example, whose published optimum is that of x > 0. Where 0 solves nothing there it is told."""
    x, y, z = cp.Variable(name="x"), cp.Variable(name="y"), cp.Variable(2, name="z")
    found = proved(hf.Problem(hf.Minimize(server=cp.square(x - 3.5) + cp.square(y + 4)), hf.ArgMin(y, cp.square(y - 3), [cp.square(y) <= x])))
    assert found.value == pytest.approx(28.25, abs=1e-6) and float(np.asarray(found.x)) == pytest.approx(0, abs=1e-6)
    half_told = hf.ArgMin(z, cp.square(z[1] - 1), [cp.square(z[0]) <= x, z[1] >= 0])
    loose = hf.Problem(hf.Minimize(server=z[1] + x), half_told, [x >= 0, x <= 1]).reference(certificate="global", progress=False)
    assert "no constraint qualification" in loose.status and loose.value == pytest.approx(1, abs=1e-6) and loose.bound == pytest.approx(0, abs=1e-6)
    held = hf.Problem(hf.Minimize(server=z[1] + x), half_told, [x >= 0.1, x <= 1])  # there is an interior for all of these
    assert proved(held).value == pytest.approx(1.1, abs=1e-6)


def test_other_cones_and_perspectives_are_refused_by_name() -> None:
    x, y, m = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Variable((2, 2), symmetric=True, name="m")

    def refused(level: hf.ArgMin, match: str) -> None:
        with pytest.raises(hf.errors.IncompatibleSolverError, match=match):
            hf.Problem(hf.Minimize(server=cp.sum(x)), level, [cp.norm_inf(x) <= 1]).reference(certificate="global", progress=False)

    refused(hf.ArgMin(m, cp.sum_squares(m - cp.diag(x)), [m >> 0]), "semidefinite")
    refused(hf.ArgMin(y, cp.sum_squares(y - x), [cp.rel_entr(y[0], y[1]) <= 1]), "perspectives")
    refused(hf.ArgMin(m, -cp.log_det(m) + cp.trace(m) + cp.sum_squares(m - cp.diag(x))), "log_det|semidefinite")
    refused(hf.ArgMin(y, cp.power(cp.norm(y), 1.5) + cp.sum_squares(y - x)), "length to the power 1.5")
