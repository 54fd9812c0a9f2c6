"""Averages of maxima over many rows of data: against sorted data, linear programs by HiGHS and optimality conditions."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import hierfl as hf
from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cone_solution import EMPTY, SOLVED, UNBOUNDED
from hierfl.compiler.host.families.program_family import ProgramFamily
from hierfl.compiler.host.rows.greatest_pieces import MANY, GreatestPieces
from hierfl.compiler.host.standard_form import NONNEGATIVE, Cone


def maxima(
    h: np.ndarray, g: np.ndarray, costs: np.ndarray, slopes: np.ndarray, offsets: np.ndarray, more: np.ndarray
) -> ConeProgram:
    """v'hv/2 + g'v + sum_j costs_j max_i (slopes_ij'v + offsets_ij) over more [v; 1] >= 0; slopes (t, pieces, v)."""
    count, pieces, width = slopes.shape
    whole = np.zeros((width + count, width + count))
    whole[:width, :width] = h
    a = np.zeros((count * pieces, width + count))
    a[:, :width] = -slopes.reshape(-1, width)
    a[np.arange(len(a)), width + np.arange(len(a)) // pieces] = 1.0
    a = np.vstack([a, np.hstack([more[:, :width], np.zeros((len(more), count))])])
    b = np.concatenate([-offsets.ravel(), more[:, width]])
    return ConeProgram(whole, np.concatenate([g, costs]), a, b, [Cone(NONNEGATIVE, len(b))], count)


def test_few_entries_are_left_to_the_solver_of_all_rows() -> None:
    nothing = np.zeros((0, 2))
    few = maxima(np.eye(1), np.ones(1), np.ones(MANY - 1), np.ones((MANY - 1, 2, 1)), np.zeros((MANY - 1, 2)), nothing)
    assert GreatestPieces.of(few) is None
    many = maxima(np.eye(1), np.ones(1), np.ones(MANY), np.ones((MANY, 2, 1)), np.zeros((MANY, 2)), nothing)
    found = GreatestPieces.of(many)
    assert found is not None and list(found.entries) == list(range(1, MANY + 1))


@settings(max_examples=60)
@given(
    data=st.lists(st.integers(-3, 3), min_size=MANY, max_size=150),
    twentieths=st.integers(1, 19),
    weight=st.sampled_from([0.0, 1e-6, 0.1, 10.0]),
)
def test_quantiles_of_data_with_ties(data: list[int], twentieths: int, weight: float) -> None:
    """weight v^2 / 2 + sum_j max(level (d_j - v), (1 - level) (v - d_j)): the slopes on both sides of v have 0 between them."""
    q, d = twentieths / 20, np.array(data, float)
    slopes = np.tile(np.array([[-q], [1 - q]]), (len(d), 1, 1))
    offsets = np.stack([q * d, -(1 - q) * d], axis=1)
    program = maxima(np.array([[weight]]), np.zeros(1), np.ones(len(d)), slopes, offsets, np.zeros((0, 2)))
    answer = program.solve()
    assert answer.status == SOLVED and answer.error <= 1e-13
    v = answer.u[0]
    rounding = 1e-12 * len(d)
    right = weight * v + (1 - q) * np.sum(d <= v + rounding) - q * np.sum(d > v + rounding)
    left = weight * v + (1 - q) * np.sum(d < v - rounding) - q * np.sum(d >= v - rounding)
    assert left <= rounding and right >= -rounding
    assert answer.u[1:] == pytest.approx(np.maximum(q * (d - v), (1 - q) * (v - d)), abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_regressions_to_quantiles_have_the_cost_of_the_linear_program(seed: int) -> None:
    """Three coefficients, bounds on them that hold, rows that are repeated, no curvature: several answers, one cost."""
    rng = np.random.default_rng(seed)
    count, q = 200, 0.8
    features = rng.integers(-2, 3, (count, 3)).astype(float)
    goals = features @ [1.0, -2.0, 0.5] + rng.integers(-2, 3, count)
    slopes = np.stack([-q * features, (1 - q) * features], axis=1)
    offsets = np.stack([q * goals, -(1 - q) * goals], axis=1)
    more = np.hstack([np.vstack([np.eye(3), -np.eye(3)]), np.full((6, 1), 0.9)])
    answer = maxima(np.zeros((3, 3)), np.zeros(3), np.ones(count), slopes, offsets, more).solve()
    assert answer.status == SOLVED and answer.error <= 1e-12
    v = answer.u[:3]
    assert np.abs(v).max() <= 0.9 + 1e-12
    halves = np.hstack([features, np.eye(count), -np.eye(count)])  # goals = features v + over - under
    best = linprog(
        np.concatenate([np.zeros(3), np.full(count, q), np.full(count, 1 - q)]),
        A_eq=halves,
        b_eq=goals,
        bounds=[(-0.9, 0.9)] * 3 + [(0, None)] * (2 * count),
        method="highs",
    )
    left = goals - features @ v
    assert np.sum(np.maximum(q * left, (q - 1) * left)) == pytest.approx(best.fun, rel=1e-10)


def test_none_and_no_end_are_told() -> None:
    slopes, offsets = np.tile([[1.0], [0.0]], (100, 1, 1)), np.stack([np.arange(100.0), np.zeros(100)], axis=1)
    endless = maxima(np.zeros((1, 1)), np.array([5.0]), np.full(100, 1e-3), slopes, offsets, np.zeros((0, 2)))
    assert endless.solve().status == UNBOUNDED
    none = maxima(np.eye(1), np.zeros(1), np.ones(100), slopes, offsets, np.array([[1.0, -2.0], [-1.0, 1.0]]))
    assert none.solve().status == EMPTY


@pytest.mark.parametrize("scope", ["federation", "client"])
def test_support_vectors_of_hundreds_of_rows(scope: str) -> None:
    """Of two uneven clients; the gradient against differences, and y by what balances at it."""
    rng = np.random.default_rng(3)
    x, w = cp.Variable(nonneg=True, name="x"), cp.Variable(4, name="w")
    a, b = hf.Sample(4, name="a"), hf.Sample(name="b")
    sizes, weight = (310, 90), 0.3
    data = [rng.normal(size=(n, 4)) for n in sizes]
    labels = [np.sign(d @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=len(d))) for d in data]
    lower = hf.ArgMin(w, hf.E(cp.pos(1 - b * (a @ w))) + (weight + x) / 2 * cp.sum_squares(w), scope=scope)
    clients = [hf.Client({a: d, b: label}) for d, label in zip(data, labels)]
    implicit = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(w - 1)), lower, federation=hf.Federation(clients, weights="uniform")
    ).implicit
    step = 1e-6
    slope = (implicit(0.2 + step) - implicit(0.2 - step)) / (2 * step)
    assert implicit.gradient(0.2) == pytest.approx(slope, rel=1e-6)
    answers = np.broadcast_to(np.asarray(implicit.response(0.2)), (2, 4))
    pulls = []
    for answer, d, label in zip(answers, data, labels):
        margin = 1 - label * (d @ answer)
        inside, at = margin > 1e-10, np.abs(margin) <= 1e-10
        pulls.append((-(label[inside, None] * d[inside]).sum(axis=0) / len(d), -(label[at, None] * d[at]) / len(d)))
    groups = (
        [([0.5, 0.5], pulls, answers[0])]
        if scope == "federation"
        else [([1.0], [p], y) for p, y in zip(pulls, answers)]
    )
    for shares, some, answer in groups:
        firm = sum(s * p for s, (p, _) in zip(shares, some)) + (weight + 0.2) * answer
        loose = np.vstack([s * q for s, (_, q) in zip(shares, some)])
        parts = np.linalg.lstsq(loose.T, -firm, rcond=None)[0] if len(loose) else np.zeros(0)
        assert np.linalg.norm(firm + loose.T @ parts) <= 1e-12
        assert (parts >= -1e-9).all() and (parts <= 1 + 1e-9).all()


