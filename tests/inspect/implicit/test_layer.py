"""``problem.implicit.jax()``: values and derivatives, against enumerated active sets, closed forms, Sinkhorn and differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.parametric.level_solver import LevelSolver
from hierfl.inspect.implicit.layer import DerivativeStatus, ImplicitLayer
from tests.bilevel_answers import NoAnswer, quadratic_answer

UNIQUE, ONE_SIDED, REFUSED = DerivativeStatus.UNIQUE, DerivativeStatus.ONE_SIDED, DerivativeStatus.REFUSED
Theta = dict[str, np.ndarray]
pytestmark = pytest.mark.usefixtures("x64")


def enumerated(p: np.ndarray, q: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """The minimiser of y'Py/2 + q'y over Ay <= b by enumeration; None where no y is feasible."""
    try:
        return quadratic_answer(p, q, a, b)
    except NoAnswer:
        return None


def quadratic_layer(n: int, m: int) -> ImplicitLayer:
    """y minimises |Ly|^2 / 2 + |y|^2 / 2 + x'y over Ay <= b; f = |y - (0, 1, ...)|^2 + |x|^2 / 10."""
    x, y = cp.Variable(n, name="x"), cp.Variable(n, name="y")
    a, b, factor = cp.Parameter((m, n), name="A"), cp.Parameter(m, name="b"), cp.Parameter((n, n), name="L")
    cost = 0.5 * cp.sum_squares(factor @ y) + 0.5 * cp.sum_squares(y) + x @ y
    upper = cp.sum_squares(y - np.arange(n)) + 0.1 * cp.sum_squares(x)
    return hf.Problem(hf.Minimize(clients=upper), lower=hf.ArgMin(y, cost, [a @ y <= b])).implicit.jax(a, b, factor)


def value(x: np.ndarray, theta: Theta) -> float | None:
    """f of the layer above by enumeration."""
    y = enumerated(theta["L"].T @ theta["L"] + np.eye(len(x)), x, theta["A"], theta["b"])
    return None if y is None else float(((y - np.arange(len(x))) ** 2).sum() + 0.1 * (x**2).sum())


def moved(x: np.ndarray, theta: Theta, way: tuple[np.ndarray, Theta], step: float) -> float | None:
    return value(x + step * way[0], {name: theta[name] + step * way[1][name] for name in theta})


def is_derivative(slope: float, x: np.ndarray, theta: Theta, way: tuple[np.ndarray, Theta]) -> bool:
    """Whether differences on either side tend to a slope; a neighbouring kink spoils the longer ones."""
    for step in (1e-5, 1e-6, 1e-7):
        here, ahead, behind = value(x, theta), moved(x, theta, way, step), moved(x, theta, way, -step)
        if here is None or ahead is None or behind is None:
            continue
        sides = np.array([ahead - here, here - behind]) / step
        if (np.abs(sides - slope) <= 1e-2 * (1 + abs(slope))).all() and abs(sides.mean() - slope) <= 1e-5 * (1 + abs(slope)):
            return True
    return False


@pytest.mark.parametrize(("n", "m", "whole"), [(3, 3, False), (2, 3, True)])
def test_no_gradient_of_random_programs_is_wrong(n: int, m: int, whole: bool) -> None:
    layer, rng, count = quadratic_layer(n, m), np.random.default_rng(n + m), 60

    def draw(*shape: int) -> np.ndarray:
        return rng.integers(-1, 2, shape).astype(float) if whole else rng.standard_normal(shape)

    x, theta = draw(count, n), {"A": draw(count, m, n), "b": np.abs(draw(count, m)), "L": draw(count, n, n)}
    values, slopes = jax.vmap(jax.value_and_grad(layer.f, argnums=(0, 1)))(x, theta)
    status = np.asarray(jax.vmap(layer.status)(x, theta).f)
    for k in range(count):
        own = {name: array[k] for name, array in theta.items()}
        np.testing.assert_allclose(values[k], value(x[k], own), rtol=1e-9, atol=1e-9)
        way = rng.standard_normal(n), {name: rng.standard_normal(array.shape) for name, array in own.items()}
        slope = float(way[0] @ slopes[0][k] + sum((way[1][name] * slopes[1][name][k]).sum() for name in own))
        assert np.isfinite(slope) == (status[k] == UNIQUE)
        assert status[k] != UNIQUE or is_derivative(slope, x[k], own, way), (x[k], own)
    assert (status == UNIQUE).all() if not whole else 10 <= (status == UNIQUE).sum() < count


