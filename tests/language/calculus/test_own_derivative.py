"""Derived mappings of games against JAX's gradients and Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.expressions.program import Program
from hierfl.language.calculus.derivative import OwnGradient, gradient, own_gradient

RNG = np.random.default_rng(0)
N, K = 5, 3
W, WIDE = RNG.standard_normal((N, N)), RNG.standard_normal((K, K))
POSITIVE = RNG.uniform(0.5, 1.5, N)
y, other, x = cp.Variable(N, name="y"), cp.Variable(4, name="other"), cp.Variable(name="x")
Y, prices = cp.Variable((N, K), name="Y"), cp.Parameter(K, name="prices")
mixing = cp.Parameter((N, N), name="mixing")


def values(expressions: Any, seed: int = 0) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
    """The expressions at a random positive point, which is returned by leaf id."""
    rng = np.random.default_rng(seed)
    leaves = (y, other, x, Y, prices, mixing)
    point = {leaf.id: rng.uniform(0.2, 1.5, leaf.shape) for leaf in leaves}
    return [np.asarray(v) for v in Program(expressions)(point)], point


SINGLE: dict[str, Callable[[], cp.Expression]] = {
    "quadratic form": lambda: cp.quad_form(y, W @ W.T) + POSITIVE @ y,
    "least squares": lambda: cp.sum_squares(W @ y - x) / 3,
    "bilinear": lambda: y[:4] @ other * 2 - other @ (W[:4, :4] @ y[1:]),
    "profit": lambda: cp.sum(y) * (10 - x * cp.sum(y)) - cp.sum(cp.multiply(POSITIVE, y**3)),
    "log-sum-exp": lambda: cp.log_sum_exp(W @ y + x) + cp.sum(cp.logistic(y)),
    "matrix trace": lambda: cp.trace(WIDE @ Y.T @ Y) + cp.sum_squares(Y @ WIDE - 1),
    "axis sums": lambda: cp.sum(cp.square(cp.sum(Y, axis=0))) + cp.sum(cp.exp(cp.sum(Y, axis=1, keepdims=True))),
    "quotient": lambda: cp.sum(y) / (1 + cp.sum_squares(y)),
    "layout": lambda: cp.sum_squares(cp.hstack([y[::2], cp.vec(Y.T, order="F")]) * 2) + cp.sum_squares(cp.diff(y)),
    "quad over lin": lambda: cp.quad_over_lin(y - 1, cp.sum(y)),
    "huber and log": lambda: cp.sum(cp.huber(3 * y, 1)) - cp.sum(cp.log(y)) + cp.sum(cp.power(y, 1.5)),
    "matrix fraction": lambda: cp.matrix_frac(y, np.diag(POSITIVE)) + cp.sum_squares(cp.kron(WIDE, Y)),
    "vectors and matrices": lambda: (y @ W) @ (W @ y) + cp.sum(prices @ Y.T),
    "broadcasting": lambda: cp.sum(cp.square(Y + prices + cp.reshape(y, (N, 1), order="C"))),
    "user code": lambda: hf.Function(lambda v: jnp.sum(jnp.tanh(v)), W @ y),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SINGLE)
def test_gradients_equal_those_of_jax(name: str) -> None:
    expression = SINGLE[name]()
    variables = tuple(dict.fromkeys(v for v in expression.variables() if v is not x))
    found, point = values(gradient(expression, variables))
    program = Program([expression])
    for variable, part in zip(variables, found):
        expected = jax.grad(lambda v, i=variable.id: program({**point, i: v})[0].reshape(()))(point[variable.id])
        np.testing.assert_allclose(part, expected, rtol=1e-11, atol=1e-12)


MANY: dict[str, Callable[[], cp.Expression]] = {
    "Cournot": lambda: 0.5 * cp.multiply(POSITIVE, cp.square(y)) - cp.multiply(y, 10 - 0.5 * (x + cp.sum(y))),
    "others only": lambda: cp.multiply(y, cp.sum(y) - y),
    "network": lambda: cp.square(y) - 0.1 * cp.multiply(y, W @ y),
    "network of utilities": lambda: cp.multiply(y, W @ cp.exp(y + cp.sum(y))) + mixing @ cp.square(y),
    "row vector times matrix": lambda: cp.multiply(y, y @ W),
    "Tullock contest": lambda: y - 3 * y / cp.sum(y),
    "power control": lambda: 0.2 * y - cp.log(1 + y / (1 + 0.3 * (cp.sum(y) - y))),
    "nonlinear aggregate": lambda: cp.multiply(cp.logistic(y), cp.exp(0.1 * cp.sum_squares(y))) + cp.log_sum_exp(y),
    "polynomial aggregate": lambda: cp.multiply(cp.power(y, 3), cp.square(POSITIVE @ y)) / 7,
    "several markets": lambda: cp.sum(cp.square(Y), axis=1) - Y @ (prices - 0.5 * cp.sum(Y, axis=0)),
    "several markets, elementwise": lambda: -cp.sum(cp.multiply(Y, prices - cp.sum(Y, axis=0)), axis=1),
    "weighted markets": lambda: Y @ cp.exp(POSITIVE @ Y) + cp.sum(Y @ WIDE, axis=1),
    "mixed rows": lambda: cp.sum(cp.multiply(Y, W @ cp.square(Y)), axis=1) + W @ cp.sum(Y, axis=1),
    "mixed rows that share a total": lambda: W @ cp.sum(cp.multiply(Y, cp.sum(Y)), axis=1) + W @ cp.exp(Y) @ prices,
    "one decision mixed": lambda: cp.multiply(y, cp.sum(W @ Y, axis=1)) + cp.square(y),
    "columns": lambda: Y[:, 0] * cp.sum(Y[:, 1]) + cp.multiply(Y[:, 2], Y[:, 0]),
    "two decisions of each player": lambda: (
        cp.square(y) - cp.multiply(y, cp.sum(Y, axis=1)) + Y @ cp.sum(Y, axis=0) * cp.exp(-cp.sum(y))
    ),
    "a price per market and a tax": lambda: Y @ (prices + cp.sum(y) - cp.exp(-cp.sum(Y, axis=0) * 0.1)) / cp.sum(y),
    "sums of squares of rows": lambda: cp.sum_squares(Y - prices, axis=1) + cp.multiply(Y[:, 1], cp.sum(Y)),
}


def own_by_jacobian(expression: cp.Expression, variable: cp.Variable, point: dict[int, Any]) -> np.ndarray:
    """Row j: the derivative of entry j in row j, out of the whole Jacobian."""
    program = Program([expression])
    jacobian = np.asarray(jax.jacobian(lambda v: program({**point, variable.id: v})[0])(point[variable.id]))
    return np.stack([jacobian[j, j] for j in range(jacobian.shape[0])])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", MANY)
def test_each_row_is_its_players_own_derivative(name: str) -> None:
    expression = MANY[name]()
    variables = tuple(dict.fromkeys(v for v in expression.variables() if v is not x))
    mapping = own_gradient(expression, variables)
    assert not any(isinstance(part, OwnGradient) for part in mapping)
    found, point = values(mapping)
    for variable, part in zip(variables, found):
        np.testing.assert_allclose(part, own_by_jacobian(expression, variable, point), rtol=1e-11, atol=1e-12)


OUTSIDE: dict[str, Callable[[], cp.Expression]] = {
    "reversed": lambda: cp.multiply(y, y[::-1]),
    "neighbours by index": lambda: cp.hstack([y[1:], y[:1]]) * 2 + cp.square(y),
    "cumulated": lambda: cp.multiply(y, cp.cumsum(y)),
    "twice mixed": lambda: W @ (W @ y),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_coupling_outside_the_table_is_differentiated_player_by_player(name: str) -> None:
    expression = OUTSIDE[name]()
    mapping = own_gradient(expression, (y,))
    assert isinstance(mapping[0], OwnGradient)
    (found,), point = values(mapping)
    np.testing.assert_allclose(found, own_by_jacobian(expression, y, point), rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_the_mapping_of_many_players_takes_linear_memory() -> None:
    z = cp.Variable(100_000, name="z")
    mapping = own_gradient(cp.square(z) - cp.multiply(z, 10 - cp.sum(z)), (z,))
    program = Program(mapping)
    compiled = jax.jit(lambda point: program({z.id: point})[0]).lower(jnp.zeros(z.size)).compile()
    point = np.linspace(0, 1, z.size)
    np.testing.assert_allclose(compiled(jnp.asarray(point)), 2 * point - 10 + point.sum() + point, rtol=1e-12)
    memory = compiled.memory_analysis()
    assert memory is None or memory.temp_size_in_bytes < 100 * z.size
