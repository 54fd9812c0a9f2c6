"""Entropy over the simplex: shares are softmax, however far apart the costs are; no row keeps Newton's steps where it is defined."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import softmax

import hierfl as hf


def shares(costs: np.ndarray) -> hf.Problem:
    n = len(costs)
    x, y = cp.Variable(name="x"), cp.Variable(n, name="y")
    lower = hf.ArgMin(y, -cp.sum(cp.entr(y)) + x * (costs @ y), [cp.sum(y) == 1])
    return hf.Problem(hf.Minimize(clients=np.arange(1.0, n + 1) @ y), lower)


@given(st.lists(st.floats(-15, 15), min_size=1, max_size=6))
@example(
    [10.546875, 9.5390625, 11.544207356678484, 14.75, -14.653636535829756]
)  # a cut last step left 6% of a share of 4e-12
def test_shares_are_softmax(costs: list[float]) -> None:
    found = shares(np.array(costs)).implicit.response(1.0)
    np.testing.assert_allclose(np.ravel(found), softmax(-np.array(costs)), rtol=1e-7, atol=1e-13)


@pytest.mark.parametrize("spread", [1.0, 10.0, 30.0])
def test_their_gradient_is_a_covariance(spread: float) -> None:
    costs = spread * np.array([0.3, -0.2, 0.5, -0.6])
    weights, p = np.arange(1.0, 5.0), softmax(-costs)
    slope = (weights @ p) * (costs @ p) - weights @ (p * costs)
    assert shares(costs).implicit.gradient(1.0) == pytest.approx(slope, rel=1e-8, abs=1e-12)


def test_shares_below_all_numbers_are_solved_or_refused_never_wrong() -> None:
    """exp(-1000) is no number: beside a cap the others may still be told."""
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    lower = hf.ArgMin(y, -cp.sum(cp.entr(y)) + x * (np.array([0.0, 500.0, 1000.0]) @ y), [cp.sum(y) == 1, y <= 0.6])
    implicit = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower).implicit
    try:
        found = np.ravel(implicit.response(1.0))
    except hf.LowerLevelError:
        return
    np.testing.assert_allclose(found, [0.6, 0.4, 0.0], atol=1e-9)
