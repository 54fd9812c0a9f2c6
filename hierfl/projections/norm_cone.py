"""Epigraphs of norms as cones: {(u, t) : ||u||_1 <= slope * t} and {(u, t) : max |u| <= slope * t}, slope > 0.

They are each other's polars, up to the sign of t, so that both projections follow from one level m: soft thresholding by m
gives the first, clipping to [-m, m] the second.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

COST = "O(n log n), for sorting"


def project_l1(
    u: Float[Array, " n"], t: Float[Array, ""], slope: Float[Array, ""]
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The nearest point to ``u``, ``t`` with ||u||_1 <= slope * t."""
    size = jnp.abs(u)
    outside = jnp.sum(size) > slope * t
    m = _level(size, jnp.where(outside, t, 0.0), slope)
    onto = jnp.maximum(size - m, 0.0)
    # equal; the one does not magnify the rounding of m, the other not that of the sum
    height = jnp.where(slope < 1, jnp.maximum(t + slope * m, 0.0), jnp.sum(onto) / slope)
    return jnp.where(outside, jnp.sign(u) * onto, u), jnp.where(outside, height, t)


def project_linf(
    u: Float[Array, " n"], t: Float[Array, ""], slope: Float[Array, ""]
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The nearest point to ``u``, ``t`` with max |u| <= slope * t, from Moreau's decomposition."""
    size = jnp.abs(u)
    outside = jnp.max(size, initial=0.0) > slope * t
    polar = jnp.sum(size) <= -t / slope
    needed = outside & ~polar
    m = jnp.where(needed, _level(size, jnp.where(needed, -t, 0.0), 1.0 / slope), 0.0)
    return jnp.where(outside, jnp.clip(u, -m, m), u), jnp.where(outside, m / slope, t)


def _level(size: Float[Array, " n"], t: Float[Array, ""], slope: Float[Array, ""]) -> Float[Array, ""]:
    """The m with sum(max(size - m, 0)) = slope * (t + slope * m): the largest of those that any k largest sizes would give."""
    sums = jnp.concatenate([jnp.zeros(1, size.dtype), jnp.cumsum(-jnp.sort(-size))])
    return jnp.max((sums - slope * t) / (jnp.arange(sums.shape[0], dtype=size.dtype) + slope * slope))
