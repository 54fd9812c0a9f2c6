"""Lower levels that are empty, unbounded, badly scaled or written twice: right answers or named errors, never NaN."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

import hierfl as hf
from tests.compiler.parametric.engines import Engine, near

Rows = Callable[[cp.Variable, cp.Variable], list]


def declared(below: Callable[[cp.Variable, cp.Variable], cp.Expression], rows: Rows, size: int = 2) -> hf.Problem:
    """A leader of one variable who adds up y."""
    x, y = cp.Variable(name="x"), cp.Variable(size, name="y")
    return hf.Problem(hf.Minimize(clients=cp.sum(y) + 0.5 * cp.square(x)), lower=hf.ArgMin(y, below(x, y), rows(x, y)))


def distance(x: cp.Variable, y: cp.Variable) -> cp.Expression:
    return cp.sum_squares(y - x)


# --- nothing is feasible ---------------------------------------------------------------------------------------------------

EMPTY: dict[str, Rows] = {
    "two rows": lambda x, y: [cp.sum(y) <= x, cp.sum(y) >= 1],
    "a row and bounds": lambda x, y: [y >= 0.5, y[0] + 2 * y[1] <= x],
    "equations": lambda x, y: [y[0] + y[1] == x, 2 * y[0] + 2 * y[1] == 2 - 0.1 * x],
    "a row without variables": lambda x, y: [np.zeros((1, 2)) @ y >= 1 - x, y <= 2],
    "a ball and a row": lambda x, y: [cp.norm(y) <= 1, y[0] + y[1] >= 4 - x],
    "an ellipse and a point": lambda x, y: [cp.quad_form(y, np.diag([1.0, 4.0])) <= 1, y == 2 - x],
    "a norm": lambda x, y: [cp.norm1(y) <= x - 0.9],
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("linear", [False, True], ids=["quadratic", "linear"])
def test_an_empty_set_is_named(name: str, linear: bool, engine: Engine) -> None:
    def below(x: cp.Variable, y: cp.Variable) -> cp.Expression:
        return y[0] + 2 * y[1] + 0 * x if linear else distance(x, y)

    problem = engine(declared(below, EMPTY[name]))
    for ask in (problem.implicit, problem.implicit.response, problem.implicit.gradient):
        with pytest.raises(hf.EmptyLowerSetError):
            ask(0.5)


@pytest.mark.every_engine
def test_a_set_of_one_point_is_not_empty(engine: Engine) -> None:
    problem = engine(declared(distance, lambda x, y: [y[0] + y[1] <= x, y >= 0.5]))
    near(problem.implicit.response(1.0), [0.5, 0.5])
    near(problem.implicit.response(3.0), [1.5, 1.5])


def test_a_set_that_is_almost_empty_is_right_or_refused(engine: Engine) -> None:
    """The rows miss each other by far less than anybody can tell, or leave as little room."""
    problem = engine(declared(distance, lambda x, y: [cp.sum(y) <= x, cp.sum(y) >= 1]))
    for gap in (1e-15, 1e-13):
        near(problem.implicit.response(1 + gap), [0.5, 0.5])
        with contextlib.suppress(hf.EmptyLowerSetError):
            near(problem.implicit.response(1 - gap), [0.5, 0.5])
    with pytest.raises(hf.EmptyLowerSetError):
        problem.implicit(1 - 1e-4)


@pytest.mark.every_engine
def test_an_empty_set_far_from_a_good_one(engine: Engine) -> None:
    """Answers at good points are not spoilt by a question at a bad one."""
    problem = engine(declared(distance, lambda x, y: [cp.sum(y) <= x, cp.sum(y) >= 1, y <= 4]))
    before = problem.implicit(2.0)
    with pytest.raises(hf.EmptyLowerSetError):
        problem.implicit(-3.0)
    assert problem.implicit(2.0) == before
    shown = problem.implicit.slice(1.5, 1.0, radius=1, points=21, progress=False)
    np.testing.assert_array_equal(np.isnan(shown.value), shown.t < -0.5 - 1e-9)


# --- nothing is least ------------------------------------------------------------------------------------------------------

UNBOUNDED: dict[str, tuple[Callable[[cp.Variable, cp.Variable], cp.Expression], Rows]] = {
    "a linear program": (lambda x, y: -y[0] + y[1] + 0 * x, lambda x, y: [y >= x]),
    "a linear program with equations": (lambda x, y: y[0] + 0 * x, lambda x, y: [y[0] + y[1] == x]),
    "a flat quadratic": (lambda x, y: cp.square(y[0] + y[1] - x) - y[0], lambda x, y: [y[0] >= 0]),
    "a flat quadratic with rows": (lambda x, y: cp.square(y[0]) - y[1], lambda x, y: [y[0] + y[1] >= x]),
    "an infimum that nobody attains": (lambda x, y: cp.exp(-y[0] + x) + cp.square(y[1]), lambda x, y: [y[0] >= 0]),
    "a linear objective with an open cone": (lambda x, y: y[0] + 0 * x, lambda x, y: [cp.norm(y) <= y[1] + 5]),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_an_unbounded_lower_level_is_named(name: str, engine: Engine) -> None:
    problem = engine(declared(*UNBOUNDED[name]))
    for ask in (problem.implicit, problem.implicit.response, problem.implicit.gradient):
        with pytest.raises(hf.LowerLevelError):
            ask(0.5)


# --- scales ----------------------------------------------------------------------------------------------------------------


def least_of_two(x: float) -> np.ndarray:
    """The point of z_1 + z_2 <= 1, z >= 0 nearest to (x, 2 x)."""
    z = np.array([x, 2 * x])
    z = z - max(0.0, (z.sum() - 1) / 2)
    return np.array([0.0, 1.0]) if z[0] < 0 < x else np.maximum(z, 0)


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e6, 1e8])
def test_variables_of_different_sizes(scale: float, engine: Engine) -> None:
    """y = (scale z_1, z_2 / scale) for the z that is wanted."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    first, second = y[0] / scale, y[1] * scale
    below = hf.ArgMin(y, cp.square(first - x) + cp.square(second - 2 * x), [first + second <= 1, y >= 0])
    problem = engine(hf.Problem(hf.Minimize(clients=first + 3 * second), lower=below))
    for at in (-0.3, 0.2, 0.6, 2.0):
        z = least_of_two(at)
        near(problem.implicit(at), z[0] + 3 * z[1])
        near(np.asarray(problem.implicit.response(at)) * [1 / scale, scale], z)


