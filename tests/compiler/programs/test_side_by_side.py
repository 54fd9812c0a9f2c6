"""Many programs as one traced program of a fixed number of steps, against CVXPY, the linear system of the conditions, and the host."""


import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.lower_level import exact_lower
from hierfl.compiler.lower_level.choice import METHODS, method_for_looks
from hierfl.compiler.lower_level.methods.method import ExactMethod
from hierfl.compiler.lower_level.methods.parametric_program import MANY, BatchedInteriorPoints
from hierfl.compiler.parametric import many_programs
from hierfl.compiler.parametric.many_programs import ManyPrograms
from hierfl.compiler.parametric.many_smooth import ManyTerms
from hierfl.compiler.programs.cones import rows_of
from hierfl.compiler.programs.convex_program import ConvexProgram
from hierfl.compiler.programs.smooth_atoms import LOG

COUNT = 12


def drawn(width: int, rows: int, equal: int, seed: int, flat: bool = False, own: bool = False, twice: bool = False) -> ManyPrograms:
    """Programs in a box, with rows and equations that a point inside of it meets; ``twice`` has each equation again, in other units."""
    draw = np.random.default_rng(seed)
    p = draw.normal(size=(COUNT if own else 1, width, width))
    p = np.zeros((1, width, width)) if flat else p @ p.swapaxes(1, 2) + 0.1 * np.eye(width)
    a, inside = draw.normal(size=(equal + rows, width)), draw.uniform(-0.5, 0.5, size=(COUNT, width))
    b = -inside @ a.T + np.where(np.arange(equal + rows) < equal, 0.0, draw.uniform(0.0, 0.3, size=(COUNT, equal + rows)))
    if twice:
        a, b, equal = np.vstack([3.0 * a[:equal], a]), np.hstack([3.0 * b[:, :equal], b]), 2 * equal
    a = np.vstack([a, np.eye(width), -np.eye(width)])
    b = np.hstack([b, np.ones((COUNT, 2 * width))])
    return ManyPrograms(p, 3.0 * draw.normal(size=(COUNT, width)), a[None], b, np.arange(len(a)) < equal)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_errors_of_many_are_those_of_each(scale: float) -> None:
    """At any pair, and where forces balance, so that what is missed is that a row has both a slack and a multiplier."""
    family, draw = drawn(4, 2, 1, 3, own=True), np.random.default_rng(1)
    u, z = draw.normal(size=family.q.shape), scale * draw.uniform(size=family.b.shape)
    balanced = np.array([family.a[0].T @ z[k] - family.p[k] @ u[k] for k in range(COUNT)])
    roomy = np.where(family.equal, -u @ family.a[0].T, 5.0)
    cones = rows_of(int(family.equal.sum()), int((~family.equal).sum()))
    for q, b in ((family.q, family.b), (balanced, roomy)):
        each = [ConvexProgram.of(family.p[k], q[k], family.a[0], b[k], cones).error(u[k], z[k]) for k in range(COUNT)]
        np.testing.assert_allclose(ManyPrograms(family.p, q, family.a, b, family.equal).errors(u, z), each, rtol=1e-12)


