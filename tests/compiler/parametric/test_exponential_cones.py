"""Lower levels that need exponential or power cones: values by Lagrange's conditions or SciPy, gradients by formulas or differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import brentq, minimize

import hierfl as hf
from tests.compiler.parametric.engines import near


def declared(cost: Callable[..., Any], rows: Callable[..., list], size: int = 2, **attributes: Any) -> hf.Problem:
    x, y = cp.Variable(2, name="x"), cp.Variable(size, name="y", **attributes)
    return hf.Problem(hf.Minimize(clients=np.arange(1.0, size + 1) @ y), hf.ArgMin(y, cost(x, y), rows(x, y)))


def distance(x: Any, y: Any) -> Any:
    return cp.sum_squares(y - x)


def nearest(x: np.ndarray, value: Callable, slope: Callable, bound: float) -> np.ndarray:
    """The nearest point of sum_j value(y_j) <= bound, for convex values: y + t value'(y) = x."""

    def at(t: float) -> np.ndarray:
        return np.array([brentq(lambda v, one=one: v + t * slope(v) - one, -50, 50, xtol=1e-15) for one in x])

    if np.sum(value(x)) <= bound:
        return x
    return at(brentq(lambda t: np.sum(value(at(t))) - bound, 0, 50, xtol=1e-15))


SETS = {
    "exponentials": (lambda x, y: [cp.sum(cp.exp(y)) <= 4], np.exp, np.exp, 4.0),
    "losses": (lambda x, y: [cp.sum(cp.logistic(y)) <= 1.2], lambda v: np.log1p(np.exp(v)), lambda v: 1 / (1 + np.exp(-v)), 1.2),
    "the logarithm of their sum": (lambda x, y: [cp.log_sum_exp(y) <= np.log(4)], np.exp, np.exp, 4.0),
}


@pytest.mark.parametrize("name", SETS)
def test_nearest_points(name: str) -> None:
    rows, value, slope, bound = SETS[name]
    problem = declared(distance, rows)
    for at in (np.array([1.2, 0.8]), np.array([3.0, -1.0]), np.array([-0.5, -4.0])):
        near(problem.implicit.response(at), nearest(at, value, slope, bound))
        step = 1e-5 * np.eye(2)
        differences = [
            np.array([1.0, 2.0]) @ (nearest(at + h, value, slope, bound) - nearest(at - h, value, slope, bound)) / 2e-5
            for h in step
        ]
        near(problem.implicit.gradient(at), differences, 1e-7)


def test_a_kink_where_a_constraint_starts_to_bind() -> None:
    """y = (x, -x) meets sum exp(y) <= 2 cosh(1) at |x| = 1, where it stops."""
    problem = declared(lambda x, y: cp.square(y[0] - x[0]) + cp.square(y[1] + x[0]), lambda x, y: [cp.sum(cp.exp(y)) <= 2 * np.cosh(1)])
    near(problem.implicit.response(np.array([0.9, 0.0])), [0.9, -0.9])
    assert problem.implicit(np.array([1.0, 0.0])) == pytest.approx(-1.0, abs=1e-8)
    with pytest.raises(hf.NoGradientError):
        problem.implicit.gradient(np.array([1.0, 0.0]))
    shown = problem.implicit.slice(np.array([0.9, 0.0]), np.array([1.0, 0.0]), radius=0.3, points=31, progress=False)
    assert len(shown.kinks) == 1 and shown.kinks[0].t == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_power_cone(share: float) -> None:
    """The least of a (y_1 + y_2) on y_1^share y_2^(1 - share) >= x_1: y_1 : y_2 = share : 1 - share."""
    problem = declared(
        lambda x, y: y[0] + y[1] + cp.square(y[2] - x[0]) * 50,
        lambda x, y: [cp.PowCone3D(y[0], y[1], y[2], share), y[2] == x[0]],
        3,
    )
    unit = np.array([share, 1 - share]) / (share**share * (1 - share) ** (1 - share))
    for at in (0.5, 2.0):
        near(problem.implicit.response(np.array([at, 0.0])), [*(at * unit), at], 1e-8)
        near(problem.implicit.gradient(np.array([at, 0.0])), [unit @ [1.0, 2.0] + 3.0, 0.0], 1e-6)


