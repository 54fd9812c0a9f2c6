"""Epigraphs of norms as cones: {(u, t) : ||u||_1 <= slope * t} and {(u, t) : max |u| <= slope * t}, slope > 0."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from hierfl.projections.threshold import threshold


def project_l1(u: Array, t: Array, slope: Array) -> tuple[Array, Array]:
    """Soft thresholding at the m with ||u'||_1 = slope * (t + slope * m): everything is taken away in the polar cone."""
    size = jnp.abs(u)
    outside = jnp.sum(size) > slope * t
    m = threshold(size, jnp.ones_like(size), jnp.where(outside, slope * t, 1.0), slope * slope)
    onto = jnp.sign(u) * jnp.maximum(size - m, 0.0)
    return jnp.where(outside, onto, u), jnp.where(outside, jnp.sum(jnp.abs(onto)) / slope, t)


def project_linf(u: Array, t: Array, slope: Array) -> tuple[Array, Array]:
    """By Moreau's decomposition: the polar cone is {(v, -s) : ||v||_1 <= s / slope}."""
    v, s = project_l1(u, -t, 1.0 / slope)
    return u - v, t + s
