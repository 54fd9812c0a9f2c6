"""Derivatives of clipping where bounds meet, against those of the bound, and at kinks, against the mean of both sides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierfl.projections import ball, box

pytestmark = pytest.mark.usefixtures("x64")
PROJECT = jax.jit(box.project)
SLOPES = jax.jit(jax.jacfwd(box.project, argnums=(0, 1, 2)))


def slopes(z, lower, upper, dtype=float):
    """The derivatives of each entry by z, and by both bounds as they move together."""
    by_z, by_lower, by_upper = SLOPES(*(jnp.asarray(a, dtype) for a in (z, lower, upper)))
    for matrix in (by_z, by_lower, by_upper):
        assert not np.any(matrix - np.diag(np.diag(matrix)))
    return np.diag(by_z), np.diag(by_lower + by_upper)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_entry_whose_bounds_meet_moves_with_them_at_whatever_z(dtype):
    z = np.array([0.5, 1.0, 1.5, -0.3, 0.0, 1e-30, 1e30])
    at = np.array([1.0, 1.0, 1.0, -0.3, 0.0, 1e-30, 1e30])
    np.testing.assert_array_equal(PROJECT(*(jnp.asarray(a, dtype) for a in (z, at, at))), at.astype(dtype))
    by_z, by_bound = slopes(z, at, at, dtype)
    np.testing.assert_array_equal(by_z, 0)
    np.testing.assert_array_equal(by_bound, 1)


def test_bounds_that_meet_up_to_rounding():
    """y >= 0.7 and 3 y <= 2.1, whose quotient is the next number above 0.7, and the other way round."""
    near = np.array([0.7, 2.1 / 3])
    assert near[1] > near[0]
    for lower, upper in (near, near[::-1]):
        by_z, by_bound = slopes(near, np.full(2, lower), np.full(2, upper))
        np.testing.assert_array_equal(by_z, 0)
        np.testing.assert_array_equal(by_bound, 1)


def test_kinks_of_one_bound_keep_the_mean_of_both_sides():
    """Entries inside, at the lower bound, at the upper one, beyond, free, and in an interval of 1e-12, which is no equation."""
    z = np.array([0.5, 0.0, 1.0, 2.0, 3.0, 1.0])
    lower, upper = np.array([0, 0, 0, 0, -np.inf, 1.0]), np.array([1, 1, 1, 1, np.inf, 1 + 1e-12])
    by_z, by_bounds = slopes(z, lower, upper)
    np.testing.assert_array_equal(by_z, [1, 0.5, 0.5, 0, 1, 0.5])
    np.testing.assert_array_equal(by_bounds, [0, 0.5, 0.5, 1, 0, 0.5])


def test_a_batch_forwards_and_backwards():
    """y = clip(x^2, 3 x, 3 x): 3 x, also at x = 3 and 0, where x^2 is the bound; its derivative is 3 there, not 6 or 0."""

    def forced(x):
        return box.project(x * x, 3 * x, 3 * x)

    x = jnp.array([-1.0, 0.0, 3.0, 5.0])
    for differentiate in (jax.grad, jax.jacfwd, jax.jacrev):
        np.testing.assert_array_equal(jax.jit(jax.vmap(differentiate(forced)))(x), 3.0)


def test_bounds_that_cross_give_the_upper_one():
    np.testing.assert_array_equal(PROJECT(jnp.array([0.0, 1.5, 3.0]), jnp.full(3, 2.0), jnp.full(3, 1.0)), 1.0)


def test_a_ball_of_radius_zero_does_not_move():
    for z in (jnp.zeros(2), jnp.array([1.0, 2.0])):
        np.testing.assert_array_equal(ball.project(z, jnp.array(0.0)), 0)
        np.testing.assert_array_equal(jax.jacrev(ball.project)(z, jnp.array(0.0)), np.zeros((2, 2)))
