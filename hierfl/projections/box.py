"""Boxes {y : lower <= y <= upper}, entries possibly infinite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from hierfl.projections.emptiness import beyond

ROUNDING = 4  # units of it within which two bounds are one


def project(
    z: Float[Array, "*shape"], lower: Float[Array, "*shape"], upper: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Clip ``z`` to the bounds; where they cross, the result is the upper bound (see :func:`gap`).

    At a kink, where ``z`` is at one of two bounds, the derivative is the mean of both sides. Where the bounds meet there is no
    kink: the result is the bound, at whatever ``z``, and moves with it alone.
    """
    clipped = jnp.minimum(jnp.maximum(z, lower), upper)
    # up to rounding, since y >= 0.7 and 3 y <= 2.1 are an equation as well; a finite bound alone has a rounding
    rounding = ROUNDING * float(jnp.finfo(clipped.dtype).eps) * jnp.abs(jax.lax.stop_gradient(lower))
    meet = jnp.isfinite(lower) & (jnp.abs(upper - lower) <= rounding)
    return jnp.where(meet, jnp.where(z < lower, lower, upper), clipped)


def held(
    z: Float[Array, " n"], lower: Float[Array, " n"], upper: Float[Array, " n"], tolerance: Float[Array, "*n"]
) -> tuple[Bool[Array, " n"], Float[Array, " n"]]:
    """(which entries a bound holds, the clipped point): those beyond a bound, at it or within a tolerance of it.

    A held entry moves with its bound alone. Where multipliers are not unique, the one at hand may leave an entry at its bound
    without a push; such an entry is held all the same, unless the point is at a kink.
    """
    at_upper = z >= upper - tolerance
    stuck = at_upper | (z <= lower + tolerance)
    point = jnp.where(stuck, jnp.where(at_upper, upper, lower), z)
    return stuck, point + jax.lax.stop_gradient(project(z, lower, upper) - point)


def gap(lower: Float[Array, "*shape"], upper: Float[Array, "*shape"]) -> Float[Array, ""]:
    """The largest of lower - upper: positive when the box is empty."""
    crossed = jnp.where(lower > upper, lower - upper, -jnp.inf)
    return jnp.max(beyond(crossed, jnp.maximum(jnp.abs(lower), jnp.abs(upper))), initial=-jnp.inf)
