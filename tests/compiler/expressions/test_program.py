"""Programs: any expression agrees with CVXPY, equal subexpressions run once, E and total average rows."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.compiler.expressions.program import Program, Rows

pytestmark = pytest.mark.usefixtures("x64")

SHAPES = [(), (3,), (2, 3), (3, 2)]
UNARY = {
    "neg": lambda e: -e,
    "exp": lambda e: cp.exp(0.3 * e),
    "logistic": cp.logistic,
    "square": cp.square,
    "abs": cp.abs,
    "huber": cp.huber,
    "pos": cp.pos,
    "sqrt": lambda e: cp.sqrt(cp.square(e) + 1),
    "scale": lambda e: e / 3,
    "reuse": lambda e: e + cp.multiply(e, 0.5),
}
REDUCE = {
    "sum": cp.sum,
    "norm": lambda e: cp.pnorm(e, 2),
    "norm1": cp.norm1,
    "norm_inf": cp.norm_inf,
    "log_sum_exp": cp.log_sum_exp,
    "max": cp.max,
    "sum_squares": cp.sum_squares,
}


@st.composite
def expressions(draw: Any, leaves: dict[tuple[int, ...], cp.Variable], shape: tuple[int, ...], depth: int) -> Any:
    if depth == 0:
        return leaves[shape]

    def smaller(of: tuple[int, ...]) -> Any:
        return draw(expressions(leaves, of, depth - 1))

    kinds = ["unary", "add", "multiply", "maximum", "promote"]
    kinds += {
        0: ["reduce", "dot", "index"],
        1: ["matvec", "row", "axis", "diag"],
        2: ["transpose", "reshape", "stack"],
    }[len(shape)]
    kind = draw(st.sampled_from(kinds))
    if kind == "unary":
        return UNARY[draw(st.sampled_from(sorted(UNARY)))](smaller(shape))
    if kind == "add":
        return smaller(shape) + smaller(())
    if kind == "multiply":
        return cp.multiply(smaller(shape), 0.2 * smaller(shape))
    if kind == "maximum":
        return cp.maximum(smaller(shape), smaller(shape))
    if kind == "promote":
        return 0.3 * smaller(()) * smaller(shape)
    if kind == "reduce":
        return REDUCE[draw(st.sampled_from(sorted(REDUCE)))](smaller(draw(st.sampled_from(SHAPES[1:]))))
    if kind == "dot":
        return smaller((3,)) @ smaller((3,))
    if kind == "index":
        return smaller((2, 3))[1, draw(st.integers(-3, 2))]
    if kind == "matvec":
        return smaller((3, 2)) @ np.array([1.0, -2.0]) + smaller((3,))
    if kind == "row":
        return smaller((2, 3))[draw(st.integers(-2, 1))][:: draw(st.sampled_from([1, -1]))]
    if kind == "axis":
        return cp.sum(smaller((2, 3)), axis=0) + cp.log_sum_exp(smaller((3, 2)), axis=1)
    if kind == "diag":
        return cp.diag(smaller((3, 2)) @ smaller((2, 3)))
    if kind == "transpose":
        return smaller(shape[::-1]).T
    if kind == "reshape":
        return cp.reshape(smaller(shape[::-1]), shape, order=draw(st.sampled_from(["C", "F"])))
    return cp.vstack([smaller((3,)), smaller((3,))]) if shape == (2, 3) else cp.vstack([smaller((3,))] * 2).T


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_expressions_agree_with_cvxpy_and_finite_differences(data: Any) -> None:
    leaves = {shape: cp.Variable(shape) for shape in SHAPES}
    shape = data.draw(st.sampled_from(SHAPES))
    expression = data.draw(expressions(leaves, shape, data.draw(st.integers(1, 4))))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    for variable in leaves.values():
        variable.value = rng.uniform(-1, 1, variable.shape)
    program, weights = Program([expression]), rng.standard_normal(shape)
    point = {v.id: jnp.asarray(v.value) for v in leaves.values()}
    np.testing.assert_allclose(program(point)[0], expression.value, rtol=1e-8, atol=1e-8)

    def linear(environment: dict[int, Any]) -> Any:
        return jnp.sum(weights * program(environment)[0])

    gradient, h = jax.grad(linear)(point), 1e-6
    direction = {v.id: rng.standard_normal(v.shape) for v in leaves.values()}
    ahead, behind = (linear({k: point[k] + s * direction[k] for k in point}) for s in (h, -h))
    slope = sum(float(jnp.sum(gradient[k] * direction[k])) for k in point)
    assert slope == pytest.approx(float(ahead - behind) / (2 * h), rel=1e-4, abs=1e-4)


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
