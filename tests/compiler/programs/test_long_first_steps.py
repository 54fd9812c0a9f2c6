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


def test_shares_that_no_number_tells_from_none_are_none() -> None:
    """A choice by costs 1, 2, 3 at a temperature e^x, shares as exp(-cost / e^x): of e^-7, those of 2 and 3 are e^-1096 and e^-2193."""
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    costs = np.array([1.0, 2.0, 3.0])
    level = hf.ArgMin(y, costs @ y - cp.exp(x) * cp.sum(cp.entr(y)), [cp.sum(y) == 1])
    problem = hf.Problem(hf.Minimize(clients=costs @ y), level)
    for at in (-10.0, -8.0, -7.0, -6.6, -6.0, -5.0, -3.0, 0.0, 3.0):
        shares = np.exp(-(costs - 1) * np.exp(-at))
        shares, slope = shares / shares.sum(), (costs - 1) * np.exp(-at)
        y_at, moved = problem.implicit.response(at), shares * (slope - shares @ slope)
        np.testing.assert_allclose(y_at, shares, rtol=1e-11, atol=1e-80)
        assert y_at.min() >= 0 and problem.implicit.gradient(at) == pytest.approx(costs @ moved, rel=1e-8, abs=1e-80)
