"""Balls of a sum of norms against CVXPY and what characterises a projection."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import group_ball
from tests.projections.reference import check_derivatives, check_projection, nearest

pytestmark = pytest.mark.usefixtures("x64")
GROUPS = np.array([0, 2, 1, 0, 1, 1, 3, 2])
N, COUNT = GROUPS.size, 4
PROJECT = jax.jit(lambda z, centre, weights, radius: group_ball.project(z, GROUPS, centre, weights, radius))


def total(y, centre, weights):
    return sum(weights[g] * np.linalg.norm((y - centre)[g == GROUPS]) for g in range(COUNT))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-6, 1.0, 1e3]),
)
def test_is_the_projection(seed, size, unit, distance):
    rng = np.random.default_rng(seed)
    weights = unit * rng.random(COUNT) * (rng.random(COUNT) < 0.8)
    centre, radius = size * rng.standard_normal(N), unit * size * rng.random()
    points = centre + distance * size * rng.standard_normal((30, N))
    check_projection(
        lambda z: PROJECT(z, centre, weights, radius),
        lambda y: (total(y, centre, weights) - radius) / max(weights.max(), 1e-300),
        points,
    )


def test_agrees_with_cvxpy():
    rng = np.random.default_rng(0)
    z, centre, weights = 2 * rng.standard_normal(N), rng.standard_normal(N), np.array([1.0, 0.3, 2.0, 0.0])

    def constraints(y):
        norms = [weights[g] * cp.norm((y - centre)[np.flatnonzero(g == GROUPS)]) for g in range(COUNT)]
        return [cp.sum(cp.hstack(norms)) <= 1.1]

    np.testing.assert_allclose(PROJECT(z, centre, weights, 1.1), nearest(z, constraints), atol=1e-6)


def test_degenerate_radii_and_points():
    z, centre, weights = np.linspace(-3, 3, N), np.ones(N), np.array([1.0, 0.3, 2.0, 0.0])
    np.testing.assert_array_equal(PROJECT(z, centre, weights, 0.0), np.where(GROUPS == 3, z, 1.0))
    np.testing.assert_array_equal(PROJECT(z, centre, weights, np.inf), z)
    np.testing.assert_array_equal(PROJECT(centre, centre, weights, 0.0), centre)
    assert np.isfinite(PROJECT(z, centre, weights, -1.0)).all()
    assert float(group_ball.gap(-1.0)) > 0 and float(group_ball.gap(0.0)) <= 0


def test_derivatives():
    rng = np.random.default_rng(2)
    jacobian = jax.jit(jax.jacobian(PROJECT, argnums=(0, 1, 2, 3)))
    for seed in range(3):
        centre, weights = rng.standard_normal(N), rng.random(COUNT) + 0.1
        check_derivatives(PROJECT, 2 * rng.standard_normal(N), centre, weights, 1.5, seed=seed)
        at_centre = np.where(GROUPS == 1, centre, centre + 2)  # one group has no direction
        for radius in (0.0, 1.5, np.inf):
            assert all(np.isfinite(part).all() for part in jacobian(at_centre, centre, weights, radius))


def test_a_batch_of_a_thousand_and_single_precision():
    rng = np.random.default_rng(3)
    z, weights = rng.standard_normal((1000, N)), rng.random(COUNT)
    batch = jax.vmap(lambda z: PROJECT(z, jnp.zeros(N), weights, 0.5))(z)
    np.testing.assert_allclose(batch[7], PROJECT(z[7], np.zeros(N), weights, 0.5), atol=1e-14)
    with jax.enable_x64(False):
        single = jax.vmap(lambda z: PROJECT(z, jnp.zeros(N), jnp.asarray(weights), 0.5))(jnp.asarray(z))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, batch, atol=2e-6)
