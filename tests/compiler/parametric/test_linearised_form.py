"""Equilibria of smooth maps that are not affine: values and slopes beside SciPy's roots of the conditions, for every choice of what holds."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq, root

import hierfl as hf
from tests.bilevel_case import gradient_by_differences

RNG = np.random.default_rng(3)
TURN = np.array([[0.0, 1.2, -0.4], [-1.2, 0.0, 0.7], [0.4, -0.7, 0.0]])
C, D, Q, G = RNG.normal(size=(3, 2)), RNG.normal(size=(3, 2)), np.array([-2.5, 0.5, -2.0]), RNG.normal(size=(3, 3))
AT = np.array([0.3, -0.2])

Sets = tuple[Callable[[Any, Any], list[Any]], Callable[[Any, Any], Any]]
SETS: dict[str, Sets] = {  # as CVXPY has them, and as functions that are not negative
    "free": (lambda y, x: [], lambda y, x: jnp.zeros(0)),
    "box": (lambda y, x: [y >= -0.2, y <= 0.6 + 0.1 * x[1]], lambda y, x: jnp.concatenate([y + 0.2, 0.6 + 0.1 * x[1] - y])),
    "rows": (lambda y, x: [G @ y <= 0.4 + 0.2 * x[0]], lambda y, x: 0.4 + 0.2 * x[0] - G @ y),
    "sizes": (
        lambda y, x: [cp.norm1(y[:2]) <= 0.7 + 0.1 * x[1], y >= -1],
        lambda y, x: jnp.concatenate([0.7 + 0.1 * x[1] - SIGNS @ y[:2], y + 1]),
    ),
    "second-order cone": (
        lambda y, x: [cp.SOC(1 + 0.3 * y[0] + 0.2 * x[0], G[:2] @ y), y[2] <= 0.3],
        lambda y, x: jnp.stack([1 + 0.3 * y[0] + 0.2 * x[0] - jnp.linalg.norm(G[:2] @ y + 1e-30), 0.3 - y[2]]),
    ),
    "ellipse": (
        lambda y, x: [cp.quad_form(y - 0.1, np.diag([1.5, 1.0, 2.0])) <= 0.5 + 0.1 * x[0], y[0] + y[1] <= 0.4],
        lambda y, x: jnp.stack([0.5 + 0.1 * x[0] - (y - 0.1) ** 2 @ jnp.array([1.5, 1.0, 2.0]), 0.4 - y[0] - y[1]]),
    ),
    "matrix": (
        lambda y, x: [cp.bmat([[1 + y[0], y[1]], [y[1], 0.5 - y[0] + 0.1 * x[0]]]) >> 0, y <= 0.8],
        lambda y, x: jnp.append(0.8 - y, (1 + y[0]) * (0.5 - y[0] + 0.1 * x[0]) - y[1] ** 2),
    ),
    "exponential cones": (
        lambda y, x: [cp.log_sum_exp(y) <= 1.2 + 0.1 * x[0]],
        lambda y, x: jnp.stack([1.2 + 0.1 * x[0] - jax.nn.logsumexp(y)]),
    ),
}
SIGNS = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])


class Conditions:
    """y(x) where F(y, x) = sum of z_k times the slopes of limits that hold, all z and limits nonnegative: the first choice that is."""

    def __init__(self, force: Callable[[Any, Any], Any], limits: Callable[[Any, Any], Any], size: int) -> None:
        def equations(v: Any, x: Any, held: Any) -> Any:
            y, z = v[:size], jnp.where(held, v[size:], 0.0)
            slopes = jax.jacfwd(limits)(y, x)
            return jnp.concatenate([force(y, x) - z @ slopes, jnp.where(held, limits(y, x), v[size:])])

        with jax.enable_x64(True):
            self.count = len(limits(jnp.zeros(size), jnp.zeros(2)))
        self.size, self.limits = size, jax.jit(limits)
        self.equations, self.slopes = jax.jit(equations), jax.jit(jax.jacfwd(equations))
        self.last: list[tuple[np.ndarray, np.ndarray]] = []

    def y(self, x: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            near = [0.3 * np.random.default_rng(k).normal(size=self.size) for k in range(4)]
            starts = [(held, np.append(start, 1.0 * held)) for held in self.choices() for start in near]
            for held, start in [*self.last, *starts]:
                given = (x, held)
                v = root(lambda v, g=given: self.equations(v, *g), start, jac=lambda v, g=given: self.slopes(v, *g), tol=1e-14).x
                met = np.abs(self.equations(v, *given)).max() < 1e-11
                if met and (v[self.size :] >= 0).all() and (np.asarray(self.limits(v[: self.size], x)) >= -1e-11).all():
                    self.last = [(held, v)]
                    return v[: self.size]
        raise AssertionError("no choice was found")

    def choices(self) -> list[np.ndarray]:
        numbers = range(self.count)
        held = (set(some) for k in range(self.size + 1) for some in itertools.combinations(numbers, k))
        return [np.array([k in some for k in numbers], bool) for some in held]


def upper(y: Any, x: Any) -> Any:
    return ((y - 1) ** 2).sum() + y @ np.array([1.0, -2.0, 0.5]) + (x**2).sum()


def declared(y: Any) -> Any:
    return cp.sum_squares(y - 1) + np.array([1.0, -2.0, 0.5]) @ y


@pytest.mark.parametrize("name", SETS)
def test_values_and_slopes_are_those_of_the_conditions(name: str) -> None:
    constraints, limits = SETS[name]
    x, y = cp.Variable(2, name="x"), cp.Variable(3, name="y")
    mapping = TURN @ y + cp.exp(y) + cp.multiply(0.3 + cp.square(y), y) + Q - C @ x
    problem = hf.Problem(hf.Minimize(clients=declared(y) + cp.sum_squares(x)), hf.Equilibrium(y, mapping, constraints(y, x)))
    told = Conditions(lambda y, x: TURN @ y + jnp.exp(y) + 0.3 * y + y**3 + Q - C @ x, limits, 3)
    assert problem.implicit(AT) == pytest.approx(upper(told.y(AT), AT), abs=1e-8)
    np.testing.assert_allclose(problem.implicit.response(AT), told.y(AT), atol=1e-8)
    slopes = gradient_by_differences(lambda x: float(upper(told.y(x), x)), AT)
    np.testing.assert_allclose(problem.implicit.gradient(AT), slopes, atol=1e-7)


@pytest.mark.parametrize("name", ["box", "second-order cone"])
@pytest.mark.parametrize("scope", ["federation", "client", "sample"])
def test_every_owner_is_answered_by_its_data(scope: str, name: str) -> None:
    constraints, limits = SETS[name]
    rng = np.random.default_rng(7)  # the same rows whichever cases run
    rows = [rng.normal(size=(count, 2)) for count in (1, 4)]
    x, y, a = cp.Variable(2, name="x"), cp.Variable(3, name="y"), hf.Sample(2, name="a")
    data = D @ a if scope == "sample" else hf.E(D @ a)
    clients = hf.Federation([hf.Client({a: part}) for part in rows], weights=[0.3, 0.7])
    cost = hf.E(declared(y)) if scope == "sample" else declared(y)
    mapping = TURN @ y + cp.exp(y) + data + Q - C @ x
    level = hf.Equilibrium(y, mapping, constraints(y, x), scope=scope)
    problem = hf.Problem(hf.Minimize(clients=cost + cp.sum_squares(x)), level, federation=clients)
    means = [part.mean(axis=0) for part in rows]
    owners = {
        "federation": [(1.0, 0.3 * means[0] + 0.7 * means[1])],
        "client": list(zip((0.3, 0.7), means)),
        "sample": [(w / len(part), row) for w, part in zip((0.3, 0.7), rows) for row in part],
    }[scope]
    told = [
        (weight, Conditions(lambda y, x, q=D @ own + Q: TURN @ y + jnp.exp(y) + q - C @ x, limits, 3)) for weight, own in owners
    ]

    def f(x: np.ndarray) -> float:
        return sum(weight * float(upper(one.y(x), x)) for weight, one in told)

    assert problem.implicit(AT) == pytest.approx(f(AT), abs=1e-8)
    np.testing.assert_allclose(problem.implicit.gradient(AT), gradient_by_differences(f, AT), atol=1e-7)


def test_kinks_of_the_map_and_of_the_set_are_told() -> None:
    """y = x where x <= 0, and x / 2 or 0 beyond, by the player's own cost or by exp(y) + y - 1 - x over y <= 0."""
    x, y, z = cp.Variable(name="x"), cp.Variable(name="y"), cp.Variable(name="z")
    one, other = hf.Player(y, minimize=cp.square(cp.pos(y)) + cp.square(y - x)), hf.Player(z, minimize=cp.exp(z) - z + 0 * y)
    game = hf.Problem(hf.Minimize(clients=y + z), hf.Nash(one, other))
    level = hf.Equilibrium(y, cp.exp(y) - 1 + y - 2 * x, [y <= 0])
    bounded = hf.Problem(hf.Minimize(clients=y + 0 * cp.square(x)), level)
    for problem, after in ((game, 0.5), (bounded, 0.0)):
        with pytest.raises(hf.NoGradientError):
            problem.implicit.gradient(0.0)
        assert problem.implicit.gradient(-1e-3) == pytest.approx(1.0, abs=1e-3)
        assert problem.implicit.gradient(1e-3) == pytest.approx(after, abs=1e-9)


