"""Boxes {y : lower <= y <= upper}, entries possibly infinite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from hierfl.projections.emptiness import beyond


def project(
    z: Float[Array, "*shape"], lower: Float[Array, "*shape"], upper: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Clip ``z`` to the bounds; where they cross, the result is the upper bound (see :func:`gap`)."""
    return jnp.minimum(jnp.maximum(z, lower), upper)


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