@pytest.mark.parametrize("small", [1e-2, 1e-4, 1e-8])
def test_rows_of_different_sizes(small: float, engine: Engine) -> None:
    """Rows times 1e-8 beside rows times 1e8 are the same rows."""

    def rows(x: cp.Variable, y: cp.Variable) -> list:
        return [small * (y[0] + y[1]) <= small, -y / small <= 0]

    def below(x: cp.Variable, y: cp.Variable) -> cp.Expression:
        return cp.square(y[0] - x) + cp.square(y[1] - 2 * x)

    problem = engine(declared(below, rows))
    for at in (-0.3, 0.2, 0.6, 2.0):
        near(problem.implicit.response(at), least_of_two(at))
    near(problem.implicit.gradient(0.2), 3 + 0.2)
    near(problem.implicit.gradient(0.6), 0.6)


# --- rows written twice ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nudge", [0.0, 1e-15, 1e-12])
@pytest.mark.parametrize("linear", [False, True], ids=["quadratic", "linear"])
def test_rows_written_many_times(nudge: float, linear: bool, engine: Engine) -> None:
    """Fifty copies, each perhaps a little looser than the one before."""

    def rows(x: cp.Variable, y: cp.Variable) -> list:
        copies = [(1 + k) * (y[0] + y[1]) <= (1 + k) * (1 + k * nudge) for k in range(25)]
        return [*copies, np.ones((25, 2)) @ y <= 1, y >= 0]

    def below(x: cp.Variable, y: cp.Variable) -> cp.Expression:
        return -2 * y[0] - y[1] + 0 * x if linear else cp.square(y[0] - x) + cp.square(y[1] - 2 * x)

    problem = engine(declared(below, rows))
    for at in (0.6, 2.0):
        near(problem.implicit.response(at), [1, 0] if linear else least_of_two(at))
        near(problem.implicit.gradient(at), at)


# --- bad questions ---------------------------------------------------------------------------------------------------------


def test_a_users_function_in_a_constraint_is_no_row() -> None:
    """sum(z^4) <= 4 was taken for its tangent at 0, which is no constraint at all."""
    x, z = cp.Variable(2, name="x"), cp.Variable(2, name="z")
    ball = hf.Function(lambda v: jnp.sum(v**4), z, convex=True, name="ball")
    with pytest.raises(hf.NotConvexError, match="ball.*is user code"):
        problem = hf.Problem(hf.Minimize(server=cp.sum(z)), hf.ArgMin(z, cp.sum_squares(z - x), [ball <= 4]))
        problem.implicit.response(np.array([3.0, 3.0]))


