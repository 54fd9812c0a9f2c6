"""Paraboloids {(u, t) : ||u||^2 <= factor * t}, factor > 0."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections.root import decreasing_root


def project(
    u: Float[Array, " n"], t: Float[Array, ""], factor: Float[Array, ""]
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The nearest point to ``u``, ``t``: u / (1 + 2 m) and t + factor m at the multiplier m >= 0 for which the point is on the boundary, or m = 0 inside."""
    square = jnp.sum(u * u)

    def excess(m: Float[Array, ""]) -> Float[Array, ""]:
        return square / (1.0 + 2.0 * m) ** 2 - factor * (t + factor * m)

    # excess is at most square / (1 + 2 m)^2 - factor (t + factor m): negative past both of these
    high = jnp.maximum(square / factor**2, 0.0) + jnp.maximum(-t, 0.0) / factor
    outside = excess(jnp.zeros_like(t)) > 0
    m = jnp.where(outside, decreasing_root(excess, jnp.zeros_like(t), jnp.where(outside, high, 1.0)), 0.0)
    return u / (1.0 + 2.0 * m), t + factor * m
