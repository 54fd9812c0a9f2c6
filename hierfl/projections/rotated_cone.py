"""Rotated cones {(u, s, t) : ||u||^2 <= factor * s * t, s >= 0, t >= 0}; factor = 2 is the standard one."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from hierfl.projections.root import decreasing_root


def project(u: Array, s: Array, t: Array, factor: Array) -> tuple[Array, Array, Array]:
    """In p = (s + t) / sqrt 2, q = (s - t) / sqrt 2 the cone reads ||(c u, q)|| <= p with c^2 = 2 / factor.

    With the multiplier m = r / (1 - r) the nearest point is u (1 - r) / (1 - r + r c^2), q (1 - r), and p the length of both; r
    is the root of the monotone equation (1 - 2 r) ||(c u / (1 - r + r c^2), q)|| = p on [0, 1], which has none in the polar cone.
    """
    half = jnp.sqrt(jnp.asarray(0.5, u.dtype))
    c = jnp.sqrt(2.0 / factor)
    p, q = (s + t) * half, (s - t) * half
    square = jnp.sum(u * u)

    def length(r: Array) -> Array:
        inner = c * c * square / (1.0 - r + r * c * c) ** 2 + q * q
        return jnp.where(inner > 0, jnp.sqrt(jnp.where(inner > 0, inner, 1.0)), 0.0)

    def excess(r: Array) -> Array:
        return (1.0 - 2.0 * r) * length(r) - p

    zero, one = jnp.zeros_like(p), jnp.ones_like(p)
    inside, polar = length(zero) <= p, length(one) <= -p
    needed = ~inside & ~polar
    r = jnp.where(needed, decreasing_root(excess, zero, one), 0.0)
    new_u, new_q, new_p = u * (1.0 - r) / (1.0 - r + r * c * c), q * (1.0 - r), (1.0 - r) * length(r)
    new_s, new_t = (new_p + new_q) * half, (new_p - new_q) * half
    return (
        jnp.where(inside, u, jnp.where(polar, 0.0, new_u)),
        jnp.where(inside, s, jnp.where(polar, 0.0, jnp.maximum(new_s, 0.0))),
        jnp.where(inside, t, jnp.where(polar, 0.0, jnp.maximum(new_t, 0.0))),
    )
