"""Ellipsoids with axes along the coordinates, {y : ||scale * (y - centre)||_2 <= radius}; entries of scale 0 are free."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections.emptiness import below_zero, not_below_zero
from hierfl.projections.norm import norm
from hierfl.projections.root import decreasing_root


def project(
    z: Float[Array, " n"], centre: Float[Array, " n"], scale: Float[Array, " n"], radius: Float[Array, ""]
) -> Float[Array, " n"]:
    """The nearest point to ``z`` for ``radius`` >= 0, infinity included, and ``scale`` >= 0.

    The secular equation (e.g. Conn, Gould and Toint, 2000, section 7.3) for the multiplier m, in the variable
    s = 1 / (1 + m max(scale)^2) of [0, 1]: y - centre = (z - centre) s / (s + (1 - s) scale^2), so that radius 0 is s = 0.
    """
    largest = jax.lax.stop_gradient(jnp.max(scale, initial=0.0))
    largest = jnp.where(largest > 0, largest, 1.0)
    scale, radius = scale / largest, not_below_zero(radius) / largest
    shift = z - centre
    length = norm(scale * shift)
    outside = length > radius
    reach = jnp.where(outside, radius, length)
    square = scale * scale

    def over_s(s: Float[Array, ""]) -> Float[Array, " n"]:
        """(y - centre) / s of the entries that are not free, which has a length at s = 0 as well."""
        divisor = s + (1 - s) * square
        return jnp.where(square > 0, shift / jnp.where(divisor > 0, divisor, 1.0), 0.0)

    s = decreasing_root(lambda s: reach - s * norm(scale * over_s(s)), jnp.zeros_like(reach), jnp.ones_like(reach))
    return jnp.where(outside, centre + jnp.where(square > 0, s * over_s(s), shift), z)


def gap(radius: Float[Array, ""]) -> Float[Array, ""]:
    """How far the radius is below 0: positive when the ellipsoid is empty."""
    return below_zero(radius)
