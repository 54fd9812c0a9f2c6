"""Euclidean (Frobenius) balls {y : ||y - centre|| <= radius}."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def project(z: Array, centre: Array, radius: Array) -> Array:
    """centre + (z - centre) min(1, radius / ||z - centre||); differentiable off the sphere, radius 0 included."""
    shift = z - centre
    square = jnp.sum(shift * shift)
    outside = square > radius * radius
    length = jnp.sqrt(jnp.where(outside, square, 1.0))
    return jnp.where(outside, centre + shift * (radius / length), z)


def gap(radius: Array) -> Array:
    """-radius: positive when the ball is empty."""
    return -radius
