"""Derivatives as matrices, a direction after another: side by side, XLA 0.10 on CPUs computes those of wide rows wrongly.

It fuses the product of a matrix with all directions into a loop over a third axis, and reads it wrongly where there are many of them;
tests/jaxtools/test_cheap_jit.py has the program.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array


def by_columns(product: Callable[[Array], Array], at: Array) -> Array:
    """The transposed matrix of a linear map: the products with unit vectors, one below another."""
    return jax.lax.map(product, jnp.eye(at.size, dtype=at.dtype))


def jacobian_by_columns(function: Callable[[Array], Array], at: Array) -> Array:
    """The matrix of derivatives of a vector's function, (entries of its value, entries of ``at``)."""
    return by_columns(jax.linearize(function, at)[1], at).T
