"""Costs that hardly differ: answers against vertices and assignments that are ordered in whole numbers."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import hierfl as hf
from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cone_solution import SOLVED, UNBOUNDED
from hierfl.compiler.host.rows.feasible_descent import descended
from hierfl.compiler.host.standard_form import NONNEGATIVE, Cone
from tests.bilevel_answers import linear_answers

SHARES = [1e-3, 1e-6, 1e-8, 1e-9, 1e-10]
small = st.integers(-3, 3)


@settings(max_examples=150, deadline=None)
@given(
    cost=st.lists(small, min_size=3, max_size=3),
    second=st.lists(small, min_size=3, max_size=3),
    rows=st.lists(st.lists(small, min_size=3, max_size=3), max_size=4),
    share=st.sampled_from(SHARES),
)
def test_a_second_cost_decides_however_small_it_is(
    cost: list[int], second: list[int], rows: list[list[int]], share: float
) -> None:
    """Among the vertices that the first cost calls best, those that the second does."""
    a = np.vstack([np.array(rows, float).reshape(-1, 3), np.eye(3), -np.eye(3)])
    limits = np.concatenate([np.ones(len(rows)), np.full(3, 2.0), np.full(3, 1.0)])
    vertices = linear_answers(np.array(cost, float), a, limits)
    worth = vertices @ second
    best = vertices[worth <= worth.min() + 1e-6]
    if np.ptp(best, axis=0).max() > 1e-6:
        return  # the second cost leaves several
    program = ConeProgram(
        np.zeros((3, 3)), np.array(cost) + share * np.array(second), -a, limits, (Cone(NONNEGATIVE, len(a)),)
    )
    answer = program.solve()
    assert answer.status == SOLVED
    np.testing.assert_allclose(answer.u, best[0], atol=1e-9)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("seed", range(6))
def test_assignments_that_hardly_differ_are_told_apart(seed: int, share: float) -> None:
    """Every vertex of the assignments is degenerate, and one equation follows from the others."""
    size, rng = 5, np.random.default_rng(seed)
    first, second = rng.integers(0, 3, (size, size)), rng.integers(0, 50, (size, size))
    agents, tasks = linear_sum_assignment(first * 10_000 + second)
    x, y = cp.Variable(name="x"), cp.Variable((size, size), name="y", nonneg=True)
    below = hf.ArgMin(
        y,
        cp.sum(cp.multiply(first + share * second, y)) + 0 * x,
        [cp.sum(y, axis=0) == 1, cp.sum(y, axis=1) == 1],
    )
    problem = hf.Problem(hf.Minimize(clients=cp.sum(cp.multiply(second, y)) + cp.square(x)), below)
    assert problem.implicit(0.0) == pytest.approx(second[agents, tasks].sum(), abs=1e-7)


@pytest.mark.parametrize("share", SHARES)
def test_a_flat_direction_of_a_quadratic_is_decided_by_a_faint_cost(share: float) -> None:
    """(y1 + y2 - 1)^2 + share y1 over a box: y = (0, 1), up to what the share moves the sum."""
    h = 2 * np.ones((2, 2))
    a, b = np.vstack([np.eye(2), -np.eye(2)]), np.array([0.0, 0.0, 1.0, 1.0])
    answer = ConeProgram(h, np.array([-2.0 + share, -2.0]), a, b, (Cone(NONNEGATIVE, 4),)).solve()
    np.testing.assert_allclose(answer.u, [0.0, 1.0], atol=1e-12)


def test_descent_stays_on_equations_and_ends_where_it_started_if_nothing_falls() -> None:
    """On the segment y1 + y2 = 1, y >= 0; without rows there is no end, and the point is kept."""
    a, b = np.array([[np.sqrt(0.5), np.sqrt(0.5)], [1.0, 0.0], [0.0, 1.0]]), np.array([-np.sqrt(0.5), 0.0, 0.0])
    equal = np.array([True, False, False])
    u, z, endless = descended(np.zeros((2, 2)), np.array([1.0, 1.0 + 1e-9]), a, b, equal, np.array([0.5, 0.5]))
    np.testing.assert_allclose(u, [1.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(a.T @ z, [1.0, 1.0 + 1e-9], rtol=1e-15)
    assert not endless
    kept, _, endless = descended(np.zeros((2, 2)), np.ones(2), a, b, equal, np.array([0.5, 0.5]))
    np.testing.assert_array_equal(kept, [0.5, 0.5])
    assert not endless
    none = np.zeros((0, 1)), np.zeros(0), np.zeros(0, bool)
    free, _, endless = descended(np.zeros((1, 1)), np.ones(1), *none, np.array([3.0]))
    assert free[0] == 3.0 and endless


@pytest.mark.parametrize("share", [1e-3, 3e-6, 1e-8, 1e-10])
@pytest.mark.parametrize("cost", [(1.0, 1.0), (1.0, 0.0)])
def test_what_falls_without_end_is_unbounded_however_slowly(share: float, cost: tuple[float, float]) -> None:
    """(y1 - y2)^2 + share cost'y over y1 + y2 <= 3 falls along -(1, 1); and so does y1 + share y2 over y1 >= 0, y1 + y2 <= 3 along -(0, 1)."""
    h, row = 2 * np.array([[1.0, -1.0], [-1.0, 1.0]]), -np.ones((1, 2))
    limits = [Cone(NONNEGATIVE, 1)]
    assert ConeProgram(h, share * np.array(cost), row, np.array([3.0]), limits).solve().status == UNBOUNDED
    rows = np.array([[1.0, 0.0], [-1.0, -1.0]])
    linear = ConeProgram(np.zeros((2, 2)), np.array([1.0, share]), rows, np.array([0.0, 3.0]), [Cone(NONNEGATIVE, 2)])
    assert linear.solve().status == UNBOUNDED
