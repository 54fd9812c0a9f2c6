"""Cone programs of the host engine against CVXPY, and their conditions of optimality where they are degenerate."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cone_solution import EMPTY, SOLVED, UNBOUNDED
from hierfl.compiler.host.solution_set import SolutionSet
from hierfl.compiler.host.standard_form import NONNEGATIVE, SECOND_ORDER, ZERO, Cone


def conditions(program: ConeProgram, u: np.ndarray, z: np.ndarray) -> float:
    """The largest violation of the conditions over rows, equations first."""
    left = program.a @ u + program.b
    count = program.equations
    return max(
        np.abs(program.h @ u + program.g - program.a.T @ z).max(initial=0),
        np.abs(left[:count]).max(initial=0),
        (-left[count:]).max(initial=0),
        (-z[count:]).max(initial=0),
        np.abs(z * left).max(initial=0),
    )


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("symmetric", [True, False])
def test_degenerate_rows(seed: int, symmetric: bool) -> None:
    """All rows hold at one point and occur twice: multipliers are not unique."""
    rng = np.random.default_rng(seed)
    width, count = rng.integers(1, 8), rng.integers(1, 12)
    factor, skew = rng.standard_normal((2, width, width))
    h = factor @ factor.T + 0.1 * np.eye(width) + (0 if symmetric else skew - skew.T)
    rows = rng.integers(-2, 3, (count, width)).astype(float)
    limits = -rows @ rng.standard_normal(width)
    program = ConeProgram(
        h,
        3 * rng.standard_normal(width),
        np.vstack([rows, rows]),
        np.concatenate([limits, limits]),
        [Cone(NONNEGATIVE, 2 * int(count))],
    )
    answer = program.solve()
    assert answer.status == SOLVED
    assert conditions(program, answer.u, answer.z) <= 1e-10 * (1 + np.abs(answer.z).max(initial=0))


@pytest.mark.parametrize("seed", range(10))
def test_balls_and_rows_agree_with_cvxpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    factor, g, rows = rng.standard_normal((3, 3)), 3 * rng.standard_normal(3), rng.standard_normal((2, 3))
    h = factor @ factor.T + 0.1 * np.eye(3)
    a = np.vstack([rows, np.zeros(3), np.eye(3)])
    program = ConeProgram(h, g, a, np.array([0.3, 0.2, 1, 0, 0, 0]), [Cone(NONNEGATIVE, 2), Cone(SECOND_ORDER, 4)])
    u = cp.Variable(3)
    problem = cp.Problem(
        cp.Minimize(0.5 * cp.quad_form(u, h) + g @ u), [rows @ u + np.array([0.3, 0.2]) >= 0, cp.norm(u) <= 1]
    )
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    found, other = program.solve().u, np.asarray(u.value)
    np.testing.assert_allclose(found, other, atol=1e-5)  # CVXPY's is right to 1e-6 or so
    assert np.linalg.norm(found) <= 1 + 1e-12 and (rows @ found + [0.3, 0.2]).min() >= -1e-12
    inside = other / max(1.0, np.linalg.norm(other))
    assert 0.5 * found @ h @ found + g @ found <= 0.5 * inside @ h @ inside + g @ inside + 1e-8


def test_empty_and_unbounded_programs_are_told() -> None:
    nothing, rows = np.zeros((2, 2)), np.array([[1.0, 0], [-1, 0]])
    assert ConeProgram(np.eye(2), np.ones(2), rows, np.array([-1, 0.5]), [Cone(NONNEGATIVE, 2)]).solve().status == EMPTY
    assert (
        ConeProgram(nothing, np.array([-1.0, 1]), np.eye(2), np.zeros(2), [Cone(NONNEGATIVE, 2)]).solve().status
        == UNBOUNDED
    )


def test_the_shortest_of_several_solutions() -> None:
    """Minimise u_1 + u_2 + u_3 over u >= 0 with the sum 6 and u_3 <= 1: (2.5, 2.5, 1) is the shortest."""
    a = np.vstack([np.ones(3), np.eye(3), [0, 0, -1]])
    program = ConeProgram(
        np.zeros((3, 3)), np.ones(3), a, np.array([-6.0, 0, 0, 0, 1]), [Cone(ZERO, 1), Cone(NONNEGATIVE, 4)]
    )
    several = SolutionSet(program, program.solve(), 3)
    assert not several.is_one
    np.testing.assert_allclose(several.least_norm().u, [2.5, 2.5, 1], atol=1e-12)
    assert several.tells_apart([np.array([1.0, 0, 0])])
    assert not several.tells_apart([np.ones(3)])