@pytest.mark.parametrize("count", [20, 63, 64, 200])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e7])
def test_units_of_the_data_do_not_matter(count: int, scale: float) -> None:
    """Data and weight times a number leave y where it is, and all its derivatives."""
    data = np.random.default_rng(1).normal(size=(count, 3))

    def implicit_of(unit: float) -> Any:
        x, y, d = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(3, name="d")
        lower = hf.ArgMin(y, hf.E(cp.abs(d[:2] @ y - d[2])) + 0.05 * unit * cp.sum_squares(y - x))
        federation = hf.Federation([hf.Client({d: unit * data})])
        return hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), lower, federation=federation).implicit

    one, scaled = implicit_of(1.0), implicit_of(scale)
    for at in (np.zeros(2), np.array([0.3, -2.0])):
        assert scaled.response(at) == pytest.approx(one.response(at), abs=1e-10)
        assert scaled.gradient(at) == pytest.approx(one.gradient(at), abs=1e-8)


@pytest.mark.parametrize("count", [40, 63, 64, 200])
def test_between_and_beyond_all_data(count: int) -> None:
    """No row holds its kink there: y moves as x does."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    lower = hf.ArgMin(y, hf.E(2 * cp.pos(d - y) + cp.pos(y - d)) + 0.05 * cp.square(y - x))
    federation = hf.Federation([hf.Client({d: np.arange(count) * 1.0})])
    implicit = hf.Problem(hf.Minimize(clients=cp.square(y)), lower, federation=federation).implicit
    for at, shift in ((-100.0, 20.0), (count + 100.0, -10.0)):
        assert implicit.response(at) == pytest.approx(at + shift, rel=1e-14)
        assert implicit.gradient(at) == pytest.approx(2 * (at + shift), rel=1e-12)


@pytest.mark.parametrize("sizes", [(1, 35, 220), (1, 300), (130,)], ids=str)
def test_whole_numbers_at_uneven_clients(sizes: tuple[int, ...]) -> None:
    """Values that are repeated, and a client of one row, which stands there as often as the largest has rows: each its own quantile."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    lower = hf.ArgMin(y, hf.E(4 * cp.pos(d - y) + 0.5 * cp.pos(y - d)) + x * y + 0.02 * cp.square(y), scope="client")
    rng = np.random.default_rng(4)
    data = [rng.poisson(4, n).astype(float) for n in sizes]
    federation = hf.Federation([hf.Client({d: one}) for one in data])
    implicit = hf.Problem(hf.Minimize(clients=cp.square(y)), lower, federation=federation).implicit
    for at in (0.0, 0.4, 1.7):
        for answer, one in zip(np.ravel(implicit.response(at)), data):
            right = 0.5 * np.mean(one <= answer + 1e-12) - 4 * np.mean(one > answer + 1e-12) + at + 0.04 * answer
            left = 0.5 * np.mean(one < answer - 1e-12) - 4 * np.mean(one >= answer - 1e-12) + at + 0.04 * answer
            assert left <= 1e-12 and right >= -1e-12
        step = 1e-6
        slopes = [(implicit(at + s * step) - implicit(at)) / (s * step) for s in (1, -1)]
        assert min(abs(implicit.gradient(at) - slope) for slope in (*slopes, np.mean(slopes))) < 1e-6


