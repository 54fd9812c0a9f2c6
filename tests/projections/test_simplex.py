"""Simplices against CVXPY, at all scales."""

import cvxpy as cp
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import simplex
from tests.projections.reference import check_derivatives, check_projection, nearest

pytestmark = pytest.mark.usefixtures("x64")
PROJECT = jax.jit(simplex.project)
N = 9


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-8, 1e-3, 1.0, 1e8]),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.booleans(),
)
def test_is_the_projection(seed, total, size, tied):
    rng = np.random.default_rng(seed)
    points = size * (rng.integers(-2, 3, (30, N)) if tied else rng.standard_normal((30, N)))
    projected = check_projection(
        lambda z: PROJECT(z, total), lambda y: max(-y.min(), abs(y.sum() - total)), points, tolerance=1e-13
    )
    assert (projected >= 0).all()
    np.testing.assert_allclose(projected.sum(axis=1), total, rtol=1e-13)  # of the total, not of z


def test_agrees_with_cvxpy():
    z = np.random.default_rng(0).standard_normal(N)
    expected = nearest(z, lambda y: [y >= 0, cp.sum(y) == 1.3])
    np.testing.assert_allclose(PROJECT(z, 1.3), expected, atol=1e-7)


def test_one_entry():
    np.testing.assert_array_equal(PROJECT(np.array([-5.0]), 2.0), [2.0])


def test_derivatives():
    rng = np.random.default_rng(1)
    for seed in range(3):
        check_derivatives(simplex.project, rng.standard_normal(N), 1.3, seed=seed)
    assert np.isfinite(jax.jacobian(simplex.project)(np.ones(N), 0.0)).all()


def test_gap():
    assert float(simplex.gap(-1e-9)) > 0
    assert float(simplex.gap(0.0)) <= 0


def test_a_batch_of_a_thousand():
    z = np.random.default_rng(2).standard_normal((1000, 50))
    batch = np.asarray(jax.vmap(lambda row: PROJECT(row, 1.0))(z))
    assert (batch >= 0).all()
    np.testing.assert_allclose(batch.sum(axis=1), 1.0, rtol=1e-14)
