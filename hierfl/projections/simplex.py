"""Simplices {y >= 0, sum(y) = total}."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def project(z: Array, total: Array) -> Array:
    """max(z - theta, 0) with theta found by sorting (Held, Wolfe and Crowder, 1974)."""
    size = z.shape[0]
    ordered = jnp.sort(z)[::-1]
    thresholds = (jnp.cumsum(ordered) - total) / jnp.arange(1, size + 1, dtype=z.dtype)
    active = jnp.sum(ordered > thresholds)
    theta = thresholds[jnp.maximum(active, 1) - 1]
    return jnp.maximum(z - theta, 0.0)


def gap(total: Array) -> Array:
    """-total: positive when the simplex is empty."""
    return -total
