"""Euclidean (Frobenius) balls {y : ||y - centre|| <= radius}."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from hierfl.projections.emptiness import beyond


def project(z: Array, centre: Array, radius: Array) -> Array:
    """centre + (z - centre) min(1, radius / ||z - centre||); differentiable off the sphere, radius 0 and inf included."""
    shift = z - centre
    square = jnp.sum(shift * shift)
    outside = square > radius * radius
    length = jnp.sqrt(jnp.where(outside, square, 1.0))
    # where z is inside, neither branch may see an infinite radius: 0 * inf is NaN in derivatives
    return jnp.where(outside, centre + shift * (jnp.where(outside, radius, 1.0) / length), z)


def gap(radius: Array) -> Array:
    """-radius: positive when the ball is empty."""
    return beyond(-radius, jnp.abs(radius))
