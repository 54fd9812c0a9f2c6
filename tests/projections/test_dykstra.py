"""Dykstra's algorithm against CVXPY and central differences."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierfl.projections import ball, box, box_with_hyperplane, dykstra
from tests.projections.reference import check_derivatives, check_projection, nearest

pytestmark = pytest.mark.usefixtures("x64")
N = 6
A = np.random.default_rng(0).standard_normal((2, N))
LOWER, UPPER = -np.ones(N), np.linspace(0.2, 1, N)


def three_sets(z, centre, radius, offsets):
    """A box with one row, a halfspace and a ball."""
    infinite = jnp.full(N, jnp.inf)
    sets = [
        lambda y: box_with_hyperplane.project(y, A[0], offsets[0], offsets[0] + 0.5, LOWER, UPPER),
        lambda y: box_with_hyperplane.project(y, A[1], -jnp.inf, offsets[1], -infinite, infinite),
        lambda y: ball.project(y, centre, radius),
    ]
    return dykstra.project(z, sets, tolerance=1e-13, limit=20000)


PROJECT = jax.jit(three_sets)
CENTRE, RADIUS, OFFSETS = np.full(N, 0.3), 0.9, np.array([-0.2, 0.1])


def test_is_the_projection():
    points = 3 * np.random.default_rng(1).standard_normal((20, N))
    _, residuals = jax.vmap(lambda z: PROJECT(z, CENTRE, RADIUS, OFFSETS))(points)
    assert (residuals <= 1e-13).all()

    def violation(y):
        rows = [A[0] @ y - OFFSETS[0] - 0.5, OFFSETS[0] - A[0] @ y, A[1] @ y - OFFSETS[1]]
        return max(*rows, (LOWER - y).max(), (y - UPPER).max(), np.linalg.norm(y - CENTRE) - RADIUS)

    check_projection(lambda z: PROJECT(z, CENTRE, RADIUS, OFFSETS)[0], violation, points)


def test_agrees_with_cvxpy():
    z = 3 * np.random.default_rng(2).standard_normal(N)

    def constraints(y):
        rows = [A[0] @ y >= OFFSETS[0], A[0] @ y <= OFFSETS[0] + 0.5, A[1] @ y <= OFFSETS[1]]
        return [*rows, y >= LOWER, y <= UPPER, cp.norm(y - CENTRE) <= RADIUS]

    np.testing.assert_allclose(PROJECT(z, CENTRE, RADIUS, OFFSETS)[0], nearest(z, constraints), atol=3e-6)


def point(z, centre, radius, offsets):
    return three_sets(z, centre, radius, offsets)[0]


def test_derivatives_of_the_fixed_point():
    for seed in range(3):
        z = 3 * np.random.default_rng(seed + 5).standard_normal(N)
        check_derivatives(point, z, CENTRE, RADIUS, OFFSETS, seed=seed, step=1e-5)


def test_an_empty_intersection_has_a_residual_and_ends():
    sets = [lambda y: box.project(y, jnp.zeros(N), jnp.ones(N)), lambda y: ball.project(y, jnp.full(N, 3.0), 1.0)]
    p, residual = dykstra.project(jnp.zeros(N), sets, tolerance=1e-12, limit=500)
    assert np.isfinite(p).all()
    assert float(residual) > 0.1


def test_one_set_is_projected_at_once():
    z = np.linspace(-3, 3, N)
    p, residual = dykstra.project(jnp.asarray(z), [lambda y: box.project(y, LOWER, UPPER)], tolerance=1e-14, limit=3)
    np.testing.assert_array_equal(p, np.clip(z, LOWER, UPPER))
    assert float(residual) == 0


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_scales(scale):
    z = np.linspace(3, -3, N)
    p, residual = PROJECT(scale * z, scale * CENTRE, scale * RADIUS, scale * OFFSETS)
    unit_box = [lambda y: box.project(y, jnp.full(N, -scale), jnp.full(N, scale))]
    q, _ = dykstra.project(jnp.asarray(scale * z), unit_box, tolerance=1e-13, limit=10)
    np.testing.assert_array_equal(q, np.clip(scale * z, -scale, scale))
    assert np.isfinite(p).all() and np.isfinite(residual)
