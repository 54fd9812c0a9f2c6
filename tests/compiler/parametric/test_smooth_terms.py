"""Smooth functions below: their derivatives against differences, levels against CVXPY, closed forms and root finding."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import brentq

import hierfl as hf
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.programs.convex_program import ConvexProgram
from hierfl.compiler.programs.smooth_atoms import (
    ENTROPY,
    EXP,
    LOG,
    LOG_SUM_EXP,
    LOGISTIC,
    RELATIVE_ENTROPY,
    SQUARE,
    SmoothAtom,
    SmoothSum,
    SmoothTerm,
    smooth_atom_of,
)

RNG = np.random.default_rng(1)
v = cp.Variable(3)
POWERS = {p: smooth_atom_of(cp.power(v, p)).atom for p in (2.5, 3, 4, 0.5, -1)}
ATOMS: dict[str, tuple[SmoothAtom, Callable[[np.ndarray], cp.Expression], float, int]] = {  # lowest argument, block
    "square": (SQUARE, cp.square, -2.0, 1),
    "exp": (EXP, cp.exp, -2.0, 1),
    "logistic": (LOGISTIC, cp.logistic, -30.0, 1),
    "entropy": (ENTROPY, cp.entr, 0.05, 1),
    "log": (LOG, cp.log, 0.05, 1),
    "log_sum_exp": (LOG_SUM_EXP, lambda z: cp.log_sum_exp(z, axis=1), -2.0, 4),
    "relative entropy": (RELATIVE_ENTROPY, lambda z: cp.rel_entr(z[:, 0], z[:, 1]), 0.05, 2),
    **{f"power {p}": (atom, lambda z, p=p: cp.power(z, p), 0.05, 1) for p, atom in POWERS.items()},
}


@pytest.mark.parametrize("name", ATOMS)
def test_values_are_those_of_cvxpy_and_derivatives_those_of_differences(name: str) -> None:
    atom, meant, low, block = ATOMS[name]
    z = RNG.uniform(low, 3.0, (6, block))
    np.testing.assert_allclose(atom.value(z), np.ravel(meant(cp.Constant(z)).value), rtol=1e-12)
    for k, e in enumerate(1e-5 * np.eye(block)):
        np.testing.assert_allclose(atom.slope(z)[:, k], (atom.value(z + e) - atom.value(z - e)) / 2e-5, rtol=1e-5)
        differences = (atom.slope(z + e) - atom.slope(z - e)) / 2e-5
        np.testing.assert_allclose(atom.curvature(z)[:, k], differences, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("at", [-800.0, 800.0])
def test_large_arguments_do_not_overflow(at: float) -> None:
    z = np.array([[at, 0.0, -at]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert LOGISTIC.value(z[:, :1])[0] == pytest.approx(max(at, 0.0), abs=1e-300)
        assert LOG_SUM_EXP.value(z)[0] == pytest.approx(800.0)
        assert np.isfinite(LOG_SUM_EXP.curvature(z)).all() and np.isfinite(LOGISTIC.slope(z[:, :1])).all()


def test_steps_end_before_a_barrier() -> None:
    total = SmoothSum([SmoothTerm(LOG, 1, np.eye(2), np.zeros(2), -np.ones(2))])
    length = total.reach(np.array([1.0, 2.0]), np.array([-4.0, -1.0]))
    assert 0.2 < length < 0.25
    given = ConvexProgram(np.zeros((2, 2)), np.ones(2), np.zeros((0, 2)), np.zeros(0), [], 2, np.zeros((0, 2)), total)
    assert given.cost(np.array([-1.0, 1.0])) == np.inf


# --- levels ----------------------------------------------------------------------------------------------------------

M, D, T = RNG.normal(size=(6, 3)), RNG.normal(size=6), RNG.normal(size=3)
Cost = Callable[[cp.Expression, cp.Expression], cp.Expression]
LEVELS: dict[str, tuple[Cost, Callable[[cp.Expression, cp.Expression], list[cp.Constraint]]]] = {
    "exponential": (lambda x, y: cp.sum(cp.exp(M @ y)) + x @ y, lambda x, y: []),
    "logistic over a box": (lambda x, y: cp.sum(cp.logistic(M @ y + D)) + cp.sum_squares(y - x), lambda x, y: [y >= 0]),
    "entropy over a simplex": (lambda x, y: x @ y - 0.7 * cp.sum(cp.entr(y)), lambda x, y: [cp.sum(y) == 1, y <= 0.6]),
    "logarithms": (lambda x, y: -cp.sum(cp.log(1 + y)) + cp.sum_squares(y - x), lambda x, y: [cp.sum(y) <= 2]),
    "cubes": (lambda x, y: cp.sum(cp.power(y, 3)) + x @ y, lambda x, y: [cp.sum(y) >= 1]),
    "quartics": (lambda x, y: cp.sum(cp.power(M @ y - D, 4)) + x @ y, lambda x, y: []),
    "roots": (lambda x, y: -cp.sum(cp.sqrt(y)) + cp.sum_squares(y + x), lambda x, y: [y <= 3]),
    "soft maximum": (lambda x, y: cp.log_sum_exp(M @ y + D) + cp.sum_squares(y - x), lambda x, y: [y[0] + y[1] <= 0.1]),
    "in a ball": (lambda x, y: cp.sum(cp.exp(M @ y)) + x @ y, lambda x, y: [cp.norm(y) <= 0.5]),
    "with kinks": (lambda x, y: cp.sum(cp.logistic(M @ y)) + cp.norm1(y - x) + cp.sum_squares(y), lambda x, y: []),
}


def by_cvxpy(name: str, at: np.ndarray) -> np.ndarray:
    cost, rows = LEVELS[name]
    y = cp.Variable(3)
    settings = dict(tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
    cp.Problem(cp.Minimize(cost(at, y)), rows(at, y)).solve("CLARABEL", **settings)
    return np.asarray(y.value)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("name", LEVELS)
def test_levels_with_smooth_terms_are_solved_and_differentiated(name: str) -> None:
    cost, rows = LEVELS[name]
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    problem = hf.Problem(hf.Minimize(clients=T @ y + 0.5 * cp.sum_squares(y)), hf.ArgMin(y, cost(x, y), rows(x, y)))
    at = np.array([0.31, -0.22, 0.14])
    answer = by_cvxpy(name, at)
    np.testing.assert_allclose(problem.implicit.response(at), answer, atol=1e-5)
    ways = 1e-3 * np.eye(3)

    def f(point: np.ndarray) -> float:
        y = np.asarray(problem.implicit.response(point))
        np.testing.assert_allclose(y, by_cvxpy(name, point), atol=1e-5)  # what is differenced is right
        return float(T @ y + 0.5 * y @ y)

    slopes = [(8 * (f(at + e) - f(at - e)) - (f(at + 2 * e) - f(at - 2 * e))) / 12e-3 for e in ways]
    np.testing.assert_allclose(problem.implicit.gradient(at), slopes, rtol=1e-6, atol=1e-7)


# --- traffic ---------------------------------------------------------------------------------------------------------

FREE, ROOM = np.array([1.0, 1.5, 2.0, 9.0]), np.array([2.0, 3.0, 4.0, 5.0])  # the last road is never used
STEEP = 0.15


def delay(flow: np.ndarray) -> np.ndarray:
    """The Bureau of Public Roads'."""
    return FREE * (1 + STEEP * (flow / ROOM) ** 4)


