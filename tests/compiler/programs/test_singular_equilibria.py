"""Monotone affine equilibria whose matrix is singular, or skew: solved wherever they have a solution, and refused where they have none.

Answers are judged by their gap F(y)'y - min over v in Y of F(y)'v, which is 0 at solutions and positive elsewhere; HiGHS finds the minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

import hierfl as hf
from hierfl.compiler.programs.cones import NONNEGATIVE, ZERO, Cone
from hierfl.compiler.programs.convex_program import EMPTY, SOLVED, UNBOUNDED, ConvexProgram
from hierfl.compiler.programs.solve_program import solve_program

Draw = Callable[..., np.ndarray]


def program(h: object, g: object, rows: object = (), b: object = (), equations: int = 0) -> ConvexProgram:
    """F(y) = H y + g where the first rows of A y + b are zero and the others nonnegative."""
    g, b = np.array(g, float), np.array(b, float)
    a = np.array(rows, float).reshape(len(b), len(g))
    cones = [Cone(ZERO, equations), Cone(NONNEGATIVE, len(b) - equations)]
    return replace(ConvexProgram.of(np.array(h, float), g, a, b, [c for c in cones if c.size]), is_map=True)


def box(size: int, low: float = -1.0, high: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    return np.vstack([np.eye(size), -np.eye(size)]), np.repeat([-low, high], size)


def linear(cost: np.ndarray, of: ConvexProgram) -> tuple[int, float]:
    """(HiGHS's status, the least value) of a linear cost over Y."""
    e = int(of.equal.sum())
    over = {"A_ub": -of.a[e:], "b_ub": of.b[e:], "A_eq": of.a[:e], "b_eq": -of.b[:e]}
    answer = linprog(cost, **{k: v for k, v in over.items() if len(v)}, bounds=(None, None))
    return answer.status, answer.fun


def has_solution(of: ConvexProgram) -> bool:
    """A monotone affine inequality has one where its rows and its dual rows have a point (Cottle, Pang and Stone, Theorem 3.1.2)."""
    (rows, width), e = of.a.shape, int(of.equal.sum())
    equal = np.block([[of.p, -of.a.T], [of.a[:e], np.zeros((e, rows))]])
    over = {"A_ub": np.hstack([-of.a[e:], np.zeros((rows - e, rows))]), "b_ub": of.b[e:]} if rows > e else {}
    bounds = [(None, None)] * (width + e) + [(0, None)] * (rows - e)
    right = -np.concatenate([of.q, of.b[:e]])
    return linprog(np.zeros(width + rows), A_eq=equal, b_eq=right, **over, bounds=bounds).status == 0


def assert_solved(of: ConvexProgram) -> None:
    answer = solve_program(of)
    assert answer.status == SOLVED
    force = of.p @ answer.u + of.q
    size = (1 + np.abs(of.p).max() + np.abs(of.q).max()) * (1 + np.abs(answer.u).max())
    status, least = linear(force / size, of)
    assert status == 0
    assert force @ answer.u / size - least <= 1e-9
    left = of.a @ answer.u + of.b
    assert np.abs(left[: int(of.equal.sum())]).max(initial=0.0) <= 1e-12 * size
    assert left[int(of.equal.sum()) :].min(initial=0.0) >= -1e-12 * size


def assert_known(of: ConvexProgram) -> None:
    """Solved where there is a solution; where there is none, that is said, and why."""
    if has_solution(of):
        assert_solved(of)
    else:
        empty = linear(np.zeros(len(of.q)), of)[0] == 2
        assert solve_program(of).status == (EMPTY if empty else UNBOUNDED)


def draws(rng: np.random.Generator, whole: bool) -> Draw:
    if whole:
        return lambda *shape: rng.integers(-3, 4, shape).astype(float)
    return lambda *shape: rng.normal(size=shape)


def monotone(draw: Draw, size: int, rank: int) -> np.ndarray:
    """A skew matrix plus one of low rank."""
    matrix, low = draw(size, size), draw(size, rank)
    return matrix - matrix.T + low @ low.T


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("size", range(1, 7))
def test_every_inequality_over_a_bounded_set_is_solved(size: int, rank: int, whole: bool) -> None:
    for seed in range(12):
        draw = draws(np.random.default_rng([seed, size, rank]), whole)
        h, (rows, b) = monotone(draw, size, rank), box(size)
        assert_solved(program(h, draw(size), rows, b))
        more, slack = draw(size + 1, size), np.abs(draw(size + 1))
        assert_solved(program(h, draw(size), np.vstack([rows, more]), np.concatenate([b, slack])))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("size", range(1, 7))
def test_inequalities_over_equations_and_unbounded_sets_are_solved_or_have_no_solution(
    size: int, rank: int, whole: bool
) -> None:
    for seed in range(12):
        draw = draws(np.random.default_rng([seed, size, rank]), whole)
        h, g, some = monotone(draw, size, rank), draw(size), draw(max(1, size // 2), size)
        right = -some @ draw(size) / 3
        for of in (
            program(h, g),
            program(h, g, np.eye(size), np.zeros(size)),
            program(h, g, some, right, len(some)),
            program(
                h, g, np.vstack([some, some.sum(0), np.eye(size)]), [*right, right.sum(), *np.ones(size)], len(some) + 1
            ),
            program(h, g, np.vstack([some, 2 * some, some]), np.concatenate([right, 2 * right, right]), 2 * len(some)),
        ):
            if not (of.p == of.p.T).all():
                assert_known(of)


SKEW = np.array([[0.0, -3, 0], [3, 0, 1], [0, -1, 0]])


def declared(q: np.ndarray, constraints: Callable[[cp.Variable], list[cp.Constraint]]) -> hf.Problem:
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    return hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.Equilibrium(y, SKEW @ y + q + 0 * x, constraints(y)))


def test_a_declared_equilibrium_of_a_skew_map_over_a_box_is_solved() -> None:
    q = np.array([-2.0, 1, -1.5])
    y = declared(q, lambda y: [y >= -1, y <= 2]).implicit.response(0.0)
    force = SKEW @ y + q
    assert force @ y == pytest.approx(np.where(force > 0, -force, 2 * force).sum(), abs=1e-12)


@pytest.mark.parametrize("constraints", [lambda y: [], lambda y: [y[1] >= -1], lambda y: [y[1] + y[0] == 1]])
def test_a_map_that_pulls_y_to_infinity_is_said_to(constraints: Callable[[cp.Variable], list[cp.Constraint]]) -> None:
    """Along (1, 0, 3) nothing but q is felt."""
    problem = declared(np.array([-2.0, 1, -1.5]), lambda y: [*constraints(y), y[2] >= 0])
    with pytest.raises(hf.LowerLevelError, match="pulls y to infinity") as told:
        problem.implicit(0.0)
    assert "infimum" not in str(told.value) and "convex" not in str(told.value)


def test_an_equilibrium_that_is_not_solved_may_have_no_solution() -> None:
    """F = (y_2 + 1, -y_1 - 1) where y_1 pays for both: not monotone, and pulled along y_2 for ever."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    turning = np.array([[0.0, 1.0], [-3.0, 0.0]])
    level = hf.Equilibrium(y, turning @ y + np.array([1.0, -1.0]) + 0 * x, [y >= 0])
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), level)
    with pytest.raises(hf.LowerLevelError, match="may have no solution") as told:
        problem.implicit(0.0)
    assert "infimum" not in str(told.value) and "objective" not in str(told.value)
