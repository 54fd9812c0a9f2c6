"""Weighted l1 balls {y : sum(weights * |y - centre|) <= radius}; entries of weight 0 are free."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections import box_with_hyperplane
from hierfl.projections.emptiness import below_zero, not_below_zero


def project(
    z: Float[Array, " n"], centre: Float[Array, " n"], weights: Float[Array, " n"], radius: Float[Array, ""]
) -> Float[Array, " n"]:
    """The nearest point to ``z`` for ``radius`` >= 0, infinity included, and ``weights`` >= 0.

    The sizes |z - centre| are projected on {size >= 0 : weights'size <= radius}, the signs stay (Duchi et al., 2008).
    """
    shift = z - centre
    inside = jnp.sum(weights * jnp.abs(shift)) <= radius
    return jnp.where(inside, z, centre + jnp.sign(shift) * shortened(jnp.abs(shift), weights, radius))


def shortened(sizes: Float[Array, " n"], weights: Float[Array, " n"], radius: Float[Array, ""]) -> Float[Array, " n"]:
    """The projection of ``sizes`` >= 0 on {size >= 0 : weights'size <= radius}."""
    infinite = jnp.asarray(jnp.inf, sizes.dtype)
    none, unbounded = jnp.zeros_like(sizes), jnp.full_like(sizes, infinite)
    return box_with_hyperplane.project(sizes, weights, -infinite, not_below_zero(radius), none, unbounded)


def gap(radius: Float[Array, ""]) -> Float[Array, ""]:
    """How far the radius is below 0: positive when the ball is empty."""
    return below_zero(radius)
