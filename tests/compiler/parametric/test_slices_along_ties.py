"""Slices of f along which other entries of x are tied, so that every point of the line has many solutions: kinks and jumps are told."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

pytestmark = pytest.mark.filterwarnings("ignore::hierfl.errors.LowerLevelWarning")

AIM = np.array([1.0, 2.0, 6.0])


def slice_of(problem: hf.Problem, start: list[float], entry: int, radius: float) -> Any:
    way = np.eye(len(start))[entry]
    return problem.implicit.slice(np.array(start), way, radius=radius, points=20, progress=False)


def linear(selection: str | None) -> hf.Problem:
    """min x'y over the simplex."""
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    lower = hf.ArgMin(y, x @ y, [y >= 0, cp.sum(y) == 1], selection=selection)
    return hf.Problem(hf.Minimize(clients=AIM @ y), lower)


@pytest.mark.parametrize(("selection", "behind"), [(None, 4.0), ("optimistic", 2.0), ("pessimistic", 6.0)])
def test_costs_that_are_tied_beside_one_that_passes_make_a_jump(selection: str | None, behind: float) -> None:
    """Costs (1 + t, 1, 1): the first entry is best for t < 0, then the others share it, or the selection says which."""
    found = slice_of(linear(selection), [1.0, 1.0, 1.0], 0, 0.7)
    (jump,) = found.kinks.jumps
    assert jump.t == pytest.approx(0.0, abs=1e-8)
    assert (jump.left, jump.right) == (pytest.approx(1.0, abs=1e-8), pytest.approx(behind, abs=1e-8))
    assert not len(found.kinks)
    np.testing.assert_allclose(found.value[found.t < 0], 1.0, atol=1e-9)
    np.testing.assert_allclose(found.value[found.t > 0], behind, atol=1e-9)


def portfolio(aim: np.ndarray) -> hf.Problem:
    """Three assets, of which two are one and the same: variance less the return x."""
    risk = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    lower = hf.ArgMin(y, 0.5 * cp.quad_form(y, risk) - x @ y, [y >= 0, cp.sum(y) == 1])
    return hf.Problem(hf.Minimize(clients=aim @ y), lower)


def test_a_portfolio_with_two_equal_assets_has_the_kinks_of_the_third() -> None:
    """The first asset has the share min(max(t / 2, 0), 1), the others half of the rest each."""
    found = slice_of(portfolio(AIM), [1.0, 1.0, 1.0], 0, 1.6)
    share = np.clip((1 + found.t) / 2, 0, 1)
    np.testing.assert_allclose(found.value, share + 4 * (1 - share), atol=1e-8)
    assert not found.kinks.jumps
    np.testing.assert_allclose([kink.t for kink in found.kinks], [-1.0, 1.0], atol=1e-7)
    np.testing.assert_allclose([kink.left_slope for kink in found.kinks], [0.0, -1.5], atol=1e-6)
    np.testing.assert_allclose([kink.right_slope for kink in found.kinks], [-1.5, 0.0], atol=1e-6)


SHORT = pytest.mark.xfail(
    reason="a set of solutions of length 2e-7 counts as one, which moves as the vertex that was found"
)


@pytest.mark.parametrize("short", [1e-4, pytest.param(1e-7, marks=SHORT)])
def test_a_short_set_of_solutions_moves_as_a_long_one(short: float) -> None:
    """min y_1 + y_2 with sum(y) = d and y <= 1, just below d = 2: both have half of d, and half of its slope."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(hf.Minimize(clients=AIM[:2] @ y), hf.ArgMin(y, cp.sum(y), [y >= 0, y <= 1, cp.sum(y) == x]))
    assert float(problem.implicit.gradient(2 - short)) == pytest.approx(1.5, abs=1e-6)


@pytest.mark.parametrize("t", [1e-6, 1e-8, 1e-9, 1e-10, -1e-10, -1e-9, -1e-8, -1e-6])
def test_a_faint_cost_decides_next_to_a_tie(t: float) -> None:
    """y_1 is 1 whatever x; x y_2 alone decides where in [-1, 1] y_2 is, however small x is."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    cost = 0.5 * cp.square(y[0]) - 1.5 * y[0] + x * y[1]
    below = hf.ArgMin(y, cost, [y <= 1, y >= -1, y[1] - y[0] <= 0.5])
    problem = hf.Problem(hf.Minimize(clients=2 * y[0] - 2 * y[1]), below)
    assert float(problem.implicit(t)) == pytest.approx(4.0 if t > 0 else 0.0, abs=1e-9)


def test_answers_at_bounds_are_there_to_the_last_bit() -> None:
    """At a vertex of the simplex the first two entries stay 0 for all x nearby, or move in what f does not see: f is flat there."""
    x, y = cp.Variable(4, name="x"), cp.Variable(4, name="y")
    below = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0, cp.sum(y) == 1])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y[:2])), below)
    np.testing.assert_array_equal(problem.implicit.response([0.0, 0.0, 0.0, 1.0]), [0, 0, 0, 1])
    np.testing.assert_array_equal(problem.implicit.gradient([0.0, 0.0, 0.0, 1.0]), np.zeros(4))
