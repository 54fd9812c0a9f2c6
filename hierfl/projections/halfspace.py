"""Halfspaces {y : a'y + b <= 0}, many at once when their supports are disjoint."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def project(z: Array, a: Array, b: Array) -> Array:
    """z - a max(0, a'z + b) / ||a||^2; with a = 0 the whole space."""
    square = jnp.sum(a * a)
    excess = jnp.maximum(a @ z + b, 0.0)
    return z - a * jnp.where(square > 0, excess / jnp.where(square > 0, square, 1.0), 0.0)


def project_disjoint(z: Array, rows: Array, columns: Array, values: Array, b: Array) -> Array:
    """Project on several halfspaces with disjoint supports, given as coordinate triples ``values[k]`` at (row, column)."""
    count = b.shape[0]
    square = jnp.zeros(count, z.dtype).at[rows].add(values * values)
    excess = jnp.maximum(jnp.zeros(count, z.dtype).at[rows].add(values * z[columns]) + b, 0.0)
    return z.at[columns].add(-values * (excess / square)[rows])


def gap(a: Array, b: Array) -> Array:
    """b where a = 0 (positive: empty), else -inf."""
    return jnp.where(jnp.any(a != 0), -jnp.inf, b)
