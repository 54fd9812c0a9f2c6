"""Ellipsoids against CVXPY and what characterises a projection."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import ellipsoid
from tests.projections.reference import check_derivatives, check_projection, nearest

pytestmark = pytest.mark.usefixtures("x64")
PROJECT = jax.jit(ellipsoid.project)
N = 7


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-6, 1.0, 1e3]),
)
def test_is_the_projection(seed, size, unit, distance):
    rng = np.random.default_rng(seed)
    scale = unit * 10.0 ** rng.uniform(-2, 2, N) * (rng.random(N) < 0.8)
    centre, radius = size * rng.standard_normal(N), unit * size * rng.random()
    points = centre + distance * size * rng.standard_normal((30, N))
    check_projection(
        lambda z: PROJECT(z, centre, scale, radius),
        lambda y: (np.linalg.norm(scale * (y - centre)) - radius) / max(scale.max(), 1e-300),
        points,
    )


def test_agrees_with_cvxpy():
    rng = np.random.default_rng(0)
    for scale in (rng.random(N) + 0.1, np.r_[np.zeros(2), rng.random(N - 2)], 10.0 ** rng.uniform(-2, 2, N)):
        z, centre = 3 * rng.standard_normal(N), rng.standard_normal(N)
        expected = nearest(z, ellipsoid_constraint(scale, centre, 0.7))
        np.testing.assert_allclose(PROJECT(z, centre, scale, 0.7), expected, atol=3e-5)  # what Clarabel attains


def ellipsoid_constraint(scale, centre, radius):
    return lambda y: [cp.norm(cp.multiply(scale, y - centre)) <= radius]


def test_stationarity_with_very_unequal_axes():
    """z - p is a nonnegative multiple of the outward normal scale^2 (p - centre), to 1e-12 of its length."""
    rng = np.random.default_rng(1)
    for spread in (2, 5, 8):
        scale = 10.0 ** rng.uniform(-spread, spread, 50)
        z = 10.0 ** rng.uniform(-spread, spread, 50) * rng.choice([-1, 1], 50)
        p = np.asarray(PROJECT(z, np.zeros(50), scale, 1.0))
        assert np.linalg.norm(scale * p) == pytest.approx(1.0, rel=1e-12)
        normal = scale**2 * p / np.linalg.norm(scale**2 * p)
        multiplier = (z - p) @ normal
        assert multiplier > 0
        assert np.linalg.norm(z - p - multiplier * normal) <= 1e-12 * np.linalg.norm(z)


def test_degenerate_radii_and_scales():
    z, centre, scale = np.linspace(-3, 3, N), np.ones(N), np.r_[0.0, np.linspace(1e-3, 2, N - 1)]
    np.testing.assert_array_equal(PROJECT(z, centre, scale, 0.0), np.r_[z[0], np.ones(N - 1)])
    np.testing.assert_array_equal(PROJECT(z, centre, scale, np.inf), z)
    np.testing.assert_array_equal(PROJECT(z, centre, np.zeros(N), 0.0), z)
    np.testing.assert_array_equal(PROJECT(centre, centre, scale, 0.0), centre)
    assert np.isfinite(PROJECT(z, centre, scale, -1.0)).all()
    assert float(ellipsoid.gap(-1.0)) > 0 and float(ellipsoid.gap(0.0)) <= 0


def test_derivatives():
    rng = np.random.default_rng(2)
    for seed in range(3):
        centre, scale = rng.standard_normal(N), np.r_[0.1, rng.random(N - 1) + 0.1]
        check_derivatives(ellipsoid.project, 3 * rng.standard_normal(N), centre, scale, 0.8, seed=seed)
        check_derivatives(ellipsoid.project, centre + 0.01, centre, scale, 0.8, seed=seed)
    jacobian = jax.jit(jax.jacobian(ellipsoid.project, argnums=(0, 1, 2, 3)))
    for radius, some in ((0.0, scale), (np.inf, scale), (1.0, np.zeros(N))):
        jacobians = jacobian(centre + 1.0, centre, some, radius)
        assert all(np.isfinite(jacobian).all() for jacobian in jacobians)


def test_a_batch_of_a_thousand_and_single_precision():
    rng = np.random.default_rng(3)
    z, scale = rng.standard_normal((1000, N)), rng.random(N)
    batch = jax.jit(jax.vmap(lambda z: ellipsoid.project(z, jnp.zeros(N), scale, 0.5)))(z)
    np.testing.assert_allclose(batch[7], PROJECT(z[7], np.zeros(N), scale, 0.5), atol=1e-14)
    with jax.enable_x64(False):
        single = jax.vmap(lambda z: ellipsoid.project(z, jnp.zeros(N), jnp.asarray(scale), 0.5))(jnp.asarray(z))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, batch, atol=5e-6)
