"""Nuclear and spectral balls and sets of eigenvalues against CVXPY, central differences and what characterises a projection."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import simplex, spectral
from tests.projections.reference import check_derivatives, check_projection, nearest

pytestmark = pytest.mark.usefixtures("x64")
SHAPES = [(1, 1), (1, 4), (3, 3), (5, 3), (3, 5)]

nuclear = jax.jit(spectral.project_nuclear_ball)
largest = jax.jit(spectral.project_spectral_ball)


@jax.jit
def spectraplex(z, total):
    """Positive semidefinite with a given trace."""
    return spectral.project_symmetric(z, lambda values: simplex.project(values, total))


@jax.jit
def banded(z, bounds):
    """Eigenvalues between two bounds."""
    return spectral.project_symmetric(z, lambda values: jnp.clip(values, bounds[0], bounds[1]))


def nuclear_norm(y):
    return np.linalg.norm(y, "nuc")


def spectral_norm(y):
    return np.linalg.norm(y, 2)


BALLS = pytest.mark.parametrize(
    "project, norm", [(nuclear, nuclear_norm), (largest, spectral_norm)], ids=["nuc", "max"]
)


def make(kind, rng, count, shape):
    p, q = shape
    return {
        "generic": lambda: rng.standard_normal((count, p, q)),
        "low rank": lambda: rng.standard_normal((count, p, 1)) @ rng.standard_normal((count, 1, q)),
        "repeated": lambda: np.eye(p, q) * rng.standard_normal((count, 1, 1)),
        "integer": lambda: rng.integers(-1, 2, (count, p, q)).astype(float),
        "nearly repeated": lambda: np.eye(p, q) + 1e-12 * rng.standard_normal((count, p, q)),
        "zero": lambda: np.zeros((count, p, q)),
    }[kind]()


KINDS = ["generic", "low rank", "repeated", "integer", "nearly repeated", "zero"]


def with_values(rng, shape, values):
    """A matrix with these singular values and random vectors."""
    u = np.linalg.qr(rng.standard_normal((shape[0], len(values))))[0]
    v = np.linalg.qr(rng.standard_normal((shape[1], len(values))))[0]
    return u * np.asarray(values) @ v.T


def with_eigenvalues(rng, values):
    q = np.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    return q * np.asarray(values) @ q.T


@BALLS
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from(SHAPES),
    st.sampled_from(KINDS),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([0.0, 1e-6, 0.5, 1.0, 20.0]),
)
def test_balls_are_projected_on(project, norm, seed, shape, kind, size, radius):
    points = size * make(kind, np.random.default_rng(seed), 10, shape)
    check_projection(lambda z: project(z, size * radius), lambda y: norm(y) - size * radius, points)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.sampled_from(KINDS),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-6, 1.0, 20.0]),
)
def test_sets_of_eigenvalues_are_projected_on(seed, kind, size, total):
    points = size * make(kind, np.random.default_rng(seed), 10, (4, 4))
    points = 0.5 * (points + points.transpose(0, 2, 1))
    bounds = size * np.array([-0.5, total])

    def outside_spectraplex(y):
        return max(-np.linalg.eigvalsh(y)[0], abs(np.trace(y) - size * total))

    def outside_band(y):
        values = np.linalg.eigvalsh(y)
        return max(bounds[0] - values[0], values[-1] - bounds[1])

    check_projection(lambda z: spectraplex(z, size * total), outside_spectraplex, points)
    check_projection(lambda z: banded(z, bounds), outside_band, points)


def test_agrees_with_cvxpy():
    rng = np.random.default_rng(0)
    for shape in ((3, 3), (4, 2), (2, 4)):
        z = 2 * rng.standard_normal(shape)
        np.testing.assert_allclose(nuclear(z, 1.5), nearest(z, lambda y: [cp.normNuc(y) <= 1.5]), atol=2e-6)
        np.testing.assert_allclose(largest(z, 1.5), nearest(z, lambda y: [cp.sigma_max(y) <= 1.5]), atol=2e-6)
    z = rng.standard_normal((4, 4))
    z += z.T
    expected = nearest(z, lambda y: [cp.trace(y) == 2], PSD=True)
    np.testing.assert_allclose(spectraplex(z, 2.0), expected, atol=2e-6)
    between = nearest(z, lambda y: [y >> -0.5 * np.eye(4), y << 1.5 * np.eye(4)], symmetric=True)
    np.testing.assert_allclose(banded(z, np.array([-0.5, 1.5])), between, atol=2e-6)


def test_degenerate_radii():
    z = np.arange(6.0).reshape(2, 3)
    for project in (nuclear, largest):
        np.testing.assert_array_equal(project(z, 0.0), np.zeros((2, 3)))
        np.testing.assert_array_equal(project(np.zeros((2, 3)), 0.0), np.zeros((2, 3)))
        np.testing.assert_allclose(project(z, np.inf), z, atol=1e-14)
        assert np.isfinite(project(z, -1.0)).all()
    assert float(spectral.gap(-1.0)) > 0 and float(spectral.gap(0.0)) <= 0


@BALLS
def test_derivatives_of_balls(project, norm):
    """Distinct, repeated, nearly repeated and vanishing singular values, where the projection is differentiable."""
    rng = np.random.default_rng(1)
    spectra = [
        (3, 2, 1),
        (2, 2, 2),
        (3, 3, 0.1),
        (4, 0, 0),
        (2, 1e-12, 0),
        (3, 3 - 1e-9, 1e-9),
        (0.3, 0.3, 0),
        (0, 0, 0),
    ]
    for seed, values in enumerate(spectra):
        shape = ((5, 3), (3, 4), (3, 3))[seed % 3]
        check_derivatives(project, with_values(rng, shape, values), 1.3, seed=seed, step=1e-5)


def test_derivatives_of_sets_of_eigenvalues():
    rng = np.random.default_rng(2)
    for seed, values in enumerate([(3, 1, -1, -2), (2, 2, -1, -1), (2, 2 - 1e-9, -1, -1 + 1e-12), (1, 1, 1, 1)]):
        z = with_eigenvalues(rng, values)
        check_derivatives(spectraplex, z, 3.0, seed=seed, step=1e-5)
        check_derivatives(banded, z, np.array([-0.5, 1.5]), seed=seed, step=1e-5)


@pytest.mark.parametrize("enabled", [True, False], ids=["double", "single"])
def test_derivatives_are_finite_and_nonexpansive_at_kinks(enabled):
    spectra = [
        (0, 0, 0),
        (1, 1, 1),
        (1, 1, 0),
        (1, 0, 0),
        (1 + 1e-7, 1, 1 - 1e-7),
        (1, 1e-30, 1e-30),
        (0.5, 0.25, 0.25),
    ]
    with jax.enable_x64(enabled):
        for project in (nuclear, largest, spectraplex):
            jacobians = jax.jit(jax.jacobian(project, argnums=(0, 1)))
            for values in spectra:
                for radius in (0.0, 1.0, 3.0):
                    jacobian, other = jacobians(jnp.diag(jnp.asarray(values, dtype=float)), radius)
                    assert np.isfinite(jacobian).all() and np.isfinite(other).all()
                    assert np.linalg.norm(np.asarray(jacobian).reshape(9, 9), 2) <= 1 + 1e-3


def test_a_batch_of_a_thousand_and_single_precision():
    rng = np.random.default_rng(3)
    z = rng.standard_normal((1000, 4, 3))
    square = z[:, :3]
    for project, points in ((nuclear, z), (largest, z), (spectraplex, square)):
        batch = jax.vmap(project, in_axes=(0, None))(points, 1.5)
        np.testing.assert_allclose(batch[7], project(points[7], 1.5), atol=1e-13)
        with jax.enable_x64(False):
            single = jax.vmap(project, in_axes=(0, None))(jnp.asarray(points), 1.5)
            assert single.dtype == jnp.float32
            np.testing.assert_allclose(single, batch, atol=2e-5)
