"""Weighted l1 balls, second-order cones and semidefinite matrices: what characterises a projection, and derivatives.

``tests/compiler/sets`` compares them with CVXPY.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import ball, box, l1_ball, psd, second_order_cone
from tests.projections.reference import check_derivatives, check_projection

pytestmark = pytest.mark.usefixtures("x64")
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
SIZES = st.sampled_from([1e-8, 1.0, 1e8])
N = 7
IN_L1_BALL, SEMIDEFINITE = jax.jit(l1_ball.project), jax.jit(psd.project)


@jax.jit
def in_cone(z, slope):
    u, t = second_order_cone.project(z[:-1], z[-1], slope)
    return jnp.append(u, t)


@ANY
@given(st.integers(0, 10**6), SIZES, SIZES, st.sampled_from([1e-6, 1.0, 1e3]), st.booleans())
def test_on_an_l1_ball(seed, size, unit, distance, tied):
    rng = np.random.default_rng(seed)
    weights = unit * (rng.integers(0, 3, N) if tied else rng.random(N) * (rng.random(N) < 0.8))
    radius = unit * size * rng.random()
    points = distance * size * (rng.integers(-2, 3, (30, N)) if tied else rng.standard_normal((30, N)))
    check_projection(
        lambda z: IN_L1_BALL(z, weights, radius),
        lambda y: (weights @ np.abs(y) - radius) / max(weights.max(), 1e-300),
        points,
    )


@ANY
@given(st.integers(0, 10**6), SIZES, st.sampled_from([1e-8, 0.3, 1.0, 1e8]), st.sampled_from(["generic", "integer", "axis", "flat"]))
def test_on_a_second_order_cone(seed, size, slope, kind):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((30, N)) if kind != "integer" else rng.integers(-1, 2, (30, N)).astype(float)
    points[:, -1] *= 0.0 if kind == "flat" else 10.0 ** rng.uniform(-8, 8, 30)
    points[:, :-1] *= 0.0 if kind == "axis" else 1.0

    def violation(z):
        return (np.linalg.norm(z[:-1]) - slope * z[-1]) / np.hypot(1.0, slope)

    def of_polar(v):
        return (slope * np.linalg.norm(v[:-1]) + v[-1]) / np.hypot(1.0, slope)

    check_projection(lambda z: in_cone(z, slope), violation, size * points, of_polar=of_polar)


@ANY
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5]), SIZES, st.sampled_from(["generic", "low rank", "repeated", "integer", "zero"]))
def test_on_semidefinite_matrices(seed, n, size, kind):
    rng = np.random.default_rng(seed)
    z = {
        "generic": lambda: rng.standard_normal((10, n, n)),
        "low rank": lambda: rng.standard_normal((10, n, 1)) @ rng.standard_normal((10, 1, n)),
        "repeated": lambda: np.eye(n) * rng.standard_normal((10, 1, 1)),
        "integer": lambda: rng.integers(-1, 2, (10, n, n)).astype(float),
        "zero": lambda: np.zeros((10, n, n)),
    }[kind]()
    z = size * (z + z.transpose(0, 2, 1))
    check_projection(SEMIDEFINITE, lambda y: -np.linalg.eigvalsh(y)[0], z, of_polar=lambda v: np.linalg.eigvalsh(v)[-1])


def test_to_the_bit_where_nothing_is_to_do_and_at_the_ends():
    z, weights = np.linspace(-3, 3, N), np.r_[0.0, np.linspace(1e-3, 2, N - 1)]
    np.testing.assert_array_equal(IN_L1_BALL(z, weights, 0.0), np.r_[z[0], np.zeros(N - 1)])
    np.testing.assert_array_equal(IN_L1_BALL(z, weights, np.inf), z)
    np.testing.assert_array_equal(IN_L1_BALL(z, np.zeros(N), 0.0), z)
    assert np.isfinite(IN_L1_BALL(z, weights, -1.0)).all()
    np.testing.assert_array_equal(in_cone(np.array([3.0, 4.0, 2.5]), 2.0), [3.0, 4.0, 2.5])
    np.testing.assert_array_equal(in_cone(np.array([3.0, 4.0, -10.0]), 2.0), np.zeros(3))
    np.testing.assert_allclose(in_cone(np.array([3.0, 4.0, 0.0]), 1.0), [1.5, 2.0, 2.5], rtol=1e-15)
    np.testing.assert_allclose(SEMIDEFINITE(np.array([[1.0, 4.0], [0.0, 1.0]])), np.full((2, 2), 1.5), atol=1e-15)
    with jax.enable_x64(False):
        z = np.random.default_rng(2).standard_normal(N)
        tiny = in_cone(jnp.asarray(1e-30 * z), 0.7)  # squares would vanish
        np.testing.assert_allclose(tiny, 1e-30 * in_cone(jnp.asarray(z), 0.7), atol=2e-36)


def test_derivatives():
    rng = np.random.default_rng(2)
    for seed in range(3):
        weights = rng.random(N) + 0.1
        check_derivatives(l1_ball.project, 2 * rng.standard_normal(N), weights, 1.5, seed=seed)
        check_derivatives(l1_ball.project, np.full(N, 0.01), weights, 1.5, seed=seed)
    for seed, height in enumerate((-9.0, -0.2, 0.0, 0.3, 20.0)):
        check_derivatives(in_cone, np.append(rng.standard_normal(N), height), 0.8, seed=seed)
    spectra = [(2.0, 1, -1, -3), (2, 2, -1, -1), (1, 1, 1, 1), (-1, -1, -1, -1), (2, 2 - 1e-10, -1, -1 + 1e-12), (1e-3, -1, 5, -5)]
    for values in spectra:
        q, direction = np.linalg.qr(rng.standard_normal((4, 4)))[0], rng.standard_normal((4, 4))
        z, direction = q * np.asarray(values) @ q.T, direction + direction.T
        plus, sizes = np.maximum(values, 0), np.abs(values)
        weights = (plus[:, None] + plus) / (sizes[:, None] + sizes)  # Malick and Sendov (2006) for one sign each
        expected = q @ (weights * (q.T @ direction @ q)) @ q.T
        np.testing.assert_allclose(jax.jvp(SEMIDEFINITE, (z,), (direction,))[1], expected, atol=1e-9)
        # the squared distance to the polar cone is differentiable everywhere, its gradient is 2 P(z)
        gradient = jax.grad(lambda z: jnp.sum(SEMIDEFINITE(z) ** 2))(z)
        np.testing.assert_allclose(gradient, 2 * SEMIDEFINITE(z), atol=1e-9)


def test_derivatives_are_finite_at_kinks():
    jacobian, ones = jax.jit(jax.jacobian(l1_ball.project, argnums=(0, 1, 2))), np.ones(N)
    for radius, weights in ((0.0, ones), (np.inf, ones), (1.0, 0 * ones)):
        assert all(np.isfinite(part).all() for part in jacobian(ones, weights, radius))
    at_zero, weights = np.r_[0.0, 3.0, -3.0, np.zeros(N - 3)], np.r_[0.0, np.ones(N - 1)]
    expected = np.zeros((N, N))
    expected[:3, :3] = [[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]
    np.testing.assert_allclose(jacobian(at_zero, weights, 1.0)[0], expected, atol=1e-12)  # the first entry is at 0, and free
    np.testing.assert_array_equal(jacobian(0 * ones, weights, 0.0)[0], np.diag(np.r_[1.0, np.zeros(N - 1)]))
    jacobian = jax.jit(jax.jacobian(in_cone, argnums=(0, 1)))
    for z in (np.zeros(3), np.array([3.0, 4.0, 5.0]), np.array([3.0, 4.0, -5.0]), np.array([0.0, 0.0, -1.0])):
        assert all(np.isfinite(part).all() for part in jacobian(z, 1.0))
    np.testing.assert_array_equal(jacobian(np.array([0.0, 0.0, 1.0]), 1.0)[0], np.eye(3))
    for diagonal in ((0, 0, 0), (1.0, 0, 0), (1.0, 0, -1), (1e-14, -1e-14, 1.0)):
        matrix = np.asarray(jax.jacobian(SEMIDEFINITE)(np.diag(np.asarray(diagonal, float)))).reshape(9, 9)
        assert np.isfinite(matrix).all() and np.linalg.norm(matrix, 2) <= 1 + 1e-12


# --- Derivatives of clipping where bounds meet up to rounding, and at kinks, where they are the mean of both sides.


PROJECT = jax.jit(box.project)
SLOPES = jax.jit(jax.jacfwd(box.project, argnums=(0, 1, 2)))


def slopes(z, lower, upper):
    """The derivatives of each entry by z, and by both bounds as they move together."""
    by_z, by_lower, by_upper = SLOPES(z, lower, upper)
    for matrix in (by_z, by_lower, by_upper):
        assert not np.any(matrix - np.diag(np.diag(matrix)))
    return np.diag(by_z), np.diag(by_lower + by_upper)


def test_bounds_that_meet_up_to_rounding():
    """y >= 0.7 and 3 y <= 2.1, whose quotient is the next number above 0.7, and the other way round."""
    near = np.array([0.7, 2.1 / 3])
    assert near[1] > near[0]
    for lower, upper in (near, near[::-1]):
        by_z, by_bound = slopes(near, np.full(2, lower), np.full(2, upper))
        np.testing.assert_array_equal(by_z, 0)
        np.testing.assert_array_equal(by_bound, 1)


def test_kinks_of_one_bound_keep_the_mean_of_both_sides():
    """Entries inside, at the lower bound, at the upper one, beyond, free, and in an interval of 1e-12, which is no equation."""
    z = np.array([0.5, 0.0, 1.0, 2.0, 3.0, 1.0])
    lower, upper = np.array([0, 0, 0, 0, -np.inf, 1.0]), np.array([1, 1, 1, 1, np.inf, 1 + 1e-12])
    by_z, by_bounds = slopes(z, lower, upper)
    np.testing.assert_array_equal(by_z, [1, 0.5, 0.5, 0, 1, 0.5])
    np.testing.assert_array_equal(by_bounds, [0, 0.5, 0.5, 1, 0, 0.5])


def test_bounds_that_cross_give_the_upper_one():
    np.testing.assert_array_equal(PROJECT(jnp.array([0.0, 1.5, 3.0]), jnp.full(3, 2.0), jnp.full(3, 1.0)), 1.0)


def test_a_ball_of_radius_zero_does_not_move():
    for z in (jnp.zeros(2), jnp.array([1.0, 2.0])):
        np.testing.assert_array_equal(ball.project(z, jnp.array(0.0)), 0)
        np.testing.assert_array_equal(jax.jacrev(ball.project)(z, jnp.array(0.0)), np.zeros((2, 2)))


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_a_ball_of_any_size_is_met(size):
    z = jnp.array([3.0, -4.0]) * size
    np.testing.assert_allclose(ball.project(z, jnp.array(size)) / size, [0.6, -0.8], rtol=1e-14)
    along = np.eye(2) - np.outer([0.6, -0.8], [0.6, -0.8])
    np.testing.assert_allclose(jax.jacrev(ball.project)(z, jnp.array(size)), along / 5, atol=1e-14)
