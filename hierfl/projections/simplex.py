"""Simplices {y >= 0, sum(y) = total}."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections import box_with_hyperplane
from hierfl.projections.emptiness import below_zero


def project(z: Float[Array, " n"], total: Float[Array, ""]) -> Float[Array, " n"]:
    """max(z - theta, 0) with the threshold theta at which the sum is ``total`` >= 0 (Held, Wolfe and Crowder, 1974)."""
    return box_with_hyperplane.project(z, jnp.ones_like(z), total, total, jnp.zeros_like(z), jnp.full_like(z, jnp.inf))


def gap(total: Float[Array, ""]) -> Float[Array, ""]:
    """How far the total is below 0: positive when the simplex is empty."""
    return below_zero(total)
