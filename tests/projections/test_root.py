"""The root of a decreasing function against SciPy and analytic derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from hierfl.projections.root import decreasing_root, found_zero

pytestmark = pytest.mark.usefixtures("x64")
FUNCTIONS = {
    "smooth": lambda t: jnp.exp(-t) - 0.3,
    "steep": lambda t: 1.0 - jnp.exp(40 * (t - 2)),
    "kinked": lambda t: jnp.where(t < 1.5, 2 - t, 8 - 5 * t),
    "nearly flat": lambda t: -((t - 1.1) ** 3),
    "secular": lambda t: jnp.sqrt(3 / (1 + t) ** 2 + 1 / (1 + 1e-4 * t) ** 2) - 0.9999,
    "at the lower end": lambda t: -t,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_agrees_with_brent(name):
    g = FUNCTIONS[name]
    root = float(jax.jit(lambda: decreasing_root(g, jnp.asarray(0.0), jnp.asarray(10000.0)))())
    expected = brentq(lambda t: float(g(jnp.asarray(t))), 0.0, 1e4, xtol=1e-300, rtol=1e-15, maxiter=1000)
    # where the slope vanishes only the function's value is determined
    assert abs(root - expected) <= 4e-15 * (1 + expected) or abs(float(g(jnp.asarray(root)))) <= 1e-30


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(st.integers(-15, 15), st.floats(1.0, 9.0), st.integers(0, 3))
def test_relative_accuracy_at_any_scale(exponent, digit, beyond):
    root = digit * 10.0**exponent
    low, high = jnp.asarray(0.0), jnp.asarray(root * 10.0**beyond)
    assert float(decreasing_root(lambda t: jnp.log(root) - jnp.log(t), low, high)) == pytest.approx(root, rel=2e-14)
    assert float(decreasing_root(lambda t: root - t, low, high)) == pytest.approx(root, rel=1e-15)


def test_evaluations_are_few():
    """Superlinear on a smooth function: the count of evaluations is that of the traced loop."""
    calls = []

    def g(t):
        jax.debug.callback(lambda value: calls.append(float(value)), t)
        return 1 / (1 + t) - 0.123

    jax.block_until_ready(decreasing_root(g, jnp.asarray(0.0), jnp.asarray(50.0)))
    jax.effects_barrier()
    assert 3 <= len(calls) <= 20


def test_without_a_change_of_sign_it_is_the_nearer_end():
    assert float(decreasing_root(lambda t: -1.0 - t, jnp.asarray(0.0), jnp.asarray(2.0))) == 0.0
    assert float(decreasing_root(lambda t: 9.0 - t, jnp.asarray(0.0), jnp.asarray(2.0))) == 2.0


def test_a_jump_is_found_to_machine_precision():
    root = float(decreasing_root(lambda t: jnp.where(t < 0.7, 1.0, -1.0), jnp.asarray(0.0), jnp.asarray(1e6)))
    assert root == pytest.approx(0.7, rel=1e-15)


def test_derivatives_are_implicit():
    def root(c):
        return decreasing_root(lambda t: c[0] - c[1] * t**3, jnp.asarray(0.0), jnp.asarray(10.0))

    c = jnp.asarray([2.0, 0.5])
    t = (c[0] / c[1]) ** (1 / 3)
    expected = jnp.asarray([t / 3 / c[0], -t / 3 / c[1]])
    np.testing.assert_allclose(root(c), t, rtol=1e-15)
    np.testing.assert_allclose(jax.grad(root)(c), expected, rtol=1e-13)
    np.testing.assert_allclose(jax.jvp(root, (c,), (jnp.ones(2),))[1], expected.sum(), rtol=1e-13)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(root))(c), expected, rtol=1e-13)
    np.testing.assert_allclose(jax.hessian(root)(c)[0, 0], -2 / 9 * t / c[0] ** 2, rtol=1e-12)
    batch = jnp.stack([c, 2 * c, c + 1])
    one_by_one = jnp.stack([jax.grad(root)(row) for row in batch])
    np.testing.assert_allclose(jax.vmap(jax.grad(root))(batch), one_by_one, rtol=1e-14)


def test_a_vanishing_slope_gives_no_nan():
    def root(c):
        return decreasing_root(lambda t: -((t - c) ** 3), jnp.asarray(0.0), jnp.asarray(2.0))

    assert float(jax.grad(root)(1.0)) == 0.0


def test_the_second_look_grows_until_the_sign_changes():
    def found(c, sign=1.0):
        return found_zero(
            lambda t: sign * (c - t), lambda value, _: value, jnp.zeros(()), lambda first: sign * first / 100, 4.0
        )

    for sign in (1.0, -1.0):
        assert float(found(3.0, sign).t) == pytest.approx(3.0, rel=1e-15)
        assert float(found(-3.0, sign).t) == pytest.approx(-3.0, rel=1e-15)
    assert float(found(0.0).t) == 0.0
    assert (
        float(found_zero(lambda t: jnp.exp(-t), lambda v, _: v, jnp.zeros(()), lambda _: jnp.asarray(1e-3), 4.0).t)
        > 700
    )


def test_single_precision():
    with jax.enable_x64(False):
        root = decreasing_root(lambda t: 2.0 - t * t, jnp.float32(0.0), jnp.float32(9.0))
        assert root.dtype == jnp.float32
        assert float(root) == pytest.approx(2**0.5, rel=3e-7)