@pytest.mark.parametrize(
    ("shift", "constraints", "at", "expected"),
    [
        (lambda x: 5.0, lambda y: [y >= 5], 0.0, 6.0),
        (lambda x: x, lambda y: [], 50.0, 51.0),
        (lambda x: 1000.0, lambda y: [y >= 1000], 0.0, 1001.0),
    ],
)
def test_newtons_method_begins_where_the_objective_is_defined(
    shift: Any, constraints: Any, at: float, expected: float
) -> None:
    """min y - log(y - s) is at s + 1; the nearest point of y >= s to 0 has no value."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, -cp.log(y - shift(x)) + y + 0 * x, constraints(y))
    problem = hf.Problem(hf.Minimize(clients=cp.square(x) + y), lower)
    assert problem.implicit.response(at) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("falling", [cp.inv_pos, lambda y: cp.power(y, -2), lambda y: cp.quad_over_lin(cp.Constant([1.0]), y)])
def test_interior_points_on_the_way_to_infinity_are_no_answer(falling: Any) -> None:
    """1 / y has no minimum: a y of 40,000 has a slope of 6e-10, which is no proof of one."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.square(x) + y), hf.ArgMin(y, falling(y), [y >= x]))
    with pytest.raises(hf.LowerLevelError, match="a finite infimum on .* and to attain it at no y"):
        problem.implicit(1.0)
    kept = hf.ArgMin(y, cp.inv_pos(y) + 1e-8 * y + 0 * x, [y >= 0])  # a minimum as far away
    assert hf.Problem(hf.Minimize(clients=y), kept).implicit.response(1.0) == pytest.approx(1e4, rel=1e-6)


@pytest.mark.parametrize("tail", [cp.exp, cp.logistic, lambda y: cp.norm(cp.hstack([y, 1])) - y, lambda y: cp.log_sum_exp(cp.hstack([y, 0, 1]))])
def test_a_fall_that_all_else_hides_is_a_fall(tail: Callable[[Any], Any]) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    below = tail(y[0]) + cp.abs(y[1] - x)
    with pytest.raises(hf.LowerLevelError, match="a finite infimum on .* and to attain it at no y"):
        hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, below)).implicit(1.0)
    way = -1.0 if tail(cp.Constant(0.0)).value < tail(cp.Constant(1.0)).value else 1.0
    for far in (5.0, 60.0):
        kept = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, below, [way * y[0] <= far, cp.sum(y) <= 100])).implicit.response(1.0)
        assert kept == pytest.approx([way * far, 1.0])


def test_a_solution_that_rounding_cannot_tell_from_a_way_to_infinity_is_none() -> None:
    """1000 (a'y)^2 - 100 log(b'y) falls for ever where a'y = 0, by 100 each time y is e times as long; squares hide it at 2e5."""
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    a, b = np.array([-0.95275104, -0.88349649, 1.08857646]), np.array([-1.50651815, -0.47540157, -1.44162391])
    below = 1000 * cp.square(a @ y + 1.45880976) - 100 * cp.log(b @ y - 1.64182757) + 0 * x
    with pytest.raises(hf.LowerLevelError):
        hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, below)).implicit(1.0)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_few_rows_that_a_plane_parts_have_no_logistic_regression_and_all_others_have_one(scale: float) -> None:
    """Told apart by SciPy: some d has s_k u_k'd >= 0 for all rows, and more for one, where and only where the rows are parted."""
    rng = np.random.default_rng(7)
    x, y, u, v = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u"), hf.Sample(name="v")
    parted = []
    for count in (2, 3, 3, 4, 4, 5, 6, 7):
        rows, label = scale * (rng.normal(size=(count, 2)) + 0.5), (rng.random(count) < 0.7).astype(float)
        signed = (2 * label - 1)[:, None] * rows
        parted.append(bool(-linprog(-signed.sum(axis=0), -signed, np.zeros(count), bounds=(-1, 1)).fun > 1e-9))
        federation = hf.Federation([hf.Client({u: rows, v: label})])
        below = hf.E(cp.logistic(u @ y) - v * (u @ y))
        implicit = hf.Problem(hf.Minimize(clients=cp.sum_squares(y) + x), hf.ArgMin(y, below, scope="client"), federation=federation).implicit
        if parted[-1]:
            with pytest.raises(hf.LowerLevelError, match="attain it at no y"):
                implicit(0.0)
        else:
            found = np.ravel(implicit.response(0.0))
            np.testing.assert_allclose(rows.T @ (1 / (1 + np.exp(-rows @ found)) - label) / count, 0.0, atol=1e-10 * scale)
    assert 2 <= sum(parted) <= 6