def only(mapping: Callable[[Any, Any], Any], constraints: Callable[[Any], list[Any]], size: int = 2) -> hf.Problem:
    x, y = cp.Variable(name="x"), cp.Variable(size, name="y")
    return hf.Problem(hf.Minimize(clients=cp.sum(y) + cp.square(x)), hf.Equilibrium(y, mapping(y, x), constraints(y)))


def test_an_empty_set_is_said_to_be() -> None:
    for sets in (lambda y: [y >= 1, y <= 0], lambda y: [cp.norm(y) <= 1, cp.sum(y) >= 3]):
        with pytest.raises(hf.EmptyLowerSetError, match="is empty"):
            only(lambda y, x: cp.exp(y) + TURN[:2, :2] @ y - x, sets).implicit(0.5)


def test_a_map_that_pulls_y_to_infinity_has_no_solution() -> None:
    for mapping in (lambda y, x: cp.exp(y) + 0.1 - 0 * x, lambda y, x: cp.hstack([y[0] - x, cp.exp(y[1])])):
        with pytest.raises(hf.LowerLevelError, match="may have no solution"):
            only(mapping, lambda y: [y <= 3]).implicit(0.5)


def test_one_of_several_solutions_of_a_map_that_is_not_monotone_is_called_one() -> None:
    problem = only(lambda y, x: cp.power(y, 3) - 2 * y + x, lambda y: [y >= -2, y <= 2], 1)
    zeros = [y.real for y in np.roots([1, 0, -2, 0.5])]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        y = problem.implicit.response(0.5).item()
    assert min(abs(y - zero) for zero in zeros) < 1e-9
    assert problem.implicit.certificate(0.5).unique is None
    assert any("not monotone" in str(warning.message) for warning in told) == (3 * y**2 < 2)