def by_cvxpy(family: ManyPrograms, k: int) -> np.ndarray:
    u = cp.Variable(family.q.shape[1])
    p, a = family.p[k % len(family.p)], family.a[k % len(family.a)]
    sides = a @ u + family.b[k]
    rows = [sides[family.equal] == 0] * bool(family.equal.any()) + [sides[~family.equal] >= 0] * bool((~family.equal).any())
    cost = 0.5 * cp.quad_form(u, cp.psd_wrap(p)) + family.q[k] @ u
    cp.Problem(cp.Minimize(cost), rows).solve(cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return np.asarray(u.value)


def test_what_is_degenerate_is_right_or_left_to_others() -> None:
    """Each program has a row through its solution that needs no multiplier, and a bound on a variable twice."""
    family = drawn(4, 2, 0, 8)
    found = np.array([by_cvxpy(family, k) for k in range(COUNT)])
    row = np.array([1.0, -2.0, 0.5, 1.5])
    a = np.vstack([family.a[0], row, 2.0 * np.eye(4)[0]])
    b = np.hstack([family.b, -(found @ row)[:, None], np.full((COUNT, 1), 2.0)])
    tied = ManyPrograms(family.p, family.q, a[None], b, np.zeros(len(a), bool))
    answers = tied.solve(side_by_side=True)
    np.testing.assert_allclose(answers.u[answers.taken], found[answers.taken], atol=1e-6)
    assert (answers.error[answers.taken] <= 1e-13).all()


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems as they are compiled where JAX has a device: looks by the batched method."""

    def looks(in_rounds: ExactMethod) -> ExactMethod:
        return BatchedInteriorPoints(in_rounds.structure, BatchedInteriorPoints.verdict(in_rounds.structure).why)

    monkeypatch.setattr(exact_lower, "method_for_looks", looks)


A = np.random.default_rng(5).uniform(0.2, 1.0, size=(3, 4))
COST = np.array([1.0, 1.7, 1.2, 2.3])


def recourse(demand: np.ndarray, lower_end: float = 0.0, bent: float = 0.3) -> hf.Problem:
    x, y, d = cp.Variable(name="x"), cp.Variable(4, name="y"), hf.Sample(3, name="d")
    below = hf.ArgMin(y, COST @ y + bent * cp.sum_squares(y), [A @ y >= d - x, y <= 9, y >= lower_end], scope="sample")
    federation = hf.Federation([hf.Client({d: part}) for part in np.split(demand, [1, 3])])
    return hf.Problem(hf.Minimize(clients=hf.E(COST @ y) + cp.square(x)), below, federation=federation)


@pytest.mark.parametrize("bent", [0.3, 0.0])
def test_values_and_gradients_are_those_of_the_host(on_a_device: None, monkeypatch: pytest.MonkeyPatch, bent: float) -> None:
    demand = np.random.default_rng(1).uniform(0.3, 1.6, size=(60, 3))
    beside = recourse(demand, bent=bent)
    assert beside.compile().exact.method.name == BatchedInteriorPoints.name  # type: ignore[union-attr]
    asked, pairs, adjoints = [], many_programs.pairs_side_by_side, many_programs.adjoints_side_by_side
    monkeypatch.setattr(many_programs, "pairs_side_by_side", lambda *given: asked.append(pairs) or pairs(*given))
    monkeypatch.setattr(many_programs, "adjoints_side_by_side", lambda *given: asked.append(adjoints) or adjoints(*given))
    value, slope = float(beside.implicit(0.1)), float(beside.implicit.gradient(0.1))
    assert {pairs, adjoints} == {*asked}
    monkeypatch.undo()
    host = recourse(demand, bent=bent)
    assert host.compile().exact.method.name == "parametric program"  # type: ignore[union-attr]
    assert value == pytest.approx(float(host.implicit(0.1)), rel=1e-12)
    assert slope == pytest.approx(float(host.implicit.gradient(0.1)), rel=1e-10)


def test_one_that_has_no_answer_is_named(on_a_device: None) -> None:
    demand = np.full((30, 3), 1.0)
    demand[20] = 1e3
    with pytest.raises(hf.EmptyLowerSetError, match="client 2, sample 17"):
        recourse(demand).implicit(0.1)


def test_one_that_falls_without_end_is_named(on_a_device: None) -> None:
    x, y, c = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="c")
    below = hf.ArgMin(y, c @ y, [y >= -1, cp.sum(y) >= x], scope="sample")
    cost = np.ones((20, 2)) + 0.1 * np.random.default_rng(0).uniform(size=(20, 2))
    cost[7, 1] = -1.0
    problem = hf.Problem(hf.Minimize(clients=hf.E(y[0]) + cp.square(x)), below, federation=hf.Federation([hf.Client({c: cost})]))
    with pytest.raises(hf.LowerLevelError, match="sample 7.*unbounded below"):
        problem.implicit(0.1)


def test_it_is_chosen_for_many_owners_where_there_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    demand = np.random.default_rng(1).uniform(0.3, 1.6, size=(MANY, 3))
    few, many = (recourse(part).compile().exact.method_in_rounds for part in (demand[:50], demand))
    assert few is not None
    assert many is not None
    assert [method_for_looks(method).name for method in (few, many)] == ["parametric program"] * 2
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert [method_for_looks(method).name for method in (few, many)] == ["parametric program", BatchedInteriorPoints.name]
    assert BatchedInteriorPoints.name in METHODS


def test_steps_stay_inside_of_barriers_and_come_to_their_ends() -> None:
    """Entries of form u + shift are positive up to the share of a step that is told, and one is not just beyond."""
    rng = np.random.default_rng(2)
    form, u, way = rng.normal(size=(1, 4, 3)), rng.normal(size=(20, 3)), 5 * rng.normal(size=(20, 3))
    shift = rng.uniform(0.1, 3.0, (20, 4)) - u @ form[0].T  # each program's own
    told = ManyTerms(LOG, form, shift, np.ones((1, 4))).reach(u, way)
    lengths = np.stack([told, np.minimum(1.0, told / 0.99), told / 0.99 * 1.0001])
    least = [((u + t[:, None] * way) @ form[0].T + shift).min(axis=1) for t in lengths]
    assert (least[0] > 0).all() and (told > 0).all() and (least[1] >= -1e-12).all()
    assert ((least[2] < 0) | (told == 1.0)).all() and (told < 1).any() and (told == 1).any()
