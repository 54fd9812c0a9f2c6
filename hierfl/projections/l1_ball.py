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
    signs, infinite = jnp.where(z < 0, -1.0, 1.0).astype(z.dtype), jnp.asarray(jnp.inf, z.dtype)
    least, unbounded = jnp.where(weights > 0, 0.0, -infinite), jnp.full_like(z, infinite)
    sizes = signs * z  # whose derivative at 0 is no mean of both sides: a free entry moves there as elsewhere
    shortened = box_with_hyperplane.project(sizes, weights, -infinite, not_below_zero(radius), least, unbounded)
    inside = jnp.where((weights > 0) & (radius <= 0), 0.0, z)  # a ball of radius 0 does not move
    return jnp.where(jnp.sum(weights * sizes) <= radius, inside, signs * shortened)
