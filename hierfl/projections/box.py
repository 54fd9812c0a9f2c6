"""Boxes {y : lower <= y <= upper}, entries possibly infinite."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def project(z: Array, lower: Array, upper: Array) -> Array:
    """Clip ``z`` (n,) to the bounds; where they cross, the result is the upper bound (see :func:`gap`)."""
    return jnp.minimum(jnp.maximum(z, lower), upper)


def gap(lower: Array, upper: Array) -> Array:
    """max(lower - upper): positive when the box is empty."""
    return jnp.max(lower - upper, initial=-jnp.inf)
