"""Affine sets {y : A y + b = 0}, factorised once for a constant A; dependent rows are allowed."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array


class Factor(NamedTuple):
    """A and its pseudo-inverse ``pinv``; ``A @ pinv`` projects on the range of A."""

    matrix: Array
    pinv: Array


def factorise(matrix: np.ndarray) -> Factor:
    """Pseudo-inverse by SVD, in NumPy, for a matrix that never changes."""
    return Factor(jnp.asarray(matrix), jnp.asarray(np.linalg.pinv(matrix)))


def factorise_traced(matrix: Array) -> Factor:
    """The same for a matrix that moves with the environment."""
    return Factor(matrix, jnp.linalg.pinv(matrix))


def project(z: Array, factor: Factor, b: Array) -> Array:
    """z - A^+ (A z + b)."""
    return z - factor.pinv @ (factor.matrix @ z + b)


def gap(factor: Factor, b: Array) -> Array:
    """Distance of -b to the range of A: positive when the equations contradict each other, 0 up to rounding."""
    missing = b - factor.matrix @ (factor.pinv @ b)
    size = jnp.linalg.norm(missing)
    return jnp.where(size > 1e-9 * (1.0 + jnp.linalg.norm(b)), size, -jnp.inf)