def test_a_projection_on_equations_has_the_derivative_of_its_formula() -> None:
    x, y = cp.Variable(4, name="x"), cp.Variable(4, name="y")
    a, b = cp.Parameter((2, 4), name="A"), cp.Parameter(2, name="b")
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, cp.sum_squares(y - x), [a @ y == b]))
    layer, rng = problem.implicit.jax(a, b), np.random.default_rng(0)
    point, theta = rng.standard_normal(4), {"A": rng.standard_normal((2, 4)), "b": rng.standard_normal(2)}

    def formula(x: Any, theta: Any) -> Any:
        a = theta["A"]
        return x - a.T @ jnp.linalg.solve(a @ a.T, a @ x - theta["b"])

    np.testing.assert_allclose(layer.y(point, theta), formula(point, theta), atol=1e-12)
    for said, true in zip(*(jax.tree.leaves(jax.jacrev(one, argnums=(0, 1))(point, theta)) for one in (layer.y, formula))):
        np.testing.assert_allclose(said, true, atol=1e-10)


def linear_layer() -> ImplicitLayer:
    """y minimises x'y over y1 <= b1, y2 <= b2, y1 + y2 <= b3: at x = (-2, -1) it is (b1, min(b2, b3 - b1)); f = y1."""
    x, y, b = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Parameter(3, name="b")
    rows = [y[0] <= b[0], y[1] <= b[1], cp.sum(y) <= b[2]]
    return hf.Problem(hf.Minimize(clients=y[0]), lower=hf.ArgMin(y, x @ y, rows)).implicit.jax(b)


def test_a_degenerate_vertex_is_one_sided_and_what_does_not_see_it_has_a_gradient() -> None:
    layer, x, b = linear_layer(), np.array([-2.0, -1.0]), np.array([1.0, 1.0, 2.0])
    assert tuple(map(int, layer.status(x, b))) == (UNIQUE, ONE_SIDED)
    np.testing.assert_allclose(jax.grad(layer.f, argnums=1)(x, b), [1, 0, 0], atol=1e-12)

    def second(b: Any) -> Any:
        return layer.y(x, b)[1]

    with pytest.raises(hf.NoGradientError, match=r"y has no derivative at .*not differentiable"):
        jax.grad(second)(b)
    assert np.isnan(jax.jit(jax.grad(second))(b)).all()
    np.testing.assert_allclose(jax.grad(second)(b + np.array([0, 0, 0.1])), [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(jax.grad(second)(b - np.array([0, 0, 0.1])), [-1, 0, 1], atol=1e-12)


def test_a_place_beside_which_nothing_is_feasible_has_no_gradient() -> None:
    x, y, b = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Parameter(2, name="b")
    lower = hf.ArgMin(y, cp.sum_squares(y - x), [cp.sum(y) <= b[0], -cp.sum(y) <= b[1]])
    layer = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), lower=lower).implicit.jax(b)
    at = np.array([1.0, -1.0])  # also where f is stationary in y
    for b_at in (np.array([1.0, -1.0]), np.zeros(2)):
        assert int(layer.status(at, b_at).f) != UNIQUE
        with pytest.raises(hf.NoGradientError):
            jax.grad(layer.f)(at, b_at)
    assert int(layer.status(at, np.array([1.0, 1.0])).f) == UNIQUE


def test_several_solutions_are_refused_unless_the_problem_says_which() -> None:
    def layer(selection: str | None) -> ImplicitLayer:
        x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
        lower = hf.ArgMin(y, cp.square(y[0] - x), [y >= -1, y <= 1], selection=selection)
        return hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 0.5)), lower=lower).implicit.jax()

    x = np.array(0.25)
    assert tuple(map(int, layer(None).status(x))) == (REFUSED, REFUSED)
    with pytest.raises(hf.NoGradientError, match='several solutions there, and the problem does not say which.*selection="optimistic"'):
        jax.grad(layer(None).f)(x)
    chosen = layer("optimistic")
    np.testing.assert_allclose(chosen.y(x), [0.25, 0.5], atol=1e-8)
    np.testing.assert_allclose(jax.grad(chosen.f)(x), -0.5, atol=1e-6)


