"""Rotated cones against 60-digit arithmetic, CVXPY, Moreau's decomposition and central differences."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import rotated_cone
from tests.projections.moreau import check_cone
from tests.projections.reference import check_derivatives, nearest

pytestmark = pytest.mark.usefixtures("x64")
N = 4


@jax.jit
def project_flat(z, factor):
    u, s, t = rotated_cone.project(z[:-2], z[-2], z[-1], factor)
    return jnp.concatenate([u, jnp.stack([s, t])])


def violation(factor):
    """An upper bound of the distance, up to a constant: what the smaller of s and t, or the length of u, lacks."""

    def distance(z):
        length, s, t = np.linalg.norm(z[:-2]), max(z[-2], 0.0), max(z[-1], 0.0)
        outside = max(-z[-2], -z[-1], 0.0)
        lacking = length * (length / (factor * max(s, t))) - min(s, t) if max(s, t) > 0 else np.inf
        return max(outside, min(lacking, length - np.sqrt(factor * s) * np.sqrt(t)))

    return distance


def polar_violation(factor):
    """The polar cone is minus the rotated cone with 4 / factor."""
    return lambda v: violation(4.0 / factor)(-v)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-8, 0.3, 2.0, 4.0, 1e8]),
    st.sampled_from(["generic", "integer", "axis", "opposite"]),
)
def test_is_the_projection(seed, size, factor, kind):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((20, N + 2)) if kind != "integer" else rng.integers(-1, 2, (20, N + 2)).astype(float)
    points[:, -2:] *= 10.0 ** rng.uniform(-4, 4, (20, 1))
    points[:, :-2] *= 0.0 if kind == "axis" else 1.0
    if kind == "opposite":
        points[:, -1] = -points[:, -2]
    check_cone(lambda z: project_flat(z, factor), violation(factor), polar_violation(factor), size * points)


@pytest.mark.parametrize("factor", [1e-16, 1e-8, 1e-3, 0.3, 2.0, 1e4, 1e8, 1e16])
def test_agrees_with_arithmetic_of_sixty_digits(factor):
    rng = np.random.default_rng(0)
    for count in range(25):
        z = rng.standard_normal(N + 2) * 10.0 ** rng.uniform(-4, 4)
        z[-2:] *= 10.0 ** rng.uniform(-4, 4, 2)
        if count % 5 == 0:
            z[-1] = -z[-2] * (1 + rng.choice([-1, 0, 1]) * 1e-12)
        np.testing.assert_allclose(project_flat(z, factor), precise(z, factor), rtol=0, atol=2e-15 * np.linalg.norm(z))


def precise(z, factor):
    """Bisection for the multiplier of ||u||^2 <= factor s t."""
    with mpmath.workdps(60):
        *u, s, t = [mpmath.mpf(float(entry)) for entry in z]
        factor = mpmath.mpf(factor)
        square = sum(entry * entry for entry in u)
        if min(s, t) >= 0 and square <= factor * s * t:
            return z
        if max(s, t) <= 0 and square <= 4 / factor * s * t:
            return np.zeros_like(z)
        p, q = (s + t) / mpmath.sqrt(2), (s - t) / mpmath.sqrt(2)
        if p == 0:
            shrunk = [entry / (1 + 2 / factor) for entry in u]
            p_new, q_new = mpmath.sqrt(2 / factor * sum(e * e for e in shrunk) + q * q / 4), q / 2
        else:
            low, high = (mpmath.mpf(10) ** -45, mpmath.mpf(1)) if p > 0 else (mpmath.mpf(1), mpmath.mpf(10) ** 45)
            for _ in range(300):
                m = (low + high) / 2 if high < 2 * low else mpmath.sqrt(low * high)
                value = (p / (1 - m)) ** 2 - (q / (1 + m)) ** 2 - 2 / factor * square / (1 + 2 * m / factor) ** 2
                low, high = (m, high) if (value < 0) == (p > 0) else (low, m)
            shrunk, p_new, q_new = [entry / (1 + 2 * m / factor) for entry in u], p / (1 - m), q / (1 + m)
        return np.array(
            [float(e) for e in [*shrunk, (p_new + q_new) / mpmath.sqrt(2), (p_new - q_new) / mpmath.sqrt(2)]]
        )


def test_agrees_with_cvxpy():
    rng = np.random.default_rng(1)
    for factor in (0.5, 2.0, 7.0):
        for s, t in ((1.0, 0.5), (-1.0, 2.0), (-0.5, -0.1)):
            z = np.r_[2 * rng.standard_normal(N), s, t]
            expected = nearest(z, lambda y, factor=factor: [rotated(y, factor)])
            np.testing.assert_allclose(project_flat(z, factor), expected, atol=5e-5)  # what Clarabel attains


def rotated(y, factor):
    return cp.norm(cp.hstack([2 / np.sqrt(factor) * y[:-2], y[-2] - y[-1]])) <= y[-2] + y[-1]


def test_points_inside_stay_and_polar_points_go_to_the_apex():
    np.testing.assert_array_equal(project_flat(np.array([2.0, 2.0, 4.0]), 0.5), [2.0, 2.0, 4.0])
    np.testing.assert_array_equal(project_flat(np.array([1.0, -5.0, -3.0]), 2.0), np.zeros(3))
    np.testing.assert_array_equal(project_flat(np.zeros(3), 2.0), np.zeros(3))
    np.testing.assert_allclose(project_flat(np.array([0.0, 3.0, -2.0]), 2.0), [0.0, 3.0, 0.0], atol=1e-15)


def test_derivatives():
    rng = np.random.default_rng(2)
    pairs = [(1.0, 0.5), (0.5, 0.5), (-0.5, -0.5), (-1.0, 1.0), (1.0, -1.0), (-1.0, 0.2), (20.0, 30.0), (-40.0, -30.0)]
    for factor in (0.3, 2.0, 9.0):
        for seed, (s, t) in enumerate(pairs):
            check_derivatives(project_flat, np.r_[rng.standard_normal(N), s, t], factor, seed=seed, tolerance=1e-5)
    jacobian = jax.jit(jax.jacobian(project_flat, argnums=(0, 1)))
    for z in ([0, 0, 0], [0, 1, 0], [0, -1, 0], [0, 1, -1], [0, -1, -1], [2, 2, 1], [2, -2, -1], [1, 0, 0]):
        assert all(np.isfinite(part).all() for part in jacobian(np.array(z, dtype=float), 2.0))


def test_a_batch_of_a_thousand_and_single_precision():
    rng = np.random.default_rng(3)
    z = rng.standard_normal((1000, N + 2))
    batch = jax.vmap(project_flat, in_axes=(0, None))(z, 0.7)
    np.testing.assert_allclose(batch[7], project_flat(z[7], 0.7), atol=1e-14)
    with jax.enable_x64(False):
        single = jax.vmap(project_flat, in_axes=(0, None))(jnp.asarray(z), 0.7)
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, batch, atol=5e-6)
