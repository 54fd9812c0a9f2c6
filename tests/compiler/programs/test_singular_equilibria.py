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
from hierfl.compiler.programs.cones import (
    NONNEGATIVE,
    SECOND_ORDER,
    SEMIDEFINITE,
    ZERO,
    Cone,
    triangle,
)
from hierfl.compiler.programs.convex_program import EMPTY, SOLVED, UNBOUNDED, ConvexProgram
from hierfl.compiler.programs.response import ProgramResponse
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


# --- Derivatives where cones hold without a multiplier, against differences: programs made around a solution that is as
# degenerate as wanted.


MOVES = 3  # entries of x
STEP = 1e-5  # along x
Pair = tuple[np.ndarray, np.ndarray]


def second_order(rng: np.random.Generator, place: str) -> Pair:
    """(e, z) of a cone of three or four rows: which of both are at the apex, on the boundary or inside."""
    w = rng.normal(size=int(rng.integers(2, 4)))
    w /= np.linalg.norm(w)
    ray, opposite, inner = (np.concatenate([[1.0], share * w]) for share in (1.0, -1.0, 0.3))
    sizes = rng.uniform(0.5, 2.0, 2)
    e, z = {
        "apex without a multiplier": (0 * ray, 0 * ray),
        "apex, multiplier on the boundary": (0 * ray, opposite),
        "boundary without a multiplier": (ray, 0 * ray),
        "boundary": (ray, opposite),
        "inside": (inner, 0 * ray),
        "apex": (0 * ray, inner),
    }[place]
    return sizes[0] * e, sizes[1] * z


def semidefinite(rng: np.random.Generator, kinds: list[int]) -> Pair:
    """(e, z) of matrices of which e, z or neither has an eigenvalue for each of some eigenvectors."""
    vectors = np.linalg.qr(rng.normal(size=(len(kinds), len(kinds))))[0]
    picked = np.array(kinds)
    parts = (np.where(picked == kind, rng.uniform(0.5, 2.0, len(kinds)), 0.0) for kind in (0, 1))
    e, z = (triangle(len(kinds)) @ np.ravel((vectors * part) @ vectors.T, order="F") for part in parts)
    return e, z


Build = Callable[[np.ndarray], ConvexProgram]


def around(rng: np.random.Generator, cones: list[Cone], pairs: list[Pair]) -> tuple[Build, np.ndarray, np.ndarray]:
    """A program that moves with x, of which (e, z) are the slacks and multipliers at x = 0, and how it does; its rows are independent."""
    e, z = (np.concatenate(parts) for parts in zip(*pairs))
    width = len(e) + 2
    a = np.linalg.qr(rng.normal(size=(width, width)))[0][: len(e)] * rng.uniform(0.5, 2.0)
    root = rng.normal(size=(width, width)) / np.sqrt(width)
    h, u = root @ root.T + 0.5 * np.eye(width), rng.normal(size=width)
    b, g = e - a @ u, a.T @ z - h @ u
    force, moved = rng.normal(size=(width, MOVES)), rng.normal(size=(len(e), MOVES))
    return lambda x: ConvexProgram.of(h, g + force @ x, a, b + moved @ x, cones), force, moved


PLACES = (
    "apex without a multiplier",
    "apex, multiplier on the boundary",
    "boundary without a multiplier",
    "boundary",
    "inside",
    "apex",
)


def check(rng: np.random.Generator, cones: list[Cone], pairs: list[Pair], vague: bool) -> None:
    """The gradient is that of differences, there and back; it may be missing where what holds leaves a choice, and nowhere else."""
    build, force, moved = around(rng, cones, pairs)
    here = build(np.zeros(MOVES))
    answer = solve_program(here)
    seed, ways = rng.normal(size=here.width), rng.normal(size=(2, MOVES))
    response = ProgramResponse(lambda parts: build(parts[0]), [np.zeros(MOVES)], here, answer)
    pair = response.adjoint(seed, [[way] for way in ways])
    assert vague or pair is not None
    if pair is None:
        return
    found = -(force.T @ pair.a + moved.T @ pair.b)
    for way in (*ways, *-ways):
        along = seed @ (solve_program(build(STEP * way)).u - answer.u) / STEP
        assert found @ way == pytest.approx(along, abs=5e-3 * (1 + np.abs(found).max()))


@pytest.mark.parametrize("held", [*PLACES, [2, 2], [0, 2], [1, 2], [0, 1, 2], [2, 2, 0], [1, 2, 2], [0, 1]], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_one_cone(held: str | list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    round_one = isinstance(held, str)
    pair = second_order(rng, held) if round_one else semidefinite(rng, held)
    cone = Cone(SECOND_ORDER, len(pair[0])) if round_one else Cone(SEMIDEFINITE, len(pair[0]), len(held))
    check(rng, [cone], [pair], held in PLACES[:3] if round_one else 2 in held)


@pytest.mark.parametrize("seed", range(25))
def test_several_beside_rows(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    cones, pairs = [Cone(ZERO, 1)], [(np.zeros(1), rng.normal(size=1))]
    picked, vague = rng.integers(0, 3, 2), False
    cones.append(Cone(NONNEGATIVE, 2))
    pairs.append(((picked == 0).astype(float), (picked == 1).astype(float)))
    for _ in range(int(rng.integers(1, 3))):
        place = str(rng.choice(PLACES))
        vague |= place in PLACES[:3]
        pairs.append(second_order(rng, place))
        cones.append(Cone(SECOND_ORDER, len(pairs[-1][0])))
    kinds = [int(kind) for kind in rng.integers(0, 3, 2)]
    pairs.append(semidefinite(rng, kinds))
    cones.append(Cone(SEMIDEFINITE, 3, 2))
    check(rng, cones, pairs, vague or 2 in kinds or 2 in picked)


