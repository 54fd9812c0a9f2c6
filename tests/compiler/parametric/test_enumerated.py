"""The catalogue of bilevel problems, and 100 random degenerate polyhedra, by every engine, against enumerations and formulas.

The polyhedra are Y(x) = {y: (A + x_1 A') y <= b + B x, E y == e + D x} with repeated rows, rows that force entries to a value, rows without
variables and redundant equations, so that multipliers are not unique; y(x) is unique all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.bilevel_answers import quadratic_answer
from tests.bilevel_case import Case, gradient_by_differences, is_smooth
from tests.bilevel_catalogue import CATALOGUE
from tests.compiler.parametric.engines import NEAR, Engine, near

KINK_PLACE, KINK_SLOPE = 1e-12, 1e-8  # slopes are seen from 1e-8 of the radius

each_case = pytest.mark.parametrize("case", CATALOGUE, ids=str)
with_lines = pytest.mark.parametrize("case", [case for case in CATALOGUE if case.lines], ids=str)
with_optima = pytest.mark.parametrize("case", [case for case in CATALOGUE if case.least is not None], ids=str)


@cache
def problem_of(case_name: str, engine: Engine) -> hf.Problem:
    """Declared once for all questions, as users do."""
    return engine(next(case for case in CATALOGUE if case.name == case_name).declare())


@each_case
def test_values_responses_error_bounds_and_gradients(case: Case, engine: Engine) -> None:
    implicit = problem_of(case.name, engine).implicit
    for x in case.places():
        near(implicit(x), case.value(x))
        answer, expected = np.asarray(implicit.response(x)), case.response(x)
        near(answer, expected)
        error = np.abs(answer.ravel() - expected.ravel()).max()
        assert error <= implicit.certificate(x).error_bound + 1e-14 * (1 + np.abs(expected).max())
    for x in map(np.array, case.points):
        near(implicit.gradient(x), case.gradient(x))


@with_lines
def test_kinks(case: Case, engine: Engine) -> None:
    problem = problem_of(case.name, engine)
    for line in case.lines:
        kinks = problem.implicit.slice(
            np.array(line.centre, float), line.unit, line.radius, points=101, progress=False
        ).kinks
        assert len(kinks) == len(line.kinks), str(kinks)
        for kink, t in zip(kinks, line.kinks):
            near(kink.t, t, KINK_PLACE)
            near((kink.left_slope, kink.right_slope), case.slopes(line, t), KINK_SLOPE)


@pytest.mark.slow
@with_optima
def test_minima(case: Case, engine: Engine) -> None:
    found = problem_of(case.name, engine).reference(progress=False)
    near(found.value, case.least)
    distances = [np.abs(found.x - np.array(x)).max() for x in case.optima]
    assert min(distances) < 1e-4 * (1 + np.abs(found.x).max()) or case.value(found.x) <= case.least + NEAR


# --- Degenerate polyhedra.


SEEDS = range(100)
STEP = 1e-4


@dataclass(frozen=True)
class Polyhedron:
    """A lower level y'Hy/2 + (c + C x)'y over a moving degenerate polyhedron, and the leader's aims."""

    hessian: np.ndarray
    linear: np.ndarray
    linear_of_x: np.ndarray
    rows: np.ndarray
    rows_of_x: np.ndarray
    limits: np.ndarray
    limits_of_x: np.ndarray
    equal: np.ndarray
    totals: np.ndarray
    totals_of_x: np.ndarray
    aim: np.ndarray
    weights: np.ndarray
    bounds_apart: bool

    @property
    def turns(self) -> bool:
        """Whether coefficients of rows move, and not only their right-hand sides."""
        return bool(self.rows_of_x.any())

    def declare(self) -> hf.Problem:
        x, y = cp.Variable(2, name="x"), cp.Variable(len(self.linear), name="y")
        below = 0.5 * cp.quad_form(y, self.hessian) + (self.linear + self.linear_of_x @ x) @ y
        upper = 0.5 * cp.sum_squares(y - self.aim) + self.weights @ y + 0.1 * cp.sum_squares(x)
        return hf.Problem(
            hf.Minimize(clients=upper),
            lower=hf.ArgMin(y, below, self.constraints(x, y)),
            constraints=[x >= -1.5, x <= 1.5],
        )

    def constraints(self, x: Any, y: cp.Variable) -> list[Any]:
        """Y(x); x a variable or numbers (2,)."""
        rows = [self._among(x, y, slice(None))]
        if self.bounds_apart:  # the first rows are -y <= ...
            bounds = slice(0, len(self.linear))
            rows = [
                y >= -(self.limits[bounds] + self.limits_of_x[bounds] @ x),
                self._among(x, y, slice(bounds.stop, None)),
            ]
        if len(self.totals):
            rows.append(self.equal @ y == self.totals + self.totals_of_x @ x)
        return rows

    def _among(self, x: Any, y: cp.Variable, chosen: slice) -> Any:
        """Some of the inequalities."""
        left = self.rows[chosen] @ y
        if self.turns:
            left += x[0] * (self.rows_of_x[chosen] @ y)
        return left <= self.limits[chosen] + self.limits_of_x[chosen] @ x

    def answer(self, x: np.ndarray) -> np.ndarray:
        return quadratic_answer(
            self.hessian,
            self.linear + self.linear_of_x @ x,
            self.rows + x[0] * self.rows_of_x,
            self.limits + self.limits_of_x @ x,
            equal=self.equal,
            totals=self.totals + self.totals_of_x @ x,
        )

    def value(self, x: np.ndarray) -> float:
        y = self.answer(x)
        return float(0.5 * np.sum((y - self.aim) ** 2) + self.weights @ y + 0.1 * x @ x)


