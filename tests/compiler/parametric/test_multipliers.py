"""Multipliers of the lower level satisfy the conditions of optimality, by differences of the declared functions themselves.

Where constraints are degenerate many multipliers do, so that they are not compared with anybody else's. Assumed of
``problem.implicit.multipliers(x)``: by declared constraint, in the shape and with the sign of CVXPY's ``dual_value``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.bilevel_case import Case, central_slope, number
from tests.bilevel_catalogue import CATALOGUE
from tests.compiler.parametric.engines import Engine, near
from tests.compiler.parametric.test_enumerated import polyhedron, problem_of

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


# --- Vertices at which more rows meet than y has scalars, sets that have shrunk to a point: the slope within, or none,
# by name.


FORMULA = "a closed form: the largest of two bounds that meet is given the mean of their slopes"
COSTS: dict[str, Callable[[Any, Any], Any]] = {"linear": lambda x, y: y + 0 * x, "squares": lambda x, y: cp.square(y + 1) + 0 * x}
# rows for the least y, with y(x), and points with its slope, None where it has none
MEETING: dict[str, tuple[Callable[[Any, Any], list[Any]], Callable[[float], float], dict[float, float | None]]] = {
    "two that part": (lambda x, y: [y >= x, y >= -x], abs, {-0.5: -1.0, 0.0: None, 0.5: 1.0}),
    "two that part beside another": (lambda x, y: [y >= x, y >= -x, y <= 5], abs, {-0.5: -1.0, 0.0: None, 0.5: 1.0}),
    "some that move together": (lambda x, y: [y >= x, 2 * y >= 2 * x, y >= x - cp.square(x)], lambda x: x, {0.0: 1.0, 0.3: 1.0}),
    "two that leave a point": (lambda x, y: [y >= x, y <= 1], lambda x: x, {1.0: 1.0}),
}


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("name", MEETING)
def test_slopes_where_rows_meet(name: str, cost: str, request: pytest.FixtureRequest) -> None:
    rows, answer, slopes = MEETING[name]
    if cost == "squares" and None in slopes.values():
        request.applymarker(pytest.mark.xfail(reason=FORMULA))
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    implicit = hf.Problem(hf.Minimize(clients=y + 0 * x), hf.ArgMin(y, COSTS[cost](x, y), rows(x, y))).implicit
    for at, slope in slopes.items():
        assert implicit(at) == pytest.approx(answer(at), abs=1e-12)
        if slope is None:
            with pytest.raises(hf.errors.NoGradientError):
                implicit.gradient(at)
        else:
            assert implicit.gradient(at) == pytest.approx(slope, abs=1e-9)


def test_a_direction_has_its_own_multipliers() -> None:
    """|y|_1 <= x + p opens at x = 0: a point with as many rows as there are signs. y leaves it along the entry that gains most."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - np.array([1.0, 0.7])), [cp.norm1(y) <= x[0]])
    implicit = hf.Problem(hf.Minimize(clients=cp.sum(y) + cp.square(x[1])), lower).implicit
    np.testing.assert_allclose(implicit.gradient([0.0, 0.3]), [1.0, 0.6], atol=1e-9)
    scaled = hf.ArgMin(y, cp.sum_squares(y - np.array([1.0, 0.7])), [cp.norm1(cp.multiply(cp.exp(x), y)) <= x[0]])
    within = hf.Problem(hf.Minimize(clients=cp.sum(y) + cp.square(x[1])), scaled).implicit
    step = 1e-7
    here = float(within([0.0, 0.3]))
    assert within.gradient([0.0, 0.3])[0] == pytest.approx((float(within([step, 0.3])) - here) / step, rel=1e-5)


