"""The catalogue of bilevel problems is right: its answers, minima and kinks by means that share nothing with hierfl's engines."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.bilevel_answers import NoAnswer
from tests.bilevel_case import Case, Line, is_smooth, number
from tests.bilevel_catalogue import CATALOGUE, LITERATURE

TIGHT = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)

each_case = pytest.mark.parametrize("case", CATALOGUE, ids=str)
with_lines = pytest.mark.parametrize("case", [case for case in CATALOGUE if case.lines], ids=str)
with_optima = pytest.mark.parametrize("case", [case for case in CATALOGUE if case.least is not None], ids=str)


def test_there_are_enough_problems_of_the_literature() -> None:
    assert len(LITERATURE) >= 14
    assert len({case.name for case in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@each_case
def test_answers_solve_the_declared_lower_level(case: Case) -> None:
    """Feasible, and no dearer than what CVXPY finds; of an equilibrium, the cheapest against its own forces."""
    for x in case.places():
        for data in [()] if case.data is None else [(u,) for u in case.data[::3]]:
            y, z = case.answer(x, *data), cp.Variable(case.size)
            violation = max((float(np.max(row.violation())) for row in case.rows(x, cp.Constant(y), *data)), default=0)
            assert violation <= 1e-9 * (1 + np.abs(y).max())
            if case.level is hf.Equilibrium:
                force = np.asarray(number_array(case.lower(x, y, *data)))
                cost, own = force @ z, float(force @ y)
            else:
                cost, own = case.lower(x, z, *data), number(case.lower(x, y, *data))
            best = cp.Problem(cp.Minimize(cost), case.rows(x, z, *data)).solve(solver=cp.CLARABEL, **TIGHT)
            assert own == pytest.approx(best, abs=1e-7 * (1 + abs(best)))
            if case.level is not hf.Equilibrium:
                np.testing.assert_allclose(y, z.value, atol=2e-3 * (1 + np.abs(y).max()))


def number_array(value: object) -> np.ndarray:
    return np.asarray(value.value if isinstance(value, cp.Expression) else value, float)


@each_case
def test_points_are_generic(case: Case) -> None:
    for point in map(np.array, case.points):
        assert case.holds(point) and is_smooth(case.value, point.astype(float))


@with_lines
def test_the_kinks_are_all_the_kinks(case: Case) -> None:
    for line in case.lines:
        assert case.holds(line.at(-line.radius)) and case.holds(line.at(line.radius))
        for t in line.kinks:
            left, right = case.slopes(line, t)
            assert abs(left - right) > 1e-4
        assert not bends_elsewhere(case, line)


def bends_elsewhere(case: Case, line: Line) -> list[float]:
    """Places of a grid, away from the kinks, where the slopes of two steps before and after differ by more than curvature allows."""
    grid = np.linspace(-line.radius, line.radius, 801)
    step = grid[1] - grid[0]
    f = np.array([case.value(line.at(t)) for t in grid])
    bend = np.abs(np.diff(f, 2)) / step
    middle = grid[1:-1]
    usual = np.median(np.abs(np.diff(bend))) + np.maximum(np.roll(bend, 3), np.roll(bend, -3))
    far = np.array([all(abs(t - kink) > 5 * step for kink in line.kinks) for t in middle])
    return [float(t) for t in middle[far & (bend > 3 * usual + 1e-5)]]


@with_optima
def test_minima_are_global(case: Case) -> None:
    assert case.least is not None
    for x in case.optima:
        assert case.holds(np.array(x)) and case.value(np.array(x)) == pytest.approx(case.least, abs=1e-8)
    assert case.least - 1e-7 <= searched(case) <= case.least + 1e-5


def searched(case: Case) -> float:
    """The least value on a grid of X, and on ever smaller grids around its best points."""

    def at(x: np.ndarray) -> float:
        try:
            return case.value(x) if case.holds(x) else np.inf
        except NoAnswer:
            return np.inf

    low, high = np.array(case.low, float), np.array(case.high, float)
    count = 801 if len(low) == 1 else 17
    axes = [np.linspace(a, b, count) for a, b in zip(low, high)]
    ranked = sorted((at(np.array(x)), x) for x in product(*axes))
    best = ranked[0][0]
    for value, start in ranked[:: max(1, len(ranked) // 4000)][:3]:
        centre, width = np.array(start), (high - low) / (count - 1)
        for _ in range(45):
            nearby = [np.linspace(max(a, c - w), min(b, c + w), 5) for a, b, c, w in zip(low, high, centre, width)]
            value, centre = min((at(np.array(x)), x) for x in product(*nearby))
            centre, width = np.array(centre), 0.6 * width
            best = min(best, value)
    return best
