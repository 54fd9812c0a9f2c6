"""Euclidean (Frobenius) balls {y : ||y - centre|| <= radius}."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def project(
    z: Float[Array, "*shape"], centre: Float[Array, "*shape"], radius: Float[Array, ""]
) -> Float[Array, "*shape"]:
    """centre + (z - centre) min(1, radius / ||z - centre||); differentiable off the sphere, radius 0 and inf included."""
    shift = z - centre
    square = jnp.sum(shift * shift)
    outside = square > radius * radius
    length = jnp.sqrt(jnp.where(outside, square, 1.0))
    inside = jnp.where(radius > 0, z, centre)  # a ball of radius 0 moves with its centre alone, at whatever z
    # where z is inside, neither branch may see an infinite radius: 0 * inf is NaN in derivatives
    return jnp.where(outside, centre + shift * (jnp.where(outside, radius, 1.0) / length), inside)
