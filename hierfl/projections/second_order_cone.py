"""Second-order cones {(u, t) : ||u||_2 <= slope * t}, slope > 0."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def project(u: Array, t: Array, slope: Array) -> tuple[Array, Array]:
    """(u, t) inside, 0 in the polar cone, else the nearest point on the ray towards u (Boyd and Vandenberghe, 2004, section 8.1)."""
    square = jnp.sum(u * u)
    length = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    inside, polar = length <= slope * t, slope * length <= -t
    height = (slope * length + t) / (1.0 + slope * slope)
    shrink = slope * height / jnp.where(length > 0, length, 1.0)
    new_u = jnp.where(inside, u, jnp.where(polar, 0.0, u * shrink))
    return new_u, jnp.where(inside, t, jnp.where(polar, 0.0, height))
