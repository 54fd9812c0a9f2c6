"""Isotonic regression against SciPy (pooling adjacent violators), CVXPY, Moreau's decomposition and central differences."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from hierfl.projections import isotonic
from tests.projections.moreau import check_cone
from tests.projections.reference import check_derivatives, nearest

pytestmark = pytest.mark.usefixtures("x64")
PROJECT = jax.jit(isotonic.project)
KINDS = ["generic", "integer", "walk", "decreasing", "scales", "outlier", "equal", "zero"]


def make(kind, rng, count, n):
    """Data with few and many, short and long blocks."""
    return {
        "generic": lambda: rng.standard_normal((count, n)),
        "integer": lambda: rng.integers(-1, 2, (count, n)).astype(float),
        "walk": lambda: np.cumsum(rng.standard_normal((count, n)), axis=1),
        "decreasing": lambda: -np.sort(rng.random((count, n)), axis=1),
        "scales": lambda: 10.0 ** rng.uniform(-8, 8, (count, n)) * rng.choice([-1, 1], (count, n)),
        "outlier": lambda: np.append(float(n * n), np.arange(1.0, n)) * (1 + 1e-3 * rng.random((count, n))),
        "equal": lambda: np.tile(rng.standard_normal((count, 1)), n),
        "zero": lambda: np.zeros((count, n)),
    }[kind]()


@pytest.mark.parametrize("n", [1, 2, 3, 8, 37, 700])
def test_agrees_with_pooling_adjacent_violators(n):
    rng = np.random.default_rng(n)
    z = np.concatenate([make(kind, rng, 5, n) for kind in KINDS])
    for point, p in zip(z, jax.vmap(PROJECT)(z)):
        expected = isotonic_regression(point).x
        np.testing.assert_allclose(p, expected, rtol=0, atol=(8 + n) * 2e-16 * np.abs(point).max())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([1e-8, 1.0, 1e8]), st.sampled_from(KINDS), st.sampled_from([1, 7, 20]))
def test_is_the_projection(seed, size, kind, n):
    points = size * make(kind, np.random.default_rng(seed), 20, n)

    def violation(y):
        return -np.min(np.diff(y), initial=0.0)

    def polar_violation(v):
        """v is in the polar cone if its partial sums from the left are at least 0 and the whole sum is 0."""
        sums = np.cumsum(v)
        return max(-sums.min(), abs(sums[-1]))

    check_cone(PROJECT, violation, polar_violation, points)


def test_agrees_with_cvxpy():
    z = np.random.default_rng(0).standard_normal(12)
    np.testing.assert_allclose(PROJECT(z), nearest(z, lambda y: [cp.diff(y) >= 0]), atol=1e-7)


@pytest.mark.parametrize("enabled", [True, False], ids=["double", "single"])
def test_monotone_vectors_stay(enabled):
    with jax.enable_x64(enabled):
        for z in (np.linspace(0, 1, 40), np.append(np.linspace(0, 2e-10, 39), 1.0), np.ones(9), np.array([-3.0])):
            z = jnp.asarray(z)
            np.testing.assert_allclose(PROJECT(z), z, rtol=1e-7 if not enabled else 1e-15, atol=0)


def test_derivatives_average_over_the_blocks():
    z = np.array([1.0, 3.0, 2.0, 7.0, 6.0, 5.0, 9.0])
    expected = np.zeros((7, 7))
    for block in ([0], [1, 2], [3, 4, 5], [6]):
        expected[np.ix_(block, block)] = 1 / len(block)
    np.testing.assert_allclose(jax.jacfwd(PROJECT)(z), expected, atol=1e-15)
    np.testing.assert_allclose(jax.jacrev(PROJECT)(z), expected, atol=1e-15)
    for seed in range(3):
        check_derivatives(isotonic.project, np.random.default_rng(seed).standard_normal(13), seed=seed)
    for n in (1, 2, 5):
        assert np.isfinite(jax.jacobian(PROJECT)(np.ones(n))).all()


def test_a_batch_of_a_thousand_and_single_precision():
    z = np.random.default_rng(3).standard_normal((1000, 20))
    batch = jax.vmap(PROJECT)(z)
    np.testing.assert_allclose(batch[7], PROJECT(z[7]), atol=1e-15)
    with jax.enable_x64(False):
        single = jax.vmap(PROJECT)(jnp.asarray(z))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, batch, atol=2e-6)
