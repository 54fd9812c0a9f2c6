"""When a set counts as empty: by how much its data contradict each other, beyond what rounding explains."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def beyond(gap: Float[Array, "*shape"] | float, scale: Float[Array, "*shape"] | float = 1.0) -> Float[Array, "*shape"]:
    """``gap`` less its tolerance, for data of size ``scale``: positive when the contradiction is real.

    The tolerance is 1e-9 of the data's size, at most 1e-9 and at least 1e-12, or their rounding where that is larger.
    """
    gap, scale = jnp.asarray(gap), jnp.asarray(scale)
    usual = 1e-9 * jnp.clip(scale, 1e-3, 1.0)
    rounding = 64 * jnp.finfo(gap.dtype).eps * jnp.where(jnp.isfinite(scale), scale, 0.0)
    return gap - jnp.maximum(usual, rounding).astype(gap.dtype)


def not_below_zero(radius: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """max(radius, 0), at 0 with the derivative of the radius: that of ``jnp.maximum`` is half of it."""
    return jnp.where(radius < 0, 0.0, radius)