def polyhedron(seed: int) -> Polyhedron:
    """One of a random family; odd seeds have general Hessians, every third seed moving coefficients, half bounds apart.

    y_0 + Y x (y_0 alone where coefficients move) is in Y(x) for every x, so that no Y(x) is empty.
    """
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 5))
    turns = seed % 3 == 2
    inside, inside_of_x = rng.integers(0, 3, size).astype(float), np.zeros((size, 2))
    if not turns:
        inside_of_x = rng.integers(-1, 2, (size, 2)) / 2
    forced = rng.random(size) < 0.25 if size > 2 else np.zeros(size, bool)
    inside[forced], inside_of_x[forced] = 0, 0
    rows, turning, slack = _inequalities(rng, size, forced, turns)
    equal = _equations(rng, size, forced)
    root = rng.standard_normal((size, size))
    return Polyhedron(
        hessian=np.eye(size) if seed % 2 == 0 else root @ root.T + 0.5 * np.eye(size),
        linear=3 * rng.standard_normal(size),
        linear_of_x=4 * rng.standard_normal((size, 2)),
        rows=rows,
        rows_of_x=turning,
        limits=rows @ inside + slack,
        limits_of_x=rows @ inside_of_x + np.outer(turning @ inside, [1.0, 0.0]),
        equal=equal,
        totals=equal @ inside,
        totals_of_x=equal @ inside_of_x,
        aim=rng.standard_normal(size),
        weights=rng.standard_normal(size),
        bounds_apart=seed % 4 >= 2,
    )


def _inequalities(
    rng: np.random.Generator, size: int, forced: np.ndarray, turns: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows with their movements and their slacks at the point inside; some repeated, one without variables, some forcing."""
    rows = [*-np.eye(size), *rng.integers(-2, 3, (2, size)).astype(float)]
    turning = [np.zeros(size)] * size + [rng.integers(-1, 2, size) * (0.3 if turns else 0.0) for _ in range(2)]
    slack = [*np.where(forced, 0.0, rng.integers(0, 3, size)), *rng.integers(0, 3, 2).astype(float)]
    for copied, factor in ((int(rng.integers(len(rows))), 1.0), (int(rng.integers(len(rows))), 3.0)):
        rows, turning = [*rows, factor * rows[copied]], [*turning, factor * turning[copied]]
        slack = [*slack, factor * slack[copied]]
    if forced.any():  # their sum is at most 0, and each is at least 0
        rows, turning, slack = [*rows, forced.astype(float)], [*turning, np.zeros(size)], [*slack, 0.0]
    if rng.random() < 0.5:
        rows, turning = [*rows, np.zeros(size)], [*turning, np.zeros(size)]
        slack = [*slack, float(rng.integers(0, 2))]
    return np.array(rows), np.array(turning), np.array(slack)


def _equations(rng: np.random.Generator, size: int, forced: np.ndarray) -> np.ndarray:
    """None, or one for the free entries with its double or a row without variables, and perhaps one that forces entries."""
    equations = [forced.astype(float)] if forced.any() and rng.random() < 0.5 else []
    if rng.random() < 0.6 and size - forced.sum() >= 2:
        row = rng.integers(-1, 2, size).astype(float)
        row[np.flatnonzero(~forced)[:2]] = 1.0
        equations += [row, [2 * row, row + sum(equations), np.zeros(size)][rng.integers(3)]]
    return np.array(equations).reshape(-1, size)


def generic_points(f: Callable[[np.ndarray], float], rng: np.random.Generator, count: int) -> list[np.ndarray]:
    """Points around which f is smooth."""
    drawn = (rng.uniform(-1, 1, 2) for _ in range(100 * count))
    return list(islice((x for x in drawn if is_smooth(f, x, STEP)), count))


@pytest.mark.every_engine
@pytest.mark.parametrize("seed", SEEDS)
def test_values_responses_and_gradients(seed: int, engine: Engine) -> None:
    of = polyhedron(seed)
    problem = engine(of.declare())
    for x in generic_points(of.value, np.random.default_rng(seed + 1000), 2):
        near(problem.implicit.response(x), of.answer(x))
        near(problem.implicit(x), of.value(x))
        near(problem.implicit.gradient(x), gradient_by_differences(of.value, x, STEP), 1e-8)


def test_a_point_at_which_more_rows_hold_than_unknowns_are_there() -> None:
    """Rounding of x lets them miss each other by 2e-10, and those that go without have multipliers of 1e-4."""
    rng = np.random.default_rng(16)
    x, y, (c, d, e, g) = cp.Variable(name="x"), cp.Variable(4, name="y"), rng.normal(size=(4, 4))
    cost = 0.3 * cp.square(cp.norm1(y - c * x)) + 0.5 * cp.sum_largest(y - d * x, 2) + 0.1 * cp.sum_squares(y - e)
    level = hf.ArgMin(y, cost, [cp.norm1(y - 0.1 * x) <= 1.5])
    implicit = hf.Problem(hf.Minimize(server=cp.norm1(y - g)), level, [cp.abs(x) <= 1]).implicit
    at = -0.29211987275532275
    assert implicit(at) == pytest.approx(implicit(at - 1e-7) + 1e-7 * -0.4, abs=1e-12)