def test_a_map_that_ends_at_the_edge_of_the_set_is_begun_inside() -> None:
    problem = only(lambda y, x: cp.hstack([y[1] - 1 / y[0], cp.log(y[1]) - y[0] + x]), lambda y: [y >= 0])
    first = brentq(lambda v: -np.log(v) - v + 0.5, 1e-6, 9, xtol=1e-15)
    np.testing.assert_allclose(problem.implicit.response(0.5), [first, 1 / first], atol=1e-9)


def test_a_search_by_gradients_ends_at_rest() -> None:
    constraints, _ = SETS["second-order cone"]
    x, y = cp.Variable(2, name="x"), cp.Variable(3, name="y")
    level = hf.Equilibrium(y, TURN @ y + cp.exp(y) + Q - C @ x, constraints(y, x))
    problem = hf.Problem(hf.Minimize(clients=declared(y) + cp.sum_squares(x)), level, [cp.abs(x) <= 1])
    assert problem.solve(progress=False, time_limit=60).status == "at rest"


def test_a_root_at_its_bound_beside_a_ball_has_a_gradient() -> None:
    """a = (1, 0) for all x near: sqrt(a_2) has no slope beside 0, and its bound holds to the last bit; b = x + a / 10."""
    x, a, b = cp.Variable(2, name="x"), cp.Variable(2, name="a"), cp.Variable(2, name="b")
    first = 0.5 * cp.sum_squares(a - x - np.array([2.0, -1.0])) + 0.2 * cp.sum(cp.power(cp.abs(a), 1.5)) + 0.1 * a @ b
    players = hf.Player(a, first, [a >= 0, cp.sum(a) == 1]), hf.Player(b, 0.5 * cp.sum_squares(b - x) - 0.1 * a @ b, [cp.norm(b) <= 0.8])
    implicit = hf.Problem(hf.Minimize(cp.sum_squares(b)), hf.Nash(*players), [cp.abs(x) <= 1]).implicit
    at = np.array([0.1, 0.2])
    assert implicit.response(at)[a].tolist() == [1.0, 0.0]
    np.testing.assert_allclose(implicit.gradient(at), 2 * (at + np.array([0.1, 0.0])), rtol=1e-9)