def test_twins_share_the_multipliers_of_their_rows() -> None:
    slopes, offsets = np.tile([[-0.75], [0.25]], (70, 1, 1)), np.zeros((70, 2))
    costs = np.arange(1.0, 71.0)
    answer = maxima(np.eye(1), np.array([300.0]), costs, slopes, offsets, np.zeros((0, 2))).solve()
    assert answer.status == SOLVED and answer.error <= 1e-14 and abs(answer.u[0]) <= 1e-12
    pulls = answer.z.reshape(70, 2)
    assert pulls.sum(axis=1) == pytest.approx(costs, rel=1e-13)
    assert (pulls @ [-0.75, 0.25]).sum() == pytest.approx(-300.0, rel=1e-12)


def test_programs_with_twins_are_solved_together() -> None:
    """Whole numbers, each repeated, below costs that move: as the sorted data say, with multipliers that add up for each value."""
    rng = np.random.default_rng(5)
    data = rng.poisson(3, 90).astype(float)
    count, forces = len(data), rng.uniform(-20.0, 20.0, 12)
    slopes = np.tile([[-0.75], [0.25]], (count, 1, 1))  # max(0.75 (d - v), 0.25 (v - d))
    offsets = np.column_stack([0.75 * data, -0.25 * data])
    programs = [
        maxima(0.5 * np.eye(1), np.array([force]), np.ones(count), slopes, offsets, np.zeros((0, 2)))
        for force in forces
    ]
    stacks = (np.stack([getattr(one, name) for one in programs]) for name in ("h", "g", "a", "b"))
    family = ProgramFamily.of(stacks, programs[0].cones, count, 1)
    for answer, program, force in zip(family.solve(), programs, forces):
        assert answer.status == SOLVED and program.error(answer.u, answer.z) <= 1e-13
        v = answer.u[0]
        right = 0.25 * np.sum(data <= v + 1e-12) - 0.75 * np.sum(data > v + 1e-12) + force + 0.5 * v
        left = 0.25 * np.sum(data < v - 1e-12) - 0.75 * np.sum(data >= v - 1e-12) + force + 0.5 * v
        assert left <= 1e-11 and right >= -1e-11


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_where_alike_rows_hold(weighted: bool) -> None:
    """Two entries of y, one between the data and one at a value that is repeated: 1 / curvature, and 0; twins' rows move alike with x."""
    x, y, d = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="d")
    data = np.repeat([[0.0, 4.0], [1.0, 7.0], [5.0, 7.0]], [30, 40, 30], axis=0)
    pull = cp.sum(cp.pos(d * (1 + x[1]) - y)) if weighted else cp.sum(cp.pos(d - y))
    lower = hf.ArgMin(y, hf.E(pull) + 0.5 * cp.sum_squares(y) - x[0] * cp.sum(y))
    implicit = hf.Problem(
        hf.Minimize(clients=y[0] + 10 * y[1]), lower, federation=hf.Federation([hf.Client({d: data})])
    ).implicit
    # y_0 = x_0 + P(d_0 > y_0) beyond all d_0, and y_1 = 7 (1 + x_1), where y_1 - x_0 is between 0 and P(d_1 = 7) = 0.7
    at = np.array([6.5, 0.0])
    found = np.ravel(implicit.response(at))
    assert found == pytest.approx([6.5, 7.0], abs=1e-12)
    assert np.ravel(implicit.gradient(at)) == pytest.approx([1.0, 70.0 if weighted else 0.0], abs=1e-9)
