"""Solvers behind programs: what they say is rough, and is accepted by the optimality conditions alone."""

from __future__ import annotations

from typing import ClassVar

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

import hierfl as hf
from hierfl.compiler.programs import backends
from hierfl.compiler.programs import solve_program as module
from hierfl.compiler.programs.backends import Backend, Clarabel, Daqp, Highs, _highspy
from hierfl.compiler.programs.cones import NONNEGATIVE, SECOND_ORDER, ZERO, Cone
from hierfl.compiler.programs.convex_program import EMPTY, FAILED, SOLVED, UNBOUNDED, ConvexProgram, ProgramSolution
from hierfl.compiler.programs.solve_program import solve_program


def program(p: object, q: object, a: object, b: object, cones: list[Cone]) -> ConvexProgram:
    p, q, a, b = np.atleast_2d(np.asarray(p, float)), np.asarray(q, float), np.asarray(a, float), np.asarray(b, float)
    return ConvexProgram(p, q, a.reshape(len(b), len(q)), b, cones, len(q), p)


def random_quadratic(seed: int, width: int = 8) -> ConvexProgram:
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(width, width))
    a, inside = rng.normal(size=(width + 2, width)), rng.normal(size=width)
    room = np.r_[0.0, 0.0, rng.uniform(0, 1, width)]
    b = room - a @ inside
    return program(half @ half.T, rng.normal(size=width), a, b, [Cone(ZERO, 2), Cone(NONNEGATIVE, width)])