X, Y, W = cp.Variable(name="x"), cp.Variable(2, name="y"), cp.Variable(3, name="W")
OPENING: dict[str, tuple[cp.Variable, list[Any]]] = {  # sets that are a point at x = 0
    "ball": (Y, [cp.norm(Y) <= X]),
    "sum of sizes": (Y, [cp.norm1(Y) <= X]),
    "ellipsoid": (Y, [cp.norm(np.diag([1.0, 2.0]) @ Y) <= X]),
    "ball around x and row": (Y, [cp.norm(Y - X) <= 2 * X, Y[0] >= X]),
    "box": (Y, [Y >= 0, Y <= X]),
    "ball and row": (W, [cp.norm(W) <= 3 * X, W[0] <= X]),
    "ball and plane": (W, [cp.norm(W) <= X, cp.sum(W) == 0]),
    "ball in the orthant": (W, [cp.norm(W) <= X, W >= 0]),
}


@pytest.mark.parametrize("name", OPENING)
def test_the_slope_from_within_where_a_set_opens_or_none(name: str) -> None:
    """Multipliers are not always determined there, and the slope by some of them was printed: 4.09 for 3.83."""
    y, constraints = OPENING[name]
    lower = hf.ArgMin(y, cp.sum_squares(y - np.array([5.0, 1.0, -2.0])[: y.size]), constraints)
    implicit = hf.Problem(hf.Minimize(clients=np.array([3.0, 4.0, 1.0])[: y.size] @ y), lower).implicit
    step = 1e-5
    within = (implicit(step) - implicit(0.0)) / step
    try:
        assert implicit.gradient(0.0) == pytest.approx(within, rel=1e-4)
    except hf.NoGradientError as error:
        assert "x = [0.]" in str(error) and name != "box"
    assert implicit.gradient(0.1) == pytest.approx((implicit(0.1 + step) - implicit(0.1 - step)) / (2 * step), rel=1e-6)


def test_a_cone_whose_answer_is_its_apex_for_a_pull_on_the_edge_of_the_dual() -> None:
    """To the right of x the answer moves along the cone, to the left it stays: there is no gradient."""
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    lower = hf.ArgMin(y, 0.5 * cp.sum_squares(y - x), [cp.norm(y[1:]) <= y[0], cp.norm(y) <= 5])
    implicit = hf.Problem(hf.Minimize(clients=np.array([1.0, 2.0, 3.0]) @ y), lower).implicit
    at, step = np.array([-5.0, 3.0, 4.0]), 1e-6
    right, left = (np.array([(implicit(at + h * e) - implicit(at)) / h for e in np.eye(3)]) for h in (step, -step))
    assert np.abs(right - left).max() > 0.1
    with pytest.raises(hf.NoGradientError):
        implicit.gradient(at)


@pytest.mark.parametrize("bound", [X, cp.square(X)], ids=["itself", "square"])
@pytest.mark.parametrize("square", [cp.sum_squares(Y), 0.5 * cp.sum(cp.square(Y)), cp.quad_form(Y, np.array([[2.0, 1.0], [1.0, 1.0]]))])
def test_where_the_square_of_a_ball_is_bounded_by_nothing_there_is_no_gradient(square: Any, bound: Any) -> None:
    """It opens infinitely fast, or both ways; no multiplier balances a force there, and 0 was given."""
    implicit = hf.Problem(hf.Minimize(clients=cp.sum(Y)), hf.ArgMin(Y, cp.sum_squares(Y - 1), [square <= bound])).implicit
    with pytest.raises((hf.NoGradientError, hf.LowerLevelError), match=r"x = \[0\.\]"):
        implicit.gradient(0.0)


def test_an_infinite_slope_is_refused_by_name_and_left_by_a_run() -> None:
    z, w = cp.Variable(name="z"), cp.Variable(name="w")
    problem = hf.Problem(
        hf.Minimize(clients=-cp.sqrt(z) + cp.square(w)), hf.ArgMin(w, cp.square(w - z)), constraints=[z >= 0]
    )
    assert problem.implicit(0.0) == 0.0
    with pytest.raises(hf.NoGradientError, match=r"x = \[0\.\]: a term has an infinite slope there"):
        problem.implicit.gradient(0.0)
    result = problem.solve(progress=False)
    assert result.x == pytest.approx(0.25 ** (2 / 3), rel=1e-6)
