"""Halfspaces {y : a'y + b <= 0} and hyperplanes {y : a'y + b = 0}, many at once when their supports are disjoint.

The normals are coordinate triples: ``values[k]`` at (``rows[k]``, ``columns[k]``), with offsets ``b`` (one per row).
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def project(z: Array, rows: Array, columns: Array, values: Array, b: Array, equality: bool = False) -> Array:
    """z - a max(0, a'z + b) / ||a||^2 for each row (without the max if ``equality``); a zero normal leaves z alone."""
    square = jnp.zeros_like(b).at[rows].add(values * values)
    excess = jnp.zeros_like(b).at[rows].add(values * z[columns]) + b
    excess = excess if equality else jnp.maximum(excess, 0.0)
    step = jnp.where(square > 0, excess / jnp.where(square > 0, square, 1.0), 0.0)
    return z.at[columns].add(-values * step[rows])


def gap(rows: Array, values: Array, b: Array, equality: bool = False) -> Array:
    """The largest b (|b| if ``equality``) among the zero normals, positive when one of them is empty; else -inf."""
    vanishes = jnp.zeros_like(b).at[rows].add(jnp.abs(values)) == 0
    return jnp.max(jnp.where(vanishes, jnp.abs(b) if equality else b, -jnp.inf), initial=-jnp.inf)
