"""Layers where others were reported to be wrong, and batches of smooth programs: against closed forms, Sinkhorn's iteration and differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.errors import EmptyLowerSetError, LowerLevelError, NoGradientError
from hierfl.inspect.implicit.layer import DerivativeStatus, ImplicitLayer

UNIQUE, REFUSED = DerivativeStatus.UNIQUE, DerivativeStatus.REFUSED


@pytest.fixture(autouse=True)
def double() -> Any:
    with jax.enable_x64(True):
        yield


def layer_of(x: cp.Variable, y: cp.Variable, cost: Any, rows: list[Any]) -> ImplicitLayer:
    """y minimises a cost over rows; f is the sum of y."""
    return hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, cost, rows)).implicit.jax()


def are_slopes(loss: Callable[[Any], Any], at: np.ndarray, directions: int = 3) -> None:
    """The gradient of a loss, against central differences of it along some directions."""
    gradient, rng = np.asarray(jax.grad(loss)(at)), np.random.default_rng(1)
    assert np.isfinite(gradient).all()
    for _ in range(directions):
        way, step = rng.standard_normal(at.shape), 1e-5
        slope = (float(loss(at + step * way)) - float(loss(at - step * way))) / (2 * step)
        assert float((gradient * way).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def l1_trader(n: int, limit: float, budget: float, drawn: float = 0.0) -> tuple[ImplicitLayer, np.random.Generator]:
    """min |L'v|^2/2 + |v|^2/2 + drawn |v - before|^2 - p'v over |v_i| <= limit, |v|_1 <= budget; x = p + 2 drawn before."""
    rng = np.random.default_rng(0)
    p, v, factor = cp.Variable(n, name="p"), cp.Variable(n, name="v"), rng.standard_normal((n, n))
    cost = 0.5 * cp.sum_squares(factor.T @ v) + (0.5 + drawn) * cp.sum_squares(v) - p @ v
    return layer_of(p, v, cost, [v <= limit, -v <= limit, cp.norm(v, 1) <= budget]), rng


def test_an_l1_budget_has_the_gradient_of_differences() -> None:  # cvxpylayers #67
    layer, rng = l1_trader(40, 1.0, 1.0)
    features, worth = rng.standard_normal((40, 2)), rng.standard_normal(40)
    are_slopes(lambda w: worth @ layer.y(features @ w), np.array([0.5, 0.5]))


def test_gradients_of_chained_layers_add_up() -> None:  # cvxpylayers #70
    layer, rng = l1_trader(20, 0.1, 1.0, drawn=50.0)
    features, prices = rng.standard_normal((3, 20)), rng.standard_normal((3, 20))

    def parts(w: Any) -> tuple[Any, Any]:
        v, gain, cost = jnp.zeros(20), 0.0, 0.0
        for x, price in zip(features, prices):
            before, v = v, layer.y(w[0] * x + 100.0 * v)
            gain, cost = gain - price @ v, cost + ((v - before) ** 2).sum()
        return gain, cost

    at = np.array([5.0])
    first, second = (np.asarray(jax.grad(lambda w, k=k: parts(w)[k])(at)) for k in (0, 1))
    np.testing.assert_allclose(jax.grad(lambda w: sum(parts(w)))(at), first + second, rtol=1e-9)
    are_slopes(lambda w: sum(parts(w)), at, 1)


def test_an_l1_logistic_regression_has_its_hypergradient() -> None:  # cvxpylayers #85
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((30, 8)), np.sign(rng.standard_normal(30))
    strength, beta = cp.Variable(nonneg=True, name="strength"), cp.Variable(8, name="beta")
    cost = cp.sum(cp.logistic(-cp.multiply(labels, features @ beta))) / 30 + strength * cp.norm(beta, 1)
    layer = layer_of(strength, beta, cost, [])
    are_slopes(lambda s: layer.f(s), np.array(0.03), 1)


def sinkhorn(scores: Any, k: int) -> Any:
    """The doubly stochastic matrix exp(scores + u + v)."""
    rows, columns = jnp.zeros((len(scores), k)), jnp.zeros((len(scores), k))
    whole = scores.reshape(-1, k, k)
    for _ in range(60):
        rows = -jax.nn.logsumexp(whole + columns[:, None, :], axis=2)
        columns = -jax.nn.logsumexp(whole + rows[:, :, None], axis=1)
    return jnp.exp(whole + rows[:, :, None] + columns[:, None, :]).reshape(len(scores), -1)


def assignment(k: int) -> ImplicitLayer:
    x, y = cp.Variable(k * k, name="x"), cp.Variable(k * k, name="y")
    whole = cp.reshape(y, (k, k), order="C")
    return layer_of(x, y, -x @ y - cp.sum(cp.entr(y)), [cp.sum(whole, axis=0) == 1, cp.sum(whole, axis=1) == 1])


def softmax_layer(n: int, weight: float) -> ImplicitLayer:
    x, y = cp.Variable(n, name="x"), cp.Variable(n, name="y")
    return layer_of(x, y, -x @ y - weight * cp.sum(cp.entr(y)), [cp.sum(y) == 1])


@pytest.mark.parametrize(
    ("layer", "formula", "size"),
    [
        pytest.param(lambda: assignment(3), lambda x: sinkhorn(x, 3), 9, id="Sinkhorn"),  # cvxpylayers #120
        pytest.param(lambda: softmax_layer(2, 0.01), lambda x: jax.nn.softmax(100 * x, axis=1), 2, id="steep softmax"),  # cvxpylayers #145
        pytest.param(lambda: softmax_layer(30, 0.1), lambda x: jax.nn.softmax(10 * x, axis=1), 30, id="shares of e-20"),
    ],
)
def test_a_batch_of_entropies_has_the_derivative_of_its_formula(layer: Any, formula: Any, size: int) -> None:
    made, rng = layer(), np.random.default_rng(0)
    points, seeds = 0.3 * rng.standard_normal((6, size)), rng.standard_normal((6, size))
    answers = jax.vmap(made.y)
    np.testing.assert_allclose(answers(points), formula(points), atol=1e-12)
    said, true = (np.asarray(jax.grad(lambda x, one=one: (one(x) * seeds).sum())(points)) for one in (answers, formula))
    np.testing.assert_allclose(said, true, atol=1e-9)
    assert (np.asarray(jax.vmap(made.status)(points).y) == UNIQUE).all()


def test_a_batch_of_smooth_programs_is_what_its_entries_are() -> None:
    rng, n = np.random.default_rng(0), 6
    x, y, a = cp.Variable(n, name="x"), cp.Variable(n, name="y"), rng.standard_normal((12, n))
    capped = layer_of(x, y, cp.sum(cp.logistic(a @ y)) + x @ y + cp.sum_squares(y), [y >= -0.2, cp.sum(y) <= 0.3])
    pooled = layer_of(x, y, cp.log_sum_exp(a @ y) + cp.sum_squares(y - x), [])
    walls = layer_of(x, y, x @ y - cp.sum(cp.log(y)), [y <= 2])
    points, seeds = rng.standard_normal((8, n)), rng.standard_normal((8, n))
    for layer in (capped, pooled, walls):
        answers, pulled = jax.vjp(jax.vmap(layer.y), points)
        (together,) = pulled(seeds)
        for k in range(8):
            np.testing.assert_allclose(answers[k], layer.y(points[k]), atol=1e-10)
            are_slopes(lambda p, layer=layer, k=k: seeds[k] @ layer.y(p), points[k], 1)
            np.testing.assert_allclose(together[k], jax.grad(lambda p, layer=layer, k=k: seeds[k] @ layer.y(p))(points[k]), atol=1e-8)


def test_a_linear_program_stays_at_its_vertex_and_is_refused_at_ties() -> None:  # cvxpylayers #127
    r, w = cp.Variable(3, name="r"), cp.Variable(3, name="w")
    level = hf.ArgMax(w, r @ w, [cp.sum(w) == 1, w >= 0])
    layer = hf.Problem(hf.Minimize(clients=np.array([0.1, 0.1, -0.5]) @ w), lower=level).implicit.jax()
    np.testing.assert_array_equal(jax.jacrev(layer.y)(np.array([0.1, 0.2, -0.1])), np.zeros((3, 3)))
    tied = np.array([0.2, 0.1, 0.2])
    assert layer.status(tied).f == REFUSED
    with pytest.raises(NoGradientError, match="several solutions"):
        jax.grad(layer.f)(tied)


def test_levels_without_a_solution_are_refused_by_name() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    with pytest.raises(EmptyLowerSetError, match="no y satisfies"):
        layer_of(x, y, cp.square(y), [y >= x, y <= 1]).y(2.0)
    with pytest.raises(LowerLevelError, match="unbounded below"):
        layer_of(x, y, y, [y <= x]).y(2.0)