def test_a_kink_beside_an_entropy() -> None:
    """max(e^y1, 2 - y2) + |y - x|^2 against SciPy's minimiser of the same with a bound."""
    problem = declared(lambda x, y: cp.maximum(cp.exp(y[0]), 2 - y[1]) + distance(x, y), lambda x, y: [])
    for at in (np.array([0.3, 0.7]), np.array([1.0, 1.0]), np.array([-2.0, 0.0])):
        rows = [
            {"type": "ineq", "fun": lambda v: v[2] - np.exp(v[0])},
            {"type": "ineq", "fun": lambda v: v[2] - 2 + v[1]},
        ]
        truth = minimize(lambda v, at=at: v[2] + np.sum((v[:2] - at) ** 2), [0, 0, 5], constraints=rows, tol=1e-14)
        near(problem.implicit.response(at), truth.x[:2], 1e-6)
        step = 1e-5 * np.eye(2)
        near(problem.implicit.gradient(at), [(problem.implicit(at + h) - problem.implicit(at - h)) / 2e-5 for h in step], 1e-6)


def test_what_is_convex_by_a_sign() -> None:
    """(y_1^2 + y_2)^2 is convex where y_2 >= 0, and so is y e^y."""
    problem = declared(lambda x, y: cp.square(cp.square(y[0]) + y[1]) + distance(x, y), lambda x, y: [], nonneg=True)
    at = np.array([0.8, 0.7])
    truth = minimize(
        lambda v: (v[0] ** 2 + v[1]) ** 2 + np.sum((v - at) ** 2), [0.1, 0.1], bounds=[(0, None)] * 2, tol=1e-15
    )
    near(problem.implicit.response(at), truth.x, 1e-6)
    product = declared(distance, lambda x, y: [cp.sum(cp.xexp(y)) <= 2], nonneg=True)
    near(
        product.implicit.response(np.array([2.0, 1.5])),
        nearest(np.array([2.0, 1.5]), lambda v: v * np.exp(v), lambda v: (1 + v) * np.exp(v), 2.0),
    )


def test_what_is_divided_by_a_function_of_x() -> None:
    """|y|^2 / (1 + x_1^2) + |y - x|_1, entry by entry; and |y|^2 <= 1 + x_1^2."""
    problem = declared(lambda x, y: cp.quad_over_lin(y, 1 + cp.square(x[0])) + cp.norm1(y - x), lambda x, y: [])
    at = np.array([0.5, 2.0])
    near(problem.implicit.response(at), np.minimum(at, 0.5 * (1 + 0.25)))
    near(problem.implicit.gradient(at), [1.0 + 2 * 0.5, 0.0])
    ball = declared(distance, lambda x, y: [cp.quad_over_lin(y, 1 + cp.square(x[0])) <= 1])
    near(ball.implicit.response(at), at * np.sqrt(1.25) / np.linalg.norm(at))


def test_averages_with_exponential_cones() -> None:
    """The mean of max(e^(y - d), 1) over rows is flat below all of them."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    rows = np.array([0.0, 1.0, 2.0])
    lower = hf.ArgMin(y, hf.E(cp.maximum(cp.exp(y - d), 1)) + 0.5 * cp.square(y - x))
    implicit = hf.Problem(hf.Minimize(clients=y), lower, federation=hf.Federation([hf.Client({d: rows})])).implicit
    for at in (-1.0, 1.5, 4.0):
        slope = lambda v, at=at: np.mean(np.where(v > rows, np.exp(v - rows), 0.0)) + v - at  # noqa: E731
        truth = brentq(slope, -5, 5, xtol=1e-14)
        if np.abs(truth - rows).min() > 1e-6:
            assert implicit(at) == pytest.approx(truth, abs=1e-8)
            curved = np.mean(np.where(truth > rows, np.exp(truth - rows), 0.0))
            assert implicit.gradient(at) == pytest.approx(1 / (1 + curved), abs=1e-6)


def test_what_no_method_solves_is_refused_by_name() -> None:
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    rows = np.linspace(-1, 1, 20_001)
    lower = hf.ArgMin(y, hf.E(cp.abs(y - d)) + cp.square(y - x))
    problem = hf.Problem(hf.Minimize(clients=y), lower, federation=hf.Federation([hf.Client({d: rows})]))
    with pytest.raises(hf.LowerLevelError, match=r"20,001 rows of something that is not smooth.*cp\.huber"):
        problem.implicit(0.0)
    assert "no method" in str(problem.explain())
