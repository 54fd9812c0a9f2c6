"""Penalties e^x of one entry each that are next to nothing, as a search for hyperparameters comes to: y is that without the penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

RNG = np.random.default_rng(0)
A = RNG.normal(size=(60, 4)) * [1, 1, 0.3, 0.1]
B = A @ [1, -1, 2, 0] + 0.5 * RNG.normal(size=60)
SIGN = np.sign(B + 0.8 * RNG.normal(size=60))
LOSSES: dict[str, Callable[[Any], Any]] = {
    "logistic": lambda y: cp.sum(cp.logistic(-cp.multiply(SIGN, A @ y))) / 60,
    "hinge": lambda y: cp.sum(cp.pos(1 - cp.multiply(SIGN, A @ y))) / 60,
    "exponential": lambda y: (cp.sum(cp.exp(A @ y)) - np.abs(B) @ (A @ y)) / 60,
    "length": lambda y: cp.norm(A @ y - B),
    "CVaR": lambda y: cp.sum_largest(cp.abs(A @ y - B), 6) / 6,
    "fourth power": lambda y: cp.sum(cp.power(A @ y - B, 4)) / 60,
    "squares": lambda y: cp.sum_squares(A @ y - B) / 60,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_penalty_of_nothing_changes_nothing(loss: str) -> None:
    x, y, free = cp.Variable(4, name="x"), cp.Variable(4, name="y"), cp.Variable(4)
    below = LOSSES[loss](y) + 0.5 * cp.sum(cp.multiply(cp.exp(x), cp.square(y)))
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, below))
    weights = np.exp([-1.0, -np.inf, -2.0, -3.0])
    limit = cp.Problem(cp.Minimize(LOSSES[loss](free) + 0.5 * weights @ cp.square(free)))
    limit.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    for faint in (-40.0, -60.0, -74.0, -90.0, -300.0):
        at = np.array([-1.0, faint, -2.0, -3.0])
        np.testing.assert_allclose(problem.implicit.response(at), free.value, atol=1e-4 if loss == "length" else 1e-6)
        assert problem.implicit.certificate(at).lower_residual < 1e-6
        assert problem.implicit.gradient(at)[1] == pytest.approx(0.0, abs=1e-12)


def test_penalties_of_each_feature_are_found_without_settings() -> None:
    """The search goes to where some are nothing, and is not stopped there: SciPy's L-BFGS ends at .222843, others below .2256."""
    rng, count, size = np.random.default_rng(2), 400, 12
    rows = rng.standard_normal((2 * count, size)) * np.geomspace(1.0, 0.1, size)
    signs = np.sign(rows @ (rng.standard_normal(size) * (rng.random(size) < 0.5)) + 0.5 * rng.standard_normal(2 * count))
    start = np.log(rng.random(size))
    x, y = cp.Variable(size, name="x"), cp.Variable(size, name="y")

    def loss(part: slice) -> Any:
        return cp.sum(cp.logistic(-cp.multiply(signs[part], rows[part] @ y))) / count

    below = loss(slice(count)) + 0.5 * cp.sum(cp.multiply(cp.exp(x), cp.square(y)))
    problem = hf.Problem(hf.Minimize(clients=loss(slice(count, None))), hf.ArgMin(y, below))
    assert problem.solve(x0=start, rounds=100, progress=False).value < 0.2250
