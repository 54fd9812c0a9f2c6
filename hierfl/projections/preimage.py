"""Preimages {y : A y + b in C} under maps with A A' = alpha^2 I, alpha != 0: rotations, selections, orthogonal rows."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

Map = Callable[[Array], Array]


def project(
    z: Array, matrix: Array | tuple[Map, Map], offset: Array, alpha: Array | float, project_image: Map
) -> Array:
    """z + A' (P_C(v) - v) / alpha^2 at v = A z + b, from the projection P_C of C (Beck, 2017, theorem 6.15).

    ``matrix`` is A (m, n), for ``z`` (n,) and ``offset`` (m,), or the pair of maps (A, A') between any shapes. That
    A A' = alpha^2 I is the caller's promise: without it the result is not the projection. The set is empty only if C is.
    (Also Bauschke and Combettes, 2017, proposition 24.14.)
    """
    if isinstance(matrix, tuple):
        forward, adjoint = matrix
    else:
        forward, adjoint = matrix.__matmul__, matrix.T.__matmul__
    image = forward(z) + offset
    return z + adjoint((project_image(image) - image) / jnp.square(alpha))
