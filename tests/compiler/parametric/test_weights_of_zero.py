"""A regularisation whose weight x is zero, where X ends: the gradient is that of the side on which the lower level is convex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

B = np.array([1.4, -2.0, 0.3])
ROWS = np.array([[0.5, 0.2, 0.1], [1.0, -1.0, 2.0]])  # the first is short of its margin at B, the second is not
SLOPES: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {  # a term, and its gradient at B
    "norm1": (cp.norm1, np.sign(B)),
    "norm_inf": (cp.norm_inf, np.array([0.0, -1.0, 0.0])),
    "max": (cp.max, np.array([1.0, 0.0, 0.0])),
    "hinges": (lambda y: cp.sum(cp.pos(1 - ROWS @ y)), -ROWS[0]),
    "of a sum": (lambda y: cp.abs(cp.sum(y)) + cp.max(cp.abs(y)), np.sign(B.sum()) + np.array([0.0, -1.0, 0.0])),
}


def declared(term: Callable[[Any], Any], order: tuple[int, int]) -> hf.Problem:
    """min 0.5 |y - b|^2 + x_i term(y) + 0.5 x_j |y|^2."""
    x, y = cp.Variable(2, name="x", nonneg=True), cp.Variable(3, name="y")
    below = 0.5 * cp.sum_squares(y - B) + cp.multiply(x[order[0]], term(y))
    below += 0.5 * cp.multiply(x[order[1]], cp.sum_squares(y))
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), hf.ArgMin(y, below))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("name", SLOPES)
def test_gradients_into_x(name: str, order: tuple[int, int]) -> None:
    term, slope = SLOPES[name]
    problem = declared(term, order)
    expected = np.zeros(2)
    expected[list(order)] = -2 * (B - 1) @ slope, -2 * (B - 1) @ B
    assert problem.implicit(np.zeros(2)) == pytest.approx(np.sum((B - 1) ** 2), abs=1e-12)
    np.testing.assert_allclose(problem.implicit.gradient(np.zeros(2)), expected, atol=1e-10)


def test_a_norm_without_weight_has_no_gradient_that_is_known() -> None:
    """Over a second-order cone the side is not told apart: a gradient of zero, as if the weight did nothing, would be wrong."""
    problem = declared(cp.norm, (0, 1))
    assert problem.implicit(np.zeros(2)) == pytest.approx(np.sum((B - 1) ** 2), abs=1e-10)
    with pytest.raises(hf.NoGradientError):
        problem.implicit.gradient(np.zeros(2))