def by_cvxpy(given: ConvexProgram) -> float:
    u, equal = cp.Variable(given.width), given.cones[0].size  # of equations, the other rows are inequalities
    slack = given.a @ u + given.b
    cost = 0.5 * cp.quad_form(u, cp.psd_wrap(given.p)) + given.q @ u
    return float(cp.Problem(cp.Minimize(cost), [slack[:equal] == 0, slack[equal:] >= 0]).solve("CLARABEL"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("backend", [Daqp(), Clarabel()], ids=lambda b: b.name)
def test_every_solvers_answer_becomes_the_same_one(backend: Backend, seed: int) -> None:
    given = random_quadratic(seed)
    assert backend.applies(given)
    rough = backend.solve(given)
    found = module.polished(given, rough.u, rough.z)
    assert found.solved and found.error <= 1e-13
    assert given.cost(found.u) == pytest.approx(by_cvxpy(given), abs=1e-7)


@pytest.mark.parametrize("end", ["a vertex", "nowhere", "without end"])
@pytest.mark.parametrize("seed", range(4))
def test_a_linear_program_of_many_rows_is_solved_by_its_dual(seed: int, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "SIMPLEX", 0)
    rng = np.random.default_rng(seed)
    a, equal = rng.normal(size=(40, 5)), np.arange(40) < 1
    b = np.where(equal, 0.0, rng.uniform(0, 1, 40)) - a @ rng.normal(size=5)
    q = a.T @ np.where(equal, -1.0, rng.uniform(0, 1, 40))
    if end == "nowhere":
        a[-1], b[-1] = -a[-2], -b[-2] - 1.0
    if end == "without end":
        a, q = np.abs(a) * (~equal)[:, None] + np.eye(5)[0] * equal[:, None], -np.arange(5.0)
    given = program(np.zeros((5, 5)), q, a, b, [Cone(ZERO, 1), Cone(NONNEGATIVE, 39)])
    told = linprog(q, -a[1:], b[1:], a[:1], -b[:1], (None, None))
    found = solve_program(given)
    assert (found.status, told.status) == {"a vertex": (SOLVED, 0), "nowhere": (EMPTY, 2), "without end": (UNBOUNDED, 3)}[end]
    if told.status == 0:
        np.testing.assert_allclose(found.u, told.x, atol=1e-9)


def test_linear_programs_are_solved_where_highs_keeps_the_threads_of_somebody_else() -> None:
    """As after a solve of CVXPY's: HiGHS has one number of threads in a process, and another one is an error."""
    highspy = _highspy()
    highspy.Highs.resetGlobalScheduler(True)
    other = highspy.Highs()
    other.silent()
    other.setOptionValue("threads", 2)
    other.run()
    try:
        found = Highs().solve(program(0.0, [0.0], [[1.0], [-1.0]], [-1.0, 2.0], [Cone(ZERO, 1), Cone(NONNEGATIVE, 1)]))
        assert (found.status, found.u.tolist()) == (SOLVED, [1.0])
    finally:
        highspy.Highs.resetGlobalScheduler(True)


EMPTY_SETS = {
    "rows": ([[1.0], [-1.0]], [-2.0, 1.0], [Cone(NONNEGATIVE, 2)]),  # u >= 2, u <= 1
    "equations": ([[1.0], [1.0]], [-2.0, 1.0], [Cone(ZERO, 2)]),
    "a ball and a row": ([[0.0], [1.0], [1.0]], [1.0, 0.0, -3.0], [Cone(SECOND_ORDER, 2), Cone(NONNEGATIVE, 1)]),
}


@pytest.mark.parametrize("name", EMPTY_SETS)
@pytest.mark.parametrize("curved", [0.0, 1.0])
def test_empty_sets_are_told(name: str, curved: float) -> None:
    a, b, cones = EMPTY_SETS[name]
    given = program([[curved]], [1.0], a, b, cones)
    assert solve_program(given).status == EMPTY


@pytest.mark.parametrize("row, cost", [(1e-12, 1.0), (1.0, 1e-12), (1e-12, 1e-12), (1e12, 1e9)])
def test_linear_programs_of_small_numbers_are_solved(row: float, cost: float) -> None:
    """min u1 + 2 u2 over u1 + u2 >= 1000 and u >= 0, the first row and the cost in other units; its own multiplier in these."""
    given = program(np.zeros((2, 2)), [cost, 2 * cost], [[row, row], [1.0, 0.0], [0.0, 1.0]], [-1000 * row, 0.0, 0.0], [Cone(NONNEGATIVE, 3)])
    rough, found = Highs().solve(given), solve_program(given)
    assert found.solved
    for answer in (rough, found):
        np.testing.assert_allclose(answer.u, [1000.0, 0.0], atol=1e-9)
        np.testing.assert_allclose(answer.z, [cost / row, 0.0, cost], rtol=1e-9)


def test_a_small_number_beside_a_large_one_keeps_a_set_from_being_empty() -> None:
    given = program(np.zeros((2, 2)), [1.0, 1.0], [[1e-10, 1.0], [0.0, -1.0]], [-1.0 - 1e-6, 1.0], [Cone(NONNEGATIVE, 2)])
    np.testing.assert_allclose(solve_program(given).u, [1e4, 1.0], rtol=1e-6)


@pytest.mark.parametrize("seed", range(1, 40, 2))
def test_rows_of_all_sizes_that_miss_each_other_are_told(seed: int) -> None:
    """Interior points end without a word where bounds are far from 1; HiGHS says whether some u meets the rows."""
    rng = np.random.default_rng(seed)
    width, rows = int(rng.integers(1, 6)), int(rng.integers(2, 9))
    a, b = rng.normal(size=(rows, width)) * 10 ** rng.uniform(-3, 3, size=(rows, 1)), rng.normal(size=rows) * 10 ** rng.uniform(-3, 5)
    root = rng.normal(size=(width, width))
    found = solve_program(program(root @ root.T, rng.normal(size=width), a, b, [Cone(NONNEGATIVE, rows)]))
    empty = linprog(np.zeros(width), A_ub=-a, b_ub=b, bounds=(None, None)).status == 2
    assert (found.status == EMPTY) == empty and (empty or found.solved)


@pytest.mark.parametrize(
    "curvature",
    [0.0, 1.0],
)
def test_what_falls_without_end_is_told(curvature: float) -> None:
    within = program(np.diag([0.0, curvature]), [-1.0, 1.0], np.eye(2), [0.0, 0.0], [Cone(NONNEGATIVE, 2)])
    free = program(np.diag([0.0, curvature]), [-1.0, 1.0], np.zeros((0, 2)), np.zeros(0), [])
    assert [solve_program(each).status for each in (within, free)] == [UNBOUNDED] * 2


def test_proofs_are_checked() -> None:
    a, b, cones = EMPTY_SETS["rows"]
    empty = program([[0.0]], [1.0], a, b, cones)
    assert empty.shows_empty(np.array([1.0, 1.0]))
    assert not empty.shows_empty(np.array([1.0, 0.5]))  # A'z is not 0
    full = program([[0.0]], [1.0], [[1.0], [-1.0]], [2.0, 1.0], cones)
    assert not full.shows_empty(np.array([1.0, 1.0]))
    falling = program(np.zeros((2, 2)), [-1.0, 1.0], np.eye(2), [0.0, 0.0], [Cone(NONNEGATIVE, 2)])
    assert falling.shows_unbounded(np.array([3.0, 0.0]))
    assert not falling.shows_unbounded(np.array([3.0, -1.0]))  # leaves the rows
    assert not falling.shows_unbounded(np.array([0.0, 1.0]))  # rises
    cone = program(np.zeros((2, 2)), [-1.0, 0.0], np.eye(2), [0.0, 0.0], [Cone(SECOND_ORDER, 2)])
    assert cone.shows_unbounded(np.array([2.0, 1.0])) and not cone.shows_unbounded(np.array([1.0, 2.0]))  # leaves it


class Liar(Backend):
    """Says what it was told to say."""

    name: ClassVar[str] = "liar"

    def __init__(self, u: np.ndarray, z: np.ndarray) -> None:
        self.u, self.z = u, z

    def applies(self, program: ConvexProgram) -> bool:
        return True

    def solve(self, program: ConvexProgram, near: ProgramSolution | None = None) -> ProgramSolution:
        return ProgramSolution(self.u, self.z, 0.0, SOLVED)


def ridge_in_a_cone() -> ConvexProgram:
    a = np.vstack([np.zeros(2), np.eye(2)])
    return program(np.eye(2), [-3.0, -4.0], a, [1.0, 0.0, 0.0], [Cone(SECOND_ORDER, 3)])


def test_a_wrong_answer_is_none_whatever_its_author_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    given, right = ridge_in_a_cone(), [0.6, 0.8]
    for far in (Liar(np.array([9.0, -7.0]), np.array([5.0, 4.0, 1.0])), Liar(np.zeros(2), np.zeros(3))):
        assert given.judged(far.u, far.z).status == FAILED
        monkeypatch.setattr(module, "backends_for", lambda _, liar=far: [liar])
        alone = solve_program(given)
        assert not alone.solved or np.abs(alone.u - right).max() < 1e-9  # Newton's method may have mended it
        monkeypatch.setattr(module, "backends_for", lambda _, liar=far: [liar, Clarabel()])  # the next one is asked
        found = solve_program(given)
        assert found.solved
        np.testing.assert_allclose(found.u, right, atol=1e-9)


CLAIMS = [(np.zeros(2), np.zeros(2), SOLVED), (np.zeros(1), np.zeros(2), True), (np.zeros(1), 0.0, SOLVED)]  # what is no pair of the program below
CLAIMS += [(np.array(["0"]), np.zeros(2), SOLVED)]
CLAIMS += [(np.full(1, u), np.zeros(2), SOLVED) for u in (np.nan, 1e3)]
CLAIMS += [(np.zeros(1), np.array([-1.0, -1.0]), EMPTY), (np.full(1, np.nan), np.zeros(2), UNBOUNDED), (np.ones(1), np.zeros(2), UNBOUNDED)]


@pytest.mark.parametrize("claim", range(len(CLAIMS)))
def test_what_a_solver_claims_is_not_believed(claim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Clarabel):
        def solve(self, program: ConvexProgram) -> ProgramSolution:
            return ProgramSolution(*CLAIMS[claim][:2], 0.0, CLAIMS[claim][2])

    monkeypatch.setattr(backends, "BACKENDS", (Mine(), *backends.BACKENDS))
    given = program(np.zeros((1, 1)), [1.0], [[1.0], [-1.0]], [0.0, 2.0], [Cone(NONNEGATIVE, 2)])
    if claim < 4:
        with pytest.raises(TypeError, match=r"Mine.solve gives .*ProgramSolution\(u, z, error, status\) with u \(1,\), z \(2,\)"):
            solve_program(given)
    else:
        np.testing.assert_allclose(solve_program(given).u, 0.0, atol=1e-12)


class Turned(Clarabel):
    """Makes of A and b what another solver takes, where they are."""

    def solve(self, program: ConvexProgram) -> ProgramSolution:
        program.a[:] *= -1
        program.b[:] *= -1
        return super().solve(ConvexProgram.of(program.p, program.q, -program.a, -program.b, program.cones))


def test_what_a_solver_changes_in_its_program_changes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    given = random_quadratic(0)
    right = solve_program(given).u
    monkeypatch.setattr(backends, "BACKENDS", (Turned(), *backends.BACKENDS))
    np.testing.assert_allclose(solve_program(given).u, right, atol=1e-12)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ((), "has none for a linear program: .*Mine"),
        (Clarabel, "holds the class Clarabel: "),
        ((Clarabel, *backends.BACKENDS), "holds the class Clarabel: "),
        ((Turned(), backends.BACKENDS), r"holds \(<.*Highs"),
        ((Daqp(),), "has none for a linear program"),
    ],
)
def test_what_is_no_list_of_solvers_is_told(listed: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "BACKENDS", listed)
    y, x = cp.Variable(2, name="y"), cp.Variable(name="x")
    level = hf.ArgMin(y, y[0] + 2 * y[1], [cp.sum(y) >= x, y >= 0])
    with pytest.raises(TypeError, match=said):
        hf.Problem(hf.Minimize(server=cp.sum(y) + cp.square(x)), level).implicit(1.0)
