"""Programs beside the atoms themselves (``tests/atoms``): what is kept apart, E and total over rows, functions of the user."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.expressions.program import Program, Rows

pytestmark = pytest.mark.usefixtures("x64")

def test_different_functions_of_equal_arguments_stay_apart() -> None:
    x, t = cp.Variable(), cp.Variable(nonneg=True)
    point = {x.id: 2.0, t.id: 1.0}
    perspectives = Program([cp.perspective(cp.square(x), t), cp.perspective(cp.exp(x), t)])(point)
    np.testing.assert_allclose(np.ravel(perspectives), [4, np.exp(2)])
    functions = Program([hf.Function(lambda v: v, x), hf.Function(lambda v: 2 * v, x)])(point)
    np.testing.assert_allclose(functions, [2, 4])
    m = cp.Variable((2, 2))
    ordered = Program([cp.reshape(m, (4,), order=order) for order in "CF"])({m.id: jnp.arange(4.0).reshape(2, 2)})
    np.testing.assert_allclose(ordered, [[0, 1, 2, 3], [0, 2, 1, 3]])


def rows_of(values: dict[hf.Sample, np.ndarray], weights: np.ndarray, count: int) -> Rows:
    return Rows(
        {s.id: jnp.asarray(v) for s, v in values.items()},
        {s.id: jnp.asarray(weights) for s in values},
        {s.id: jnp.asarray(float(count)) for s in values},
    )


def test_e_and_total_are_the_weighted_mean_and_sum_of_rows() -> None:
    rng = np.random.default_rng(0)
    x, image, label = cp.Variable(4), hf.Sample(4), hf.Sample()
    error = cp.square(image @ x - label)
    program = Program([hf.E(error), hf.total(error), 2 * hf.E(cp.multiply(label, image)) + x])
    images, labels, point = rng.standard_normal((6, 4)), rng.standard_normal(6), rng.standard_normal(4)
    weights = np.full(6, 1 / 6)
    mean, summed, vector = jax.jit(program)({x.id: point}, rows_of({image: images, label: labels}, weights, 6))
    squares = (images @ point - labels) ** 2
    np.testing.assert_allclose([mean, summed], [squares.mean(), squares.sum()])
    np.testing.assert_allclose(vector, 2 * (labels @ images) / 6 + point)


def test_single_precision_stays_single_with_constants_and_rows() -> None:
    x, a = cp.Variable(3), hf.Sample(3)
    program = Program([np.ones(3) @ x + hf.E(cp.square(a @ x)) + hf.total(a @ x) + 0.5])
    rows = rows_of({a: np.ones((2, 3), np.float32)}, np.full(2, 0.5), 2)
    assert program({x.id: jnp.ones(3, jnp.float32)}, rows)[0].dtype == jnp.float32
    assert program({x.id: jnp.ones(3, jnp.float32)})[0].dtype == jnp.float32


def test_values_of_a_wrong_shape_are_refused_not_reshaped() -> None:
    x = cp.Variable((2, 3), name="x")
    with pytest.raises(hf.DeclarationError, match=r"x returned an array of shape \(3, 2\); declared \(2, 3\)"):
        Program([x + 1])({x.id: jnp.ones((3, 2))})


def test_complex_constants_are_refused() -> None:
    with pytest.raises(hf.DeclarationError, match="real numbers only"):
        Program([cp.real(cp.Variable() * np.array(1j))])


# --- hf.Function and hf.BlackBox.


POINT = np.array([0.1, 0.2, 0.3])


@pytest.fixture
def x() -> cp.Variable:
    return cp.Variable(3, name="x")


def evaluate(atom: Any, x: cp.Variable) -> Any:
    program = Program([atom])
    return lambda value: program({x.id: jnp.asarray(value)})[0]


def test_wrong_shape_of_a_function_is_named_at_trace(x) -> None:
    def flatten(v: Any) -> Any:
        return v

    with pytest.raises(hf.DeclarationError, match=r"hf.Function 'flatten'.*shape \(3,\); declared shape=\(\)"):
        jax.eval_shape(evaluate(hf.Function(flatten, x), x), POINT)


def test_black_box_runs_on_the_host_one_row_at_a_time(x) -> None:
    seen: list[tuple[int, ...]] = []

    def simulate(v: np.ndarray, w: np.ndarray) -> np.ndarray:
        seen.append(v.shape)
        return np.outer(v, w)

    c = np.array([1.0, 2.0])
    function = evaluate(hf.BlackBox(simulate, x, c, shape=(3, 2)), x)
    np.testing.assert_allclose(jax.jit(function)(POINT), np.outer(POINT, c))
    batch = np.stack([POINT, 2 * POINT]).reshape(2, 1, 3)
    found = jax.jit(jax.vmap(jax.vmap(function)))(batch)
    np.testing.assert_allclose(found[1, 0], np.outer(2 * POINT, c))
    assert set(seen) == {(3,)}


def test_black_box_refuses_to_be_differentiated_and_says_who_can_use_it(x) -> None:
    box = hf.BlackBox(lambda v: v.sum(), x, name="plant")
    for transform in (jax.grad, lambda f: lambda v: jax.jvp(f, (v,), (v,)), lambda f: jax.jit(jax.grad(f))):
        with pytest.raises(hf.DeclarationError, match="hf.BlackBox 'plant' has values only.*ZOHFL"):
            transform(evaluate(box, x))(jnp.asarray(POINT))


def test_black_box_of_data_alone_may_stand_in_a_differentiated_term(x) -> None:
    p = cp.Parameter(3)
    program = Program([hf.BlackBox(lambda v: v.sum(), p) * cp.sum_squares(x)])
    gradient = jax.grad(lambda v: program({x.id: v, p.id: jnp.ones(3)})[0])(jnp.asarray(POINT))
    np.testing.assert_allclose(gradient, 6 * POINT)


@pytest.mark.parametrize(
    ("callable", "message"),
    [
        (lambda v: 1 / 0, "hf.BlackBox 'plant' raised ZeroDivisionError"),
        (lambda v: v, r"hf.BlackBox 'plant' returned an array of shape \(3,\)"),
        (lambda v: np.nan, "hf.BlackBox 'plant' returned NaN at"),
    ],
)
def test_failures_of_a_black_box_name_it(callable, message, x) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(jax.jit(evaluate(hf.BlackBox(callable, x, name="plant"), x))(POINT))


def test_nan_that_a_black_box_was_given_is_passed_on(x) -> None:
    assert np.isnan(evaluate(hf.BlackBox(np.sum, x), x)(np.full(3, np.nan)))


def test_an_error_of_the_function_arrives_as_an_error_of_hierfl_and_is_not_logged_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class OutOfFuelError(Exception):
        pass

    def simulator(x: np.ndarray) -> float:
        if x[0] > 1:
            raise OutOfFuelError("empty tank")
        return float(x @ x)

    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=hf.BlackBox(simulator, x)))
    assert problem.implicit([1.0, 0.0]) == pytest.approx(1.0)
    with pytest.raises(hf.DeclarationError, match="OutOfFuelError: empty tank"):
        problem.implicit([2.0, 0.0])
    assert "pure_callback failed" not in caplog.text
    assert problem.implicit([0.0, 1.0]) == pytest.approx(1.0)
