"""Second-order cones against CVXPY, Moreau's decomposition and central differences."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import second_order_cone
from tests.projections.moreau import check_cone
from tests.projections.reference import check_derivatives, nearest

pytestmark = pytest.mark.usefixtures("x64")
N = 5


@jax.jit
def project_flat(z, slope):
    u, t = second_order_cone.project(z[:-1], z[-1], slope)
    return jnp.append(u, t)


def violation(slope):
    return lambda z: (np.linalg.norm(z[:-1]) - slope * z[-1]) / np.hypot(1.0, slope)


def polar_violation(slope):
    return lambda v: (slope * np.linalg.norm(v[:-1]) + v[-1]) / np.hypot(1.0, slope)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-8, 0.3, 1.0, 1e8]),
    st.sampled_from(["generic", "integer", "axis", "flat"]),
)
def test_is_the_projection(seed, size, slope, kind):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((30, N + 1)) if kind != "integer" else rng.integers(-1, 2, (30, N + 1)).astype(float)
    points[:, -1] *= 0.0 if kind == "flat" else 10.0 ** rng.uniform(-8, 8, 30)
    points[:, :-1] *= 0.0 if kind == "axis" else 1.0
    check_cone(lambda z: project_flat(z, slope), violation(slope), polar_violation(slope), size * points)


def test_agrees_with_cvxpy():
    rng = np.random.default_rng(0)
    for slope in (0.2, 1.0, 3.0):
        for height in (-4.0, 0.5, 20.0):
            z = np.append(rng.standard_normal(N), height)
            expected = nearest(z, lambda y, slope=slope: [cp.norm(y[:-1]) <= slope * y[-1]])
            np.testing.assert_allclose(project_flat(z, slope), expected, atol=1e-6)


def test_points_inside_stay_and_polar_points_go_to_the_apex():
    np.testing.assert_array_equal(project_flat(np.array([3.0, 4.0, 2.5]), 2.0), [3.0, 4.0, 2.5])
    np.testing.assert_array_equal(project_flat(np.array([3.0, 4.0, -10.0]), 2.0), np.zeros(3))
    np.testing.assert_array_equal(project_flat(np.zeros(3), 2.0), np.zeros(3))
    np.testing.assert_allclose(project_flat(np.array([3.0, 4.0, 0.0]), 1.0), [1.5, 2.0, 2.5], rtol=1e-15)
    np.testing.assert_allclose(project_flat(np.array([-2.0, 0.0]), 1.0), [-1.0, 1.0], rtol=1e-15)  # one entry


def test_derivatives():
    rng = np.random.default_rng(1)
    for seed, height in enumerate((-9.0, -0.2, 0.0, 0.3, 20.0)):
        check_derivatives(project_flat, np.append(rng.standard_normal(N), height), 0.8, seed=seed)
    jacobian = jax.jit(jax.jacobian(project_flat, argnums=(0, 1)))
    for z in (np.zeros(3), np.array([3.0, 4.0, 5.0]), np.array([3.0, 4.0, -5.0]), np.array([0.0, 0.0, -1.0])):
        assert all(np.isfinite(part).all() for part in jacobian(z, 1.0))
    np.testing.assert_array_equal(jacobian(np.array([0.0, 0.0, 1.0]), 1.0)[0], np.eye(3))


def test_a_batch_of_a_thousand_and_single_precision():
    rng = np.random.default_rng(2)
    z = rng.standard_normal((1000, N + 1))
    batch = jax.vmap(project_flat, in_axes=(0, None))(z, 0.7)
    np.testing.assert_allclose(batch[7], project_flat(z[7], 0.7), atol=1e-15)
    with jax.enable_x64(False):
        single = jax.vmap(project_flat, in_axes=(0, None))(jnp.asarray(z), 0.7)
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, batch, atol=2e-6)
        tiny = project_flat(jnp.asarray(1e-30 * z[0]), 0.7)  # squares would vanish
        np.testing.assert_allclose(tiny, 1e-30 * batch[0], atol=2e-36)