def flows(tolls: np.ndarray, demand: float) -> np.ndarray:
    """On parallel roads: those in use take equally long, toll included."""

    def at(cost: float) -> np.ndarray:
        return ROOM * (np.maximum(cost - tolls - FREE, 0) / (STEEP * FREE)) ** 0.25

    return at(brentq(lambda cost: at(cost).sum() - demand, (tolls + FREE).min(), 100.0, xtol=1e-14, rtol=1e-15))


def roads(origins: int, demand: float, upper: Callable[[cp.Expression], cp.Expression]) -> hf.Problem:
    x, y = cp.Variable(4, name="x"), cp.Variable((4, origins), name="y", nonneg=True)
    flow = cp.sum(y, axis=1)
    parts = np.arange(1, origins + 1) / np.arange(1, origins + 1).sum()
    times = FREE @ flow + (STEEP / 5 * FREE / ROOM**4) @ cp.power(flow, 5)
    lower = hf.ArgMin(y, times + x @ flow, [cp.sum(y, axis=0) == demand * parts])
    return hf.Problem(hf.Minimize(clients=upper(flow)), lower)


def total_time(flow: cp.Expression) -> cp.Expression:
    return FREE @ flow + (STEEP * FREE / ROOM**4) @ cp.power(flow, 5)


@pytest.mark.parametrize("origins", [1, 3])
@pytest.mark.parametrize("demand", [3.0, 9.0, 14.0])
def test_traffic_balances_and_tolls_have_gradients_unused_roads_included(origins: int, demand: float) -> None:
    """Flows of many origins share the roads in many ways, all of which have the same flow on each road."""
    problem, tolls = roads(origins, demand, total_time), np.array([0.3, 0.1, 0.05, 0.2])
    expected = flows(tolls, demand)
    assert expected[3] == 0.0

    def time(tolls: np.ndarray) -> float:
        flow = flows(tolls, demand)
        return float(flow @ delay(flow))

    with warnings.catch_warnings():
        warnings.simplefilter("error", hf.LowerLevelWarning)  # of the shares, on which nothing depends
        assert float(problem.implicit(tolls)) == pytest.approx(time(tolls), rel=1e-9)
    found = np.reshape(problem.implicit.response(tolls), (4, origins)).sum(axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-7)
    slopes = [(time(tolls + e) - time(tolls - e)) / 2e-5 for e in 1e-5 * np.eye(4)]
    np.testing.assert_allclose(problem.implicit.gradient(tolls), slopes, rtol=1e-5, atol=1e-6)


def test_traces_of_interior_points_hold_no_row() -> None:
    """Between two data points y moves with x, however many bounds of equal rows there are beside it."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    lower = hf.ArgMin(y, hf.E(2 * cp.pos(d - y) + cp.pos(y - d)) + 0.05 * cp.square(y - x), scope="federation")
    data = hf.Federation([hf.Client({d: np.repeat([0.0, 1.0, 3.0], [5, 2, 3])})])
    problem = hf.Problem(hf.Minimize(clients=cp.square(y - 1) + 0.1 * x), lower, federation=data)
    for at in np.linspace(2.05, 3.95, 39):  # y = x - 1 there
        assert float(problem.implicit.gradient(at)) == pytest.approx(2 * (at - 2) + 0.1, rel=1e-9)


def test_a_square_of_a_positive_part_needs_no_bound_at_zero() -> None:
    """Such a bound would hold wherever the part is zero, with a multiplier of zero: the corner of every squared hinge."""
    y, rows = cp.Variable(3), np.arange(12.0).reshape(4, 3)
    for of in (cp.sum_squares, lambda e: cp.sum(cp.square(e))):
        assert LevelTemplate.of(of(cp.pos(rows @ y - 1)) + cp.sum_squares(y), [], [y]).height == 4
    assert LevelTemplate.of(cp.sum(cp.power(cp.pos(rows @ y - 1), 3)), [], [y]).height > 4  # a cube has no other side
