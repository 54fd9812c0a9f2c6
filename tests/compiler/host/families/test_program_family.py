"""Families of cone programs solved together: each answer and each adjoint against the conditions, and against CVXPY."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cone_solution import EMPTY, ONE, SOLVED
from hierfl.compiler.host.families.held_systems import HeldSystems
from hierfl.compiler.host.families.program_family import ProgramFamily
from hierfl.compiler.host.standard_form import NONNEGATIVE, SECOND_ORDER, ZERO, Cone
from tests.compiler.host.test_cone_program import conditions

COUNT, WIDTH = 40, 4


def family(seed: int, curved: bool = True, degenerate: bool = False, balls: bool = False) -> ProgramFamily:
    """Random programs that differ in g and b: one equation of two twice, inequalities, perhaps each twice, perhaps a ball."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((WIDTH, WIDTH))
    h = root @ root.T + 0.1 * np.eye(WIDTH) if curved else np.zeros((WIDTH, WIDTH))
    equations = np.repeat(rng.standard_normal((1, WIDTH)), 2, axis=0)
    rows = np.vstack([np.eye(WIDTH), -np.eye(WIDTH), rng.integers(-2, 3, (3, WIDTH))])
    rows = np.vstack([rows, rows]) if degenerate else rows
    g = 5 * rng.standard_normal((COUNT, WIDTH))
    total = 0.3 * rng.standard_normal((COUNT, 1))
    inside = total * equations[0] / (equations[0] @ equations[0])  # holds the equations
    limits = np.repeat(1.0 + rng.random((COUNT, len(rows) // (2 if degenerate else 1))), 2 if degenerate else 1, axis=0)
    limits = limits.reshape(COUNT, -1) if not degenerate else np.hstack([limits[::2], limits[::2]])
    a, b = [equations, rows], [-inside @ equations.T, limits - inside @ rows.T]
    cones = [Cone(ZERO, 2), Cone(NONNEGATIVE, len(rows))]
    if balls:
        a.append(np.vstack([np.zeros(WIDTH), np.eye(WIDTH)]))
        b.append(np.hstack([np.full((COUNT, 1), 1.2), -inside]))
        cones.append(Cone(SECOND_ORDER, WIDTH + 1))
    matrix = np.vstack(a)
    stacks = np.repeat(h[None], COUNT, axis=0), g, np.repeat(matrix[None], COUNT, axis=0), np.hstack(b)
    return ProgramFamily.of(stacks, cones, 0, WIDTH)


@pytest.mark.parametrize("degenerate", [False, True])
@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_rows(seed: int, curved: bool, degenerate: bool) -> None:
    programs = family(seed, curved, degenerate)
    for k, answer in enumerate(programs.solve()):
        assert answer.status == SOLVED
        assert conditions(programs[k], answer.u, answer.z) <= 1e-11 * (1 + np.abs(answer.z).max())
        alone = programs[k].solve()
        if curved or answer.unique == ONE:
            np.testing.assert_allclose(answer.u, alone.u, atol=1e-11)


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("count", [1, 8, COUNT])
@pytest.mark.parametrize("seed", range(5))
def test_few_and_many_whose_matrices_are_their_own(seed: int, count: int, curved: bool) -> None:
    """H and A of each program are its own; few are solved by DAQP one by one, many from each other."""
    shared, rng = family(seed, curved), np.random.default_rng(seed)
    h = shared.shape.h * (1 + rng.random((COUNT, 1, 1)))
    turn = 1 + 0.1 * rng.random((COUNT, shared.b.shape[1], 1))
    stacks = h, shared.g, shared.shape.a * turn, shared.b * turn[..., 0]
    programs = ProgramFamily.of(stacks, shared.shape.cones, 0, WIDTH)
    programs = programs.among(np.arange(count))
    for k, answer in enumerate(programs.solve()):
        assert answer.status == SOLVED
        assert conditions(programs[k], answer.u, answer.z) <= 1e-11 * (1 + np.abs(answer.z).max())
        if curved or answer.unique == ONE:
            np.testing.assert_allclose(answer.u, programs[k].solve().u, atol=1e-11)


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_program_has_one_answer_in_any_company(seed: int, curved: bool) -> None:
    """To the last bit, where few are solved: runs go on from checkpoints with others in memory."""
    programs = family(seed, curved)
    first, second = programs.among(np.arange(8)).solve(), programs.among(np.array([9, 3, 6, 1])).solve()
    for here, there in ((3, 1), (6, 2), (1, 3)):
        np.testing.assert_array_equal(first[here].u, second[there].u)
        np.testing.assert_array_equal(first[here].z, second[there].z)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_linear_programs_are_not_called_empty(seed: int, scale: float) -> None:
    """Transport with dear shortage: always feasible, whatever DAQP says of a program without curvature."""
    rng = np.random.default_rng(seed)
    plants, markets = 2, 3
    size = plants * markets + markets
    serve, use = np.zeros((markets, size)), np.zeros((plants, size))
    for i in range(plants):
        for j in range(markets):
            serve[j, i * markets + j] = use[i, i * markets + j] = 1.0
    serve[:, plants * markets :] = np.eye(markets)
    cost = np.concatenate([rng.uniform(1, 3, plants * markets), rng.uniform(6, 9, markets)])
    demand, capacity = scale * rng.uniform(1, 5, markets), scale * rng.uniform(0, 8, plants)
    a = np.vstack([serve, -use, np.eye(size)])
    b = np.concatenate([-demand, capacity, np.zeros(size)])
    program = ConeProgram(np.zeros((size, size)), cost, a, b, [Cone(NONNEGATIVE, len(b))])
    answer = program.solve()
    best = linprog(cost, -a, b, method="highs", bounds=(None, None)).fun
    assert answer.status == SOLVED and cost @ answer.u == pytest.approx(best, rel=1e-9)
    nothing = ConeProgram(
        program.h,
        cost,
        np.vstack([a, -np.ones((1, size))]),
        np.append(b, 0.5 * float(demand.max())),
        [Cone(NONNEGATIVE, len(b) + 1)],
    )
    assert nothing.solve().status == EMPTY


@pytest.mark.parametrize("seed", range(6))
def test_balls(seed: int) -> None:
    """The conditions hold, those of the ball among them, and CVXPY finds nothing better."""
    programs = family(seed, balls=True)
    ball = slice(-WIDTH - 1, None)
    for k, answer in enumerate(programs.solve()):
        program = programs[k]
        e, z = program.a @ answer.u + program.b, answer.z
        size = 1e-9 * (1 + np.abs(z).max())
        assert answer.status == SOLVED
        assert np.abs(program.h @ answer.u + program.g - program.a.T @ z).max() <= size
        assert np.linalg.norm(e[ball][1:]) <= e[ball][0] + 1e-9 and np.linalg.norm(z[ball][1:]) <= z[ball][0] + size
        assert abs(z[ball] @ e[ball]) <= size
        assert np.abs(e[:2]).max() <= 1e-9 and e[2 : ball.start].min() >= -1e-9 and z[2 : ball.start].min() >= -size
        if k % 8 == 0:
            u = cp.Variable(WIDTH)
            row = program.a @ u + program.b
            within = [row[:2] == 0, row[2 : ball.start] >= 0, cp.norm(row[ball][1:]) <= row[ball][0]]
            cost = 0.5 * cp.quad_form(u, program.h) + program.g @ u
            least = cp.Problem(cp.Minimize(cost), within).solve(solver=cp.CLARABEL)
            assert 0.5 * answer.u @ program.h @ answer.u + program.g @ answer.u <= least + 1e-7 * (1 + abs(least))


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_program_has_one_answer_whatever_was_solved_before(seed: int, curved: bool) -> None:
    """To the last bit, where few are solved: rows that held before are tried first."""
    programs = family(seed, curved, degenerate=seed % 2 == 1)
    fresh = [programs.among(np.arange(first, first + 4)).solve() for first in range(0, COUNT, 4)]
    again = ProgramFamily(HeldSystems(programs.shape), programs.g, programs.b)
    for first in reversed(range(0, COUNT, 4)):
        for here, there in zip(again.among(np.arange(first, first + 4)).solve(), fresh[first // 4]):
            np.testing.assert_array_equal(here.u, there.u)
            np.testing.assert_array_equal(here.z, there.z)
    assert programs.shape.has_zero_rows or again.systems.latest is not None


@pytest.mark.parametrize("count", [1, 3, 8, COUNT])
def test_programs_without_rows(count: int) -> None:
    """One system for all, in any number of them."""
    programs, rng = family(2), np.random.default_rng(2)
    h = programs.shape.h[0]
    stacks = h[None], rng.standard_normal((COUNT, WIDTH)), np.zeros((1, 0, WIDTH)), np.zeros((COUNT, 0))
    free = ProgramFamily.of(stacks, [], 0, WIDTH)
    for some in (np.arange(count), np.arange(2), np.arange(count)):
        asked = free.among(some)
        wanted = -np.linalg.solve(h, asked.g.T).T
        np.testing.assert_allclose([answer.u for answer in asked.solve()], wanted, rtol=1e-11)
        solved, u, _ = asked.solve_from(np.ones((len(some), WIDTH)), np.zeros((len(some), 0)))
        assert solved.all()
        np.testing.assert_allclose(u, wanted, rtol=1e-11)


class _Interrupted(HeldSystems):
    """Systems for which another thread asks just after what is known has been replaced."""

    meanwhile: Callable[[], object] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in ("_stacked", "_pairs", "_determined") and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()


@pytest.mark.parametrize("asked", ["on", "adjoint", "determined"])
def test_another_thread_may_ask_between(asked: str) -> None:
    programs = family(1)
    held = programs.shape.held_at(np.stack([answer.z for answer in programs.solve()]))
    seeds = np.random.default_rng(1).standard_normal((4, WIDTH))

    def answer(systems: HeldSystems, first: int) -> Any:
        some = slice(first, first + 4)
        if asked == "determined":
            return systems.determined(held[some])
        return (
            systems.adjoint(held[some], seeds)
            if asked == "adjoint"
            else systems.on(held[some], programs.g[some], programs.b[some])
        )

    systems = _Interrupted(programs.shape)
    for first in range(0, COUNT, 4):
        systems.meanwhile = lambda first=first: answer(systems, (first + 8) % COUNT)
        for here, there in zip(answer(systems, first), answer(HeldSystems(programs.shape), first)):
            np.testing.assert_array_equal(here, there)


def test_empty_ones_among_others() -> None:
    programs = family(0)
    programs.b[3::7, 2] = -5.0  # u_1 >= 5 and u_1 <= 2
    statuses = [answer.status for answer in programs.solve()]
    assert [status == EMPTY for status in statuses] == [k % 7 == 3 for k in range(COUNT)]


@pytest.mark.parametrize("balls", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_adjoints(seed: int, balls: bool) -> None:
    """seed'u moves with g by -v, and with b by -w: as differences of solutions do."""
    programs = family(seed, balls=balls)
    answers = programs.solve()
    u, z = np.array([answer.u for answer in answers]), np.array([answer.z for answer in answers])
    rng, step = np.random.default_rng(seed), 1e-5
    seeds = rng.standard_normal((COUNT, WIDTH))
    sure, v, w = programs.adjoints(u, z, seeds)
    assert sure.sum() > COUNT // 2
    turn, shift = rng.standard_normal((COUNT, WIDTH)), rng.standard_normal(programs.b.shape)
    shift[:, 1] = shift[:, 0]  # both copies of the equation

    def moved(t: float) -> np.ndarray:
        g, b = programs.g + t * turn, programs.b + t * shift
        there = ProgramFamily(programs.systems, g, b)
        return np.array([seed @ there[k].solve().u for k, seed in enumerate(seeds)])

    slopes = (8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step)
    told = -np.sum(v * turn, axis=1) - np.sum(w * shift, axis=1)
    np.testing.assert_allclose(told[sure], slopes[sure], atol=1e-6 * (1 + np.abs(slopes[sure]).max()))
