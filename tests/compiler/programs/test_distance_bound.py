"""Bounds on errors of y hold, against solutions in 50 digits: rows by enumeration, balls by their multiplier, cones by their projections."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import mpmath as mp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.programs.cones import NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE, ZERO, Cone, triangle
from hierfl.compiler.programs.convex_program import SOLVED, ConvexProgram
from hierfl.compiler.programs.distance_bound import distance_bound
from hierfl.compiler.programs.solve_program import solve_program

Exact = Sequence[Any]  # numbers of 50 digits


@pytest.fixture(autouse=True)
def many_digits() -> Any:
    with mp.workdps(50):
        yield


def exact(values: Any) -> list[Any]:
    return [mp.mpf(float(v)) for v in np.ravel(values)]


def distance(u: np.ndarray, solution: Exact) -> float:
    return float(mp.sqrt(sum((a - b) ** 2 for a, b in zip(exact(u), solution))))


def by_enumeration(h: np.ndarray, g: np.ndarray, a: np.ndarray, b: np.ndarray) -> Exact:
    """The minimiser over a u + b >= 0, of all sets of rows the one whose conditions hold."""
    n, m = len(g), len(b)
    for held in itertools.chain.from_iterable(itertools.combinations(range(m), k) for k in range(min(n, m) + 1)):
        rows = a[list(held)]
        system = np.block([[h, -rows.T], [rows, np.zeros((len(held), len(held)))]])
        right = -mp.matrix(exact(np.concatenate([g, b[list(held)]])))
        try:
            pair = list(mp.lu_solve(mp.matrix([exact(row) for row in system]), right))
        except ZeroDivisionError:
            continue
        left = [mp.fdot(exact(row), pair[:n]) + mp.mpf(float(c)) for row, c in zip(a, b)]
        if min([*pair[n:], mp.mpf(0)]) >= -(mp.mpf(10) ** -40) and min(left) >= -(mp.mpf(10) ** -30):
            return pair[:n]
    raise AssertionError("no set of rows solves it")


@pytest.mark.parametrize("seed", range(6))
def test_rows_in_all_units(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for k in range(40):
        n, m = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        root = rng.normal(size=(n, n))
        h = (root @ root.T + 0.1 * np.eye(n)) * 10 ** rng.uniform(-3, 3)
        g, b = rng.normal(size=n) * 10 ** rng.uniform(-4, 6), rng.normal(size=m) * 10 ** rng.uniform(-3, 3)
        a = rng.normal(size=(m, n)) * 10 ** rng.uniform(-2, 2, size=(m, 1))
        if k % 3 == 0:  # rows that depend on each other, without coefficients, held by nothing
            h, g, a, b = np.round(8 * h) / 8 + np.eye(n), np.round(g), np.round(2 * a) / 2, np.round(b)
        h = 0.5 * (h + h.T)
        program = ConvexProgram.of(h, g, a, b, [Cone(NONNEGATIVE, m)])
        answer = solve_program(program)
        if answer.status != SOLVED:  # about one set in four is empty
            continue
        bound = distance_bound(program, answer.u, answer.z, float(np.linalg.eigvalsh(h)[0]) * (1 - 1e-12))
        assert distance(answer.u, by_enumeration(h, g, a, b)) <= bound <= 1e-7 * (1 + np.linalg.norm(answer.u))


def second_order(rng: np.random.Generator, degenerate: bool) -> tuple[np.ndarray, Exact, Cone]:
    """(a point, the nearest one of a cone, that cone)."""
    n = int(rng.integers(2, 5))
    p = rng.normal(size=n) * 10 ** rng.uniform(-3, 3)
    p[0] = np.linalg.norm(p[1:]) * rng.choice([-1, 1]) if degenerate else p[0]
    t, size = mp.mpf(float(p[0])), mp.norm(exact(p[1:]))
    mean = (t + size) / 2
    nearest = [mean, *(mean * w / size for w in exact(p[1:]))]
    return p, exact(p) if size <= t else [mp.mpf(0)] * n if size <= -t else nearest, Cone(SECOND_ORDER, n)


def semidefinite(rng: np.random.Generator, degenerate: bool) -> tuple[np.ndarray, Exact, Cone]:
    order = int(rng.integers(2, 4))
    matrix = rng.normal(size=(order, order)) * 10 ** rng.uniform(-3, 3)
    v = rng.integers(-2, 3, order).astype(float)
    matrix = np.outer(v, v) - rng.integers(2) * np.eye(order) if degenerate else 0.5 * (matrix + matrix.T)
    values, vectors = mp.eigsy(mp.matrix(matrix.tolist()))
    nearest = vectors * mp.diag([max(value, 0) for value in values]) * vectors.T
    basis = triangle(order)
    p = basis @ np.ravel(matrix, order="F")
    return p, [mp.fdot(exact(row), list(nearest)) for row in basis], Cone(SEMIDEFINITE, len(p), order)


@pytest.mark.parametrize("degenerate", [False, True])
@pytest.mark.parametrize("draw", [second_order, semidefinite])
@pytest.mark.parametrize("seed", range(3))
def test_cones(seed: int, draw: Any, degenerate: bool) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        p, solution, cone = draw(rng, degenerate)
        program = ConvexProgram.of(np.eye(len(p)), -p, np.eye(len(p)), np.zeros(len(p)), [cone])
        answer = solve_program(program)
        bound = distance_bound(program, answer.u, answer.z, 1.0)
        # entries of a matrix's basis are sqrt(2), to rounding
        slack = 1e-15 * np.linalg.norm(p) if cone.kind == SEMIDEFINITE else 0.0
        assert distance(answer.u, solution) <= bound + slack and bound <= 1e-8 * (1 + np.linalg.norm(p))


def test_nothing_is_proved_without_a_modulus_and_of_rows_that_contradict_each_other() -> None:
    program = ConvexProgram.of(np.eye(1), np.zeros(1), np.ones((2, 1)), np.array([0.0, -1e-9]), [Cone(ZERO, 2)])
    assert distance_bound(program, np.zeros(1), np.zeros(2), 0.0) == np.inf
    assert distance_bound(program, np.zeros(1), np.zeros(2), 1.0) == np.inf


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_squares_whose_residuals_cancel(size: float) -> None:
    """Data across the columns leave no more than rounding in the gradient, and that rounding is theirs."""
    rng = np.random.default_rng(0)
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    for _ in range(10):
        matrix, b, at = rng.normal(size=(6, 2)), rng.normal(size=6) * size, rng.normal(size=2)
        b -= matrix @ np.linalg.lstsq(matrix, b, rcond=None)[0]
        cost = cp.sum_squares(matrix @ y - b) + cp.sum_squares(y - x)
        lower = hf.ArgMin(y, cost, [y[0] + y[1] <= 50, y[0] - 2 * y[1] <= 50])
        implicit = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower).implicit
        rows = mp.matrix([exact(row) for row in matrix])
        solution = mp.lu_solve(rows.T * rows + mp.eye(2), rows.T * mp.matrix(exact(b)) + mp.matrix(exact(at)))
        bound = implicit.certificate(at).error_bound
        assert distance(implicit.response(at), list(solution)) <= bound <= 1e-11 + 1e-12 * size


@pytest.mark.parametrize("eps", [1e-3, 1e-6])
def test_a_cone_that_holds_nothing_widens_no_bound(eps: float) -> None:
    """min |u - c|^2 / 2 over |u| <= 10, inside of which c is."""
    centre = np.array([1.0, -2.0])
    a, b = np.vstack([np.zeros(2), np.eye(2)]), np.array([10.0, 0.0, 0.0])
    program = ConvexProgram.of(np.eye(2), -centre, a, b, [Cone(SECOND_ORDER, 3)])
    found = distance_bound(program, centre + eps * np.array([0.6, 0.8]), np.zeros(3), 1.0)
    assert eps <= found <= eps * 1.001 + 1e-12
