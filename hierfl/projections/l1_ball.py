"""Weighted l1 balls {y : sum(weights * |y|) <= radius}; entries of weight 0 are free."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections import box_with_hyperplane
from hierfl.projections.emptiness import not_below_zero


def project(z: Float[Array, " n"], weights: Float[Array, " n"], radius: Float[Array, ""]) -> Float[Array, " n"]:
    """The nearest point to ``z`` for ``radius`` >= 0, infinity included, and ``weights`` >= 0.

    The sizes |z| are projected on {size >= 0 : weights'size <= radius}, the signs stay (Duchi et al., 2008).
    """
    sizes, infinite = jnp.abs(z), jnp.asarray(jnp.inf, z.dtype)
    none, unbounded = jnp.zeros_like(sizes), jnp.full_like(sizes, infinite)
    shortened = box_with_hyperplane.project(sizes, weights, -infinite, not_below_zero(radius), none, unbounded)
    return jnp.where(jnp.sum(weights * sizes) <= radius, z, jnp.sign(z) * shortened)
