"""Second-order cones {(u, t) : ||u||_2 <= slope * t}, slope > 0."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def project(
    u: Float[Array, " n"], t: Float[Array, ""], slope: Float[Array, ""]
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The nearest point to ``u``, ``t``: itself inside, 0 in the polar cone, else on the ray of u. Bauschke (1996), theorem 3.3.6."""
    length = _norm(u)
    inside, polar = length <= slope * t, slope * length <= -t
    height = (slope * length + t) / (1.0 + slope * slope)
    shrink = slope * height / jnp.where(length > 0, length, 1.0)
    new_u = jnp.where(inside, u, jnp.where(polar, 0.0, u * shrink))
    return new_u, jnp.where(inside, t, jnp.where(polar, 0.0, height))


def _norm(y: Float[Array, " n"]) -> Float[Array, ""]:
    """||y||_2 with derivative 0 at 0, scaled so that no square overflows or vanishes."""
    largest = jnp.max(jnp.abs(y), initial=0.0)
    largest = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    square = jnp.sum((y / largest) ** 2)
    return largest * jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
