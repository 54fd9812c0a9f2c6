"""Derivatives where cones hold without a multiplier, against differences: programs made around a solution that is as degenerate as wanted."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.programs.cones import NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE, ZERO, Cone, triangle
from hierfl.compiler.programs.convex_program import ConvexProgram
from hierfl.compiler.programs.response import ProgramResponse
from hierfl.compiler.programs.solve_program import solve_program

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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(4))
def test_one_round_cone(place: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pair = second_order(rng, place)
    check(rng, [Cone(SECOND_ORDER, len(pair[0]))], [pair], place in PLACES[:3])


@pytest.mark.parametrize("kinds", [[2, 2], [0, 2], [1, 2], [0, 1, 2], [2, 2, 0], [1, 2, 2], [0, 1]])
@pytest.mark.parametrize("seed", range(3))
def test_one_matrix(kinds: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    pair = semidefinite(rng, kinds)
    check(rng, [Cone(SEMIDEFINITE, len(pair[0]), len(kinds))], [pair], 2 in kinds)


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


@pytest.mark.parametrize("radius", [lambda x: cp.square(x), lambda x: x], ids=["square", "itself"])
def test_an_ellipsoid_that_has_shrunk_to_a_point_has_no_gradient(
    radius: Callable[[cp.Variable], cp.Expression],
) -> None:
    """No multiplier balances a force there, and those that are found tell nothing: 0 was given, which is neither slope."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    cost = 0.5 * cp.quad_form(y, np.array([[3.0, 0.5], [0.5, 1.0]])) - np.array([2.0, 1.0]) @ y
    within = cp.quad_form(y, np.array([[2.0, 1.0], [1.0, 1.0]])) <= radius(x)
    implicit = hf.Problem(hf.Minimize(clients=np.array([1.0, 0.7]) @ y), hf.ArgMin(y, cost, [within])).implicit
    with pytest.raises((hf.NoGradientError, hf.LowerLevelError)):
        implicit.gradient(0.0)


@pytest.mark.parametrize("inner", [cp.norm, cp.norm1, cp.norm_inf], ids=["2", "1", "infinity"])
def test_squares_of_norms(inner: Callable[[cp.Variable], cp.Expression]) -> None:
    """At y = 0 all that holds does so without a multiplier; y of a square of a norm is linear, and 0 was said to be its slope."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, 0.5 * cp.sum_squares(y - x) + cp.square(inner(y)))
    implicit = hf.Problem(hf.Minimize(clients=y[0] + 0.7 * y[1]), lower).implicit
    at = {cp.norm: np.zeros(2), cp.norm1: np.array([0.5, 0.1]), cp.norm_inf: np.array([0.0, 0.4])}[inner]
    step = 1e-6
    slopes = [(implicit(at + d) - implicit(at - d)) / (2 * step) for d in step * np.eye(2)]
    assert np.ravel(implicit.gradient(at)) == pytest.approx(slopes, abs=1e-7)
