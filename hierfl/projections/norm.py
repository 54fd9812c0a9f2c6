"""The Euclidean norm as projections need it."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def norm(y: Float[Array, "*shape"]) -> Float[Array, ""]:
    """||y||_2 of all entries, with derivative 0 at 0, and scaled so that no square overflows or vanishes."""
    largest = jnp.max(jnp.abs(y), initial=0.0)
    largest = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    scaled = y / largest
    square = jnp.sum(scaled * scaled)
    return largest * jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
