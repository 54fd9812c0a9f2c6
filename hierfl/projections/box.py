"""Boxes {y : lower <= y <= upper}, entries possibly infinite."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections.emptiness import beyond


def project(
    z: Float[Array, "*shape"], lower: Float[Array, "*shape"], upper: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Clip ``z`` to the bounds; where they cross, the result is the upper bound (see :func:`gap`)."""
    return jnp.minimum(jnp.maximum(z, lower), upper)


def gap(lower: Float[Array, "*shape"], upper: Float[Array, "*shape"]) -> Float[Array, ""]:
    """The largest of lower - upper: positive when the box is empty."""
    crossed = jnp.where(lower > upper, lower - upper, -jnp.inf)
    return jnp.max(beyond(crossed, jnp.maximum(jnp.abs(lower), jnp.abs(upper))), initial=-jnp.inf)
