"""Sums of exponentials whose minimum is far from where Newton's method begins: log k - x, from k = 0.5 to 2 and x = -40 to 40."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

K = np.array([1.0, 2.0, 0.5])


@pytest.mark.parametrize("rows", ["none", "a box", "a sum"])
def test_a_minimum_far_away_is_found(rows: str) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    within = {"none": [], "a box": [y >= -100, y <= 100], "a sum": [cp.sum(y) >= -3 * x - 1]}[rows]
    level = hf.ArgMin(y, cp.exp(x) * cp.sum(cp.exp(y)) - K @ y, within)
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), level)
    for at in (-40.0, -20.0, -6.0, -4.0, -2.0, 0.0):
        np.testing.assert_allclose(problem.implicit.response(at), np.log(K) - at, rtol=1e-12)
        assert problem.implicit.gradient(at) == pytest.approx(-3.0, abs=1e-9)