def test_clients_parameters_are_rows() -> None:
    x, y, c = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.ClientParameter(2, name="c")
    federation = hf.Federation([hf.Client(parameters={c: np.zeros(2)}) for _ in range(3)])
    lower = hf.ArgMin(y, cp.sum_squares(y - x - c), [y >= 0], scope="client")
    problem = hf.Problem(hf.Minimize(clients=cp.sum(cp.square(y))), lower=lower, federation=federation)
    layer, rng = problem.implicit.jax(c), np.random.default_rng(3)
    point, rows = rng.standard_normal(2), rng.standard_normal((3, 2))

    def formula(x: Any, rows: Any) -> Any:
        return jnp.mean(jnp.sum(jnp.square(jnp.maximum(x + rows, 0.0)), axis=1))

    np.testing.assert_allclose(layer.y(point, rows), np.maximum(point + rows, 0), atol=1e-12)
    np.testing.assert_allclose(layer.f(point, rows), formula(point, rows), atol=1e-12)
    for said, true in zip(*(jax.grad(one, argnums=(0, 1))(point, rows) for one in (layer.f, formula))):
        np.testing.assert_allclose(said, true, atol=1e-12)


def test_the_answers_of_rows_come_client_by_client() -> None:
    x, y, u = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="u")
    rows = [np.array([1.0]), np.array([2.0, 3.0]), np.array([4.0, 5.0, 6.0])]
    lower = hf.ArgMin(y, cp.square(y - x - u), scope="sample")
    layer = hf.Problem(hf.Minimize(clients=hf.E(y)), lower, federation=hf.Federation([hf.Client({u: own}) for own in rows])).implicit.jax()
    assert [answers.tolist() for answers in layer.y(1.0)] == [(1.0 + own).tolist() for own in rows]


def test_an_equilibrium_moves_with_its_map() -> None:
    x, y, m = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Parameter((2, 2), name="M")
    lower = hf.Equilibrium(y, np.array([[3.0, 1.0], [-1.0, 3.0]]) @ y + m @ x, [])
    layer = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=lower).implicit.jax(m)
    point, m_at = np.array([1.0, 2.0]), np.array([[1.0, 0.5], [0.0, 1.0]])

    def formula(x: Any, m: Any) -> Any:
        return jnp.sum(-jnp.linalg.solve(jnp.array([[3.0, 1.0], [-1.0, 3.0]]), m @ x))

    for said, true in zip(*(jax.grad(one, argnums=(0, 1))(point, m_at) for one in (layer.f, formula))):
        np.testing.assert_allclose(said, true, atol=1e-10)


def test_a_batch_is_solved_at_once_and_is_what_its_entries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, rng = quadratic_layer(3, 4), np.random.default_rng(7)
    x, theta = rng.standard_normal((16, 3)), {"A": rng.standard_normal((16, 4, 3)), "b": np.ones((16, 4)), "L": rng.standard_normal((16, 3, 3))}
    alone = [jax.value_and_grad(layer.f)(x[k], {name: array[k] for name, array in theta.items()}) for k in range(16)]

    def never(*_: Any) -> None:
        raise AssertionError("solved one after another")

    monkeypatch.setattr(LevelSolver, "_answer", never)
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(layer.f)))(x, theta)
    np.testing.assert_allclose(values, [one[0] for one in alone], rtol=1e-12)
    np.testing.assert_allclose(slopes, [one[1] for one in alone], rtol=1e-10, atol=1e-12)
    assert (np.asarray(jax.vmap(layer.status)(x, theta).y) == UNIQUE).all()


def test_single_precision_around_it_is_kept_and_the_status_stands_beside_the_value() -> None:
    with jax.enable_x64(False):
        layer, x, b = linear_layer(), jnp.array([-2.0, -1.0]), jnp.array([1.0, 1.0, 3.0])

        def both(b: Any) -> Any:
            return layer.y(x, b).sum(), layer.status(x, b)

        (total, status), slope = jax.jit(jax.value_and_grad(both, has_aux=True))(b)
        assert total.dtype == slope.dtype == jnp.float32 and int(status.y) == UNIQUE
        np.testing.assert_allclose(slope, [1, 1, 0], atol=1e-6)


