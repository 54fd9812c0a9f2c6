"""hf.Function and hf.BlackBox inside compiled expressions."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.expressions.program import Program

pytestmark = pytest.mark.usefixtures("x64")

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
