"""Euclidean (Frobenius) balls {y : ||y|| <= radius}."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def project(z: Float[Array, "*shape"], radius: Float[Array, ""]) -> Float[Array, "*shape"]:
    """z min(1, radius / ||z||); differentiable off the sphere, radius 0 and inf included."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(z), initial=0.0))
    largest = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)  # beside which no square overflows or vanishes
    square, bound = jnp.sum((z / largest) ** 2), radius / largest
    outside = square > bound * bound
    length = jnp.sqrt(jnp.where(outside, square, 1.0))
    inside = jnp.where(radius > 0, z, 0.0)  # a ball of radius 0 does not move, at whatever z
    # where z is inside, neither branch may see an infinite radius: 0 * inf is NaN in derivatives
    return jnp.where(outside, z * (jnp.where(outside, bound, 1.0) / length), inside)
