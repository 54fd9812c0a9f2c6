"""Simplices {y >= 0, sum(y) = total}."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from hierfl.projections import box_with_hyperplane
from hierfl.projections.emptiness import beyond


def project(z: Array, total: Array) -> Array:
    """max(z - theta, 0) with the threshold theta at which the sum is ``total`` >= 0 (Held, Wolfe and Crowder, 1974)."""
    return box_with_hyperplane.project(z, jnp.ones_like(z), total, total, jnp.zeros_like(z), jnp.full_like(z, jnp.inf))


def gap(total: Array) -> Array:
    """-total: positive when the simplex is empty."""
    return beyond(-total, jnp.abs(total))
