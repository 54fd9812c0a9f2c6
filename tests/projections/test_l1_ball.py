"""Weighted l1 balls against CVXPY and what characterises a projection."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import l1_ball
from tests.projections.reference import check_derivatives, check_projection, nearest

pytestmark = pytest.mark.usefixtures("x64")
PROJECT = jax.jit(l1_ball.project)
N = 7


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-6, 1.0, 1e3]),
    st.booleans(),
)
def test_is_the_projection(seed, size, unit, distance, tied):
    rng = np.random.default_rng(seed)
    weights = unit * (rng.integers(0, 3, N) if tied else rng.random(N) * (rng.random(N) < 0.8))
    centre, radius = size * rng.standard_normal(N), unit * size * rng.random()
    points = centre + distance * size * (rng.integers(-2, 3, (30, N)) if tied else rng.standard_normal((30, N)))
    check_projection(
        lambda z: PROJECT(z, centre, weights, radius),
        lambda y: (weights @ np.abs(y - centre) - radius) / max(weights.max(), 1e-300),
        points,
    )


def test_agrees_with_cvxpy():
    rng = np.random.default_rng(0)
    for weights in (np.ones(N), rng.random(N), np.r_[0.0, rng.random(N - 1)], 10.0 ** rng.uniform(-2, 2, N)):
        z, centre = 3 * rng.standard_normal(N), rng.standard_normal(N)
        np.testing.assert_allclose(
            PROJECT(z, centre, weights, 0.7), nearest(z, constraint(weights, centre, 0.7)), atol=1e-6
        )


def constraint(weights, centre, radius):
    return lambda y: [weights @ cp.abs(y - centre) <= radius]


def test_degenerate_radii_and_weights():
    z, centre, weights = np.linspace(-3, 3, N), np.ones(N), np.r_[0.0, np.linspace(1e-3, 2, N - 1)]
    np.testing.assert_array_equal(PROJECT(z, centre, weights, 0.0), np.r_[z[0], np.ones(N - 1)])
    np.testing.assert_array_equal(PROJECT(z, centre, weights, np.inf), z)
    np.testing.assert_array_equal(PROJECT(z, centre, np.zeros(N), 0.0), z)
    assert np.isfinite(PROJECT(z, centre, weights, -1.0)).all()


def test_derivatives():
    rng = np.random.default_rng(2)
    for seed in range(3):
        centre, weights = rng.standard_normal(N), rng.random(N) + 0.1
        check_derivatives(l1_ball.project, 2 * rng.standard_normal(N), centre, weights, 1.5, seed=seed)
        check_derivatives(l1_ball.project, centre + 0.01, centre, weights, 1.5, seed=seed)
    jacobian = jax.jit(jax.jacobian(l1_ball.project, argnums=(0, 1, 2, 3)))
    for radius, some in ((0.0, weights), (np.inf, weights), (1.0, np.zeros(N))):
        jacobians = jacobian(centre + 1.0, centre, some, radius)
        assert all(np.isfinite(jacobian).all() for jacobian in jacobians)


def test_a_batch_of_a_thousand_and_single_precision():
    rng = np.random.default_rng(3)
    z, weights = rng.standard_normal((1000, N)), rng.random(N)
    batch = jax.jit(jax.vmap(lambda z: l1_ball.project(z, jnp.zeros(N), weights, 0.5)))(z)
    np.testing.assert_allclose(batch[7], PROJECT(z[7], np.zeros(N), weights, 0.5), atol=1e-14)
    with jax.enable_x64(False):
        single = jax.vmap(lambda z: l1_ball.project(z, jnp.zeros(N), jnp.asarray(weights), 0.5))(jnp.asarray(z))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, batch, atol=2e-6)
