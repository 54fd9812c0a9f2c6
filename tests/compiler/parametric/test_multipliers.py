"""Multipliers of the lower level satisfy the conditions of optimality, by differences of the declared functions themselves.

Where constraints are degenerate many multipliers do, so that they are not compared with anybody else's. Assumed of
``problem.implicit.multipliers(x)``: by declared constraint, in the shape and with the sign of CVXPY's ``dual_value``.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.bilevel_case import Case, central_slope, number
from tests.bilevel_catalogue import CATALOGUE
from tests.compiler.parametric.engines import Engine, near
from tests.compiler.parametric.test_catalogue import problem_of
from tests.compiler.parametric.test_degenerate_polyhedra import polyhedron

SMOOTH = [case for case in CATALOGUE if case.data is None and case.level is hf.ArgMin and case.signs is None]


def excess(constraint: Any, y: np.ndarray) -> np.ndarray:
    """By how much a declared constraint, of numbers, is exceeded at y: left minus right, of a smaller-or-equal sign."""
    return np.asarray(constraint.expr.value, float).ravel(order="F")


def require_optimal(cost: Any, rows: Any, duals: list[np.ndarray], y: np.ndarray) -> None:
    """cost and rows of a CVXPY variable: the Lagrangian is stationary at y, and what pulls holds with equality."""
    z = cp.Variable(len(y))
    declared, objective = rows(z), cost(z)

    def lagrangian(at: np.ndarray) -> float:
        z.value = at
        return number(objective) + sum(float(dual @ excess(row, at)) for row, dual in zip(declared, duals))

    slopes = [central_slope(lambda t, e=e: lagrangian(y + t * e), 1e-5) for e in np.eye(len(y))]
    near(slopes, np.zeros(len(y)), 1e-7 * (1 + max((np.abs(dual).max() for dual in duals), default=0)))
    z.value = y
    for row, dual in zip(declared, duals):
        if isinstance(row, cp.constraints.Equality):
            continue
        assert np.all(dual >= -1e-9)
        near(dual * excess(row, y), np.zeros(len(dual)), 1e-8 * (1 + np.abs(dual).max()))


def duals_of(problem: hf.Problem, x: Any) -> list[np.ndarray]:
    found = problem.implicit.multipliers(x)
    level = problem.declaration.lower_level
    assert level is not None
    return [np.atleast_1d(np.asarray(found[row], float)).ravel(order="F") for row in level.constraints]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_of_the_catalogue(case: Case, engine: Engine) -> None:
    problem = problem_of(case.name, engine)
    kinks = [line.at(t) for line in case.lines for t in line.kinks]
    for x in [*map(np.array, case.points), *kinks]:
        duals, y = duals_of(problem, x), case.answer(x)
        require_optimal(lambda z, x=x: case.lower(x, z), lambda z, x=x: case.rows(x, z), duals, y)


@pytest.mark.parametrize("seed", range(40))
def test_over_degenerate_polyhedra(seed: int, engine: Engine) -> None:
    of = polyhedron(seed)
    problem = engine(of.declare())
    for x in np.random.default_rng(seed).uniform(-1, 1, (3, 2)):

        def cost(z: Any, x: np.ndarray = x) -> Any:
            return 0.5 * cp.quad_form(z, of.hessian) + (of.linear + of.linear_of_x @ x) @ z

        require_optimal(cost, lambda z, x=x: of.constraints(x, z), duals_of(problem, x), of.answer(x))


def test_attributes_have_multipliers_and_all_are_shown_as_they_were_written() -> None:
    """y = max(0, 2 - price) costs price - 2 where it is held at zero; both hold at most 0.5 together."""
    price, y = cp.Variable(2, name="price"), cp.Variable(2, name="y", nonneg=True)
    room = cp.sum(y) <= 0.5
    problem = hf.Problem(hf.Maximize(clients=price @ y), hf.ArgMin(y, 0.5 * cp.sum_squares(y - 2) + price @ y, [room]))
    found = problem.implicit.multipliers(np.array([1.0, 5.0]))
    bound = next(constraint for constraint in found if constraint is not room)
    near(found[room], 0.5, 1e-12)
    near(found[bound], [0.0, 3.5], 1e-12)
    assert repr(found).splitlines() == ["sum(y) <= 0.5: 0.5", "y >= 0: [0. 3.5]"]


def test_of_a_map_that_is_not_affine() -> None:
    """Those of its linear model at y, which has the same conditions."""
    x, q = cp.Variable(name="x"), cp.Variable(2, name="q")
    force = [cp.power(q[0], 3) + q[1] - 2 + x, cp.power(q[1], 3) - q[0] - 1]
    level = hf.Equilibrium(q, cp.hstack(force), [q >= 0, cp.sum(q) <= 1])
    problem = hf.Problem(hf.Minimize(clients=cp.sum(q) + cp.square(x)), level)
    for at in (0.3, 2.5):
        low, most = (np.atleast_1d(np.asarray(part, float)) for part in problem.implicit.multipliers(at).values())
        y = np.ravel(problem.implicit.response(at))
        pull = np.array([y[0] ** 3 + y[1] - 2 + at, y[1] ** 3 - y[0] - 1])
        near(pull - low + most, np.zeros(2))
        assert (low >= 0).all() and most >= 0 and np.abs(low * y).max() < 1e-9 and abs(most[0] * (1 - y.sum())) < 1e-9
