"""Slabs {y : low <= a'y <= high} with mutually orthogonal normals, many at once; halfspaces and hyperplanes among them.

The normals are coordinate triples: ``weights[k]`` at (``rows[k]``, ``columns[k]``); ``low`` and ``high`` have one entry a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.projections import box
from hierfl.projections.emptiness import beyond


def project(
    z: Float[Array, " n"],
    rows: Int[np.ndarray, " entries"],
    columns: Int[np.ndarray, " entries"],
    weights: Float[Array, " entries"],
    low: Float[Array, " k"],
    high: Float[Array, " k"],
) -> Float[Array, " n"]:
    """z - a (a'z - clip(a'z, low, high)) / ||a||^2 for each row; a zero normal leaves z alone."""
    size = jax.lax.stop_gradient(_size(rows, weights, low))  # a scale: the formula is the same for every multiple of a
    scale = jnp.where(size > 0, size, 1.0)
    unit = weights / scale[rows]
    square = jnp.zeros_like(low).at[rows].add(unit * unit)
    product = jnp.zeros_like(low).at[rows].add(unit * z[columns])
    excess = (product - box.project(product, low / scale, high / scale)) / jnp.where(size > 0, square, 1.0)
    return z.at[columns].add(-unit * excess[rows])


def gap(
    rows: Int[np.ndarray, " entries"],
    weights: Float[Array, " entries"],
    low: Float[Array, " k"],
    high: Float[Array, " k"],
) -> Float[Array, ""]:
    """Positive when low > high somewhere, or a normal vanishes and its interval leaves out 0."""
    size = _size(rows, weights, low)
    missed = jnp.where(size == 0, beyond(jnp.maximum(low, -high)), -jnp.inf)
    return jnp.maximum(box.gap(low, high), jnp.max(missed, initial=-jnp.inf))


def _size(
    rows: Int[np.ndarray, " entries"], weights: Float[Array, " entries"], low: Float[Array, " k"]
) -> Float[Array, " k"]:
    """The norms of the normals, scaled first: tiny and huge coefficients must not underflow or overflow."""
    largest = jnp.zeros_like(low).at[rows].max(jnp.abs(weights))
    scaled = weights / jnp.where(largest > 0, largest, 1.0)[rows]
    return largest * jnp.sqrt(jnp.zeros_like(low).at[rows].add(scaled * scaled))
