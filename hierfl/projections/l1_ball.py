"""Weighted l1 balls {y : sum(weights * |y - centre|) <= radius}; entries of weight 0 are free."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from hierfl.projections import box_with_hyperplane
from hierfl.projections.emptiness import beyond


def project(z: Array, centre: Array, weights: Array, radius: Array) -> Array:
    """Nearest point to ``z`` (n,) for a scalar ``radius`` >= 0, infinity included, and ``weights`` (n,) >= 0.

    The sizes |z - centre| are projected on {size >= 0 : weights'size <= radius}, the signs stay (Duchi et al., 2008).
    """
    shift = z - centre
    inside = jnp.sum(weights * jnp.abs(shift)) <= radius
    return jnp.where(inside, z, centre + jnp.sign(shift) * shortened(jnp.abs(shift), weights, radius))


def shortened(sizes: Array, weights: Array, radius: Array) -> Array:
    """Projection of ``sizes`` (n,) >= 0 on {size >= 0 : weights'size <= radius}."""
    infinite = jnp.asarray(jnp.inf, sizes.dtype)
    none, unbounded = jnp.zeros_like(sizes), jnp.full_like(sizes, infinite)
    return box_with_hyperplane.project(sizes, weights, -infinite, jnp.maximum(radius, 0.0), none, unbounded)


def gap(radius: Array) -> Array:
    """-radius: positive when the ball is empty."""
    return beyond(-radius, jnp.abs(radius))