def test_what_has_no_value_is_an_error_or_nan() -> None:
    x, y, b = cp.Variable(name="x"), cp.Variable(name="y"), cp.Parameter(name="b")
    lower = hf.ArgMin(y, cp.square(y - x), [y >= 0, y <= b])
    layer = hf.Problem(hf.Minimize(clients=y), lower=lower, constraints=[x <= 1]).implicit.jax(b)
    with pytest.raises(hf.EmptyLowerSetError, match="no y satisfies"):
        layer.f(np.array(0.5), np.array(-1.0))
    with pytest.raises(hf.SettingError, match="outside X"):
        layer.f(np.array(2.0), np.array(1.0))
    with pytest.raises(hf.LowerLevelError, match="unbounded below"):
        layer_of(x, y, y, [y <= x]).y(2.0)
    for wrong in (math.nan, math.inf, -math.inf):  # no row that is left out
        for given in ((0.5, wrong), (wrong, 1.0)):
            with pytest.raises(hf.DataError, match="NaN or infinity"):
                layer.f(*given)
    in_batch = jax.vmap(layer.f, in_axes=(None, 0))(0.5, np.array([1.0, math.nan, 0.25]))
    np.testing.assert_array_equal(in_batch, np.array([0.5, math.nan, 0.25], in_batch.dtype))
    for x_at, b_at in ((0.5, -1.0), (2.0, 1.0), (0.5, math.nan), (0.5, -math.inf)):
        assert np.isnan(jax.jit(layer.y)(x_at, b_at)) and np.isnan(jax.jit(jax.grad(layer.f))(x_at, b_at))
        assert tuple(map(int, layer.status(x_at, b_at))) == (REFUSED, REFUSED)


def test_kinks_of_the_terms_themselves_are_refused() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, cp.square(y - cp.abs(x)))
    layer = hf.Problem(hf.Minimize(clients=cp.abs(y - 1)), lower=lower).implicit.jax()
    assert [tuple(map(int, layer.status(np.array(at)))) for at in (0.0, 0.5, 1.0)] == [(ONE_SIDED, ONE_SIDED), (UNIQUE, UNIQUE), (ONE_SIDED, UNIQUE)]
    for at in (0.0, 1.0):
        with pytest.raises(hf.NoGradientError):
            jax.grad(layer.f)(at)
    assert float(jax.grad(layer.f)(0.5)) == pytest.approx(-1.0)


def test_what_a_layer_cannot_be_made_of_is_said() -> None:
    x, y, p = cp.Variable(name="x"), cp.Variable(name="y"), cp.Parameter(name="p", value=1.0)
    lower = hf.ArgMin(y, cp.square(y) + x * y)
    with pytest.raises(hf.NotConvexError, match=r"all values of p together with x.*leave one that stays as it is out"):
        hf.Problem(hf.Minimize(clients=y), lower=lower, constraints=[p * x <= 1]).implicit.jax(p)
    problem = hf.Problem(hf.Minimize(clients=y + p), lower=lower)
    with pytest.raises(hf.SettingError, match=r"'q' is no parameter of the problem, which has p"):
        problem.implicit.jax(cp.Parameter(name="q"))
    with pytest.raises(hf.IncompatibleSolverError, match="no lower level"):
        hf.Problem(hf.Minimize(clients=p * x)).implicit.jax(p)
    layer = problem.implicit.jax()
    with pytest.raises(hf.DataError, match="made without parameters"):
        layer.f(1.0, 2.0)
    with pytest.raises(hf.DataError, match=r"shape \(2,\); expected \(\). A batch goes through jax.vmap"):
        layer.f(np.ones(2))
    for wrong in ("text", 1j):
        with pytest.raises(hf.DataError, match="expected real numbers"):
            layer.f(wrong)


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
    with pytest.raises(hf.NoGradientError, match="several solutions"):
        jax.grad(layer.f)(tied)
