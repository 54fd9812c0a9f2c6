"""Epigraphs of the l1 and the max norm against CVXPY, Moreau's decomposition and central differences."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import norm_cone
from tests.projections.moreau import check_cone
from tests.projections.reference import check_derivatives, nearest

pytestmark = pytest.mark.usefixtures("x64")
N = 6


@jax.jit
def flat_l1(z, slope):
    return jnp.append(*norm_cone.project_l1(z[:-1], z[-1], slope))


@jax.jit
def flat_linf(z, slope):
    return jnp.append(*norm_cone.project_linf(z[:-1], z[-1], slope))


def l1(u):
    return np.abs(u).sum()


def linf(u):
    return np.abs(u).max()


def violation(norm, slope):
    return lambda z: (norm(z[:-1]) - slope * z[-1]) / np.hypot(1.0, slope)


def polar_violation(dual_norm, slope):
    return lambda v: (slope * dual_norm(v[:-1]) + v[-1]) / np.hypot(1.0, slope)


CONES = pytest.mark.parametrize("project, norm, dual", [(flat_l1, l1, linf), (flat_linf, linf, l1)], ids=["l1", "linf"])


@CONES
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-8, 0.3, 1.0, 1e8]),
    st.sampled_from(["generic", "integer", "equal", "axis", "flat"]),
)
def test_is_the_projection(project, norm, dual, seed, size, slope, kind):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((30, N + 1)) if kind != "integer" else rng.integers(-2, 3, (30, N + 1)).astype(float)
    points[:, -1] *= 0.0 if kind == "flat" else 10.0 ** rng.uniform(-8, 8, 30)
    if kind == "equal":
        points[:, :-1] = points[:, :1]
    points[:, :-1] *= 0.0 if kind == "axis" else 10.0 ** rng.uniform(-4, 0, N)
    check_cone(lambda z: project(z, slope), violation(norm, slope), polar_violation(dual, slope), size * points)


@CONES
def test_agrees_with_cvxpy(project, norm, dual):
    rng = np.random.default_rng(0)
    order = 1 if norm is l1 else "inf"
    for slope in (0.2, 1.0, 3.0):
        for height in (-9.0, -0.5, 0.5, 20.0):
            z = np.append(2 * rng.standard_normal(N), height)
            expected = nearest(z, lambda y, slope=slope: [cp.norm(y[:-1], order) <= slope * y[-1]])
            np.testing.assert_allclose(project(z, slope), expected, atol=1e-6)


@CONES
def test_points_inside_stay_and_polar_points_go_to_the_apex(project, norm, dual):
    u = np.array([3.0, -4.0, 0.0])
    inside, polar = np.append(u, norm(u) / 2), np.append(u, -2 * dual(u))
    np.testing.assert_array_equal(project(inside, 2.0), inside)
    np.testing.assert_allclose(project(polar, 2.0), np.zeros(4), atol=1e-15)
    np.testing.assert_array_equal(project(polar - np.array([0, 0, 0, 1.0]), 2.0), np.zeros(4))
    np.testing.assert_array_equal(project(np.zeros(4), 2.0), np.zeros(4))
    np.testing.assert_allclose(project(np.array([-2.0, 0.0]), 1.0), [-1.0, 1.0], rtol=1e-15)  # one entry


@CONES
def test_sizes_that_drop_one_by_one(project, norm, dual):
    """Geometric sizes are the longest way for a search that drops entries in rounds."""
    z = np.append(2.0 ** -np.arange(60), 0.0)
    for slope in (1e-8, 1.0, 1e8):
        check_cone(
            lambda z, slope=slope: project(z, slope), violation(norm, slope), polar_violation(dual, slope), z[None]
        )


@CONES
def test_derivatives(project, norm, dual):
    rng = np.random.default_rng(1)
    for seed, height in enumerate((-20.0, -1.0, 0.0, 0.5, 30.0)):
        for slope in (0.4, 1.7):
            check_derivatives(project, np.append(rng.standard_normal(N), height), slope, seed=seed)
    jacobian = jax.jit(jax.jacobian(project, argnums=(0, 1)))
    for z in ([0, 0, 0], [1, 1, 2], [1, 1, -2], [1, 1, 1], [1, 1, -1], [0, 0, -1], [1, 0, 0]):
        assert all(np.isfinite(part).all() for part in jacobian(np.array(z, dtype=float), 1.0))
    np.testing.assert_array_equal(jacobian(np.array([0.0, 0.0, 1.0]), 1.0)[0], np.eye(3))


@CONES
def test_a_batch_of_a_thousand_and_single_precision(project, norm, dual):
    rng = np.random.default_rng(2)
    z = rng.standard_normal((1000, N + 1))
    batch = jax.vmap(project, in_axes=(0, None))(z, 0.7)
    np.testing.assert_allclose(batch[7], project(z[7], 0.7), atol=1e-15)
    with jax.enable_x64(False):
        single = jax.vmap(project, in_axes=(0, None))(jnp.asarray(z), 0.7)
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, batch, atol=5e-6)
