"""Affine sets {y : A y + b = 0}, factorised once for a constant A; dependent rows are allowed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array


class Factor(NamedTuple):
    """A and its pseudo-inverse ``pinv``; ``A @ pinv`` projects on the range of A."""

    matrix: Any
    pinv: Any


def factorise(matrix: np.ndarray) -> Factor:
    """Pseudo-inverse by SVD, in NumPy double precision, for a matrix that never changes; dependent rows are cut off."""
    return Factor(matrix, np.linalg.pinv(matrix, rcond=_cutoff(matrix.shape, matrix.dtype)))


def factorise_traced(matrix: Array) -> Factor:
    """The same for a matrix that moves with the environment."""
    return Factor(matrix, jnp.linalg.pinv(matrix, rtol=_cutoff(matrix.shape, matrix.dtype)))


def _cutoff(shape: tuple[int, ...], dtype: Any) -> float:
    """Singular values below this share of the largest count as zero."""
    return 10 * max(*shape, 1) * float(jnp.finfo(dtype).eps)


def project(z: Array, factor: Factor, b: Array) -> Array:
    """z - A^+ (A z + b)."""
    matrix, pinv = map(jnp.asarray, factor)
    return z - pinv @ (matrix @ z + b)


def gap(factor: Factor, b: Array) -> Array:
    """Distance of -b to the range of A, -inf when it is rounding: positive when the equations contradict each other."""
    matrix, pinv = map(jnp.asarray, factor)
    size = jnp.linalg.norm(b - matrix @ (pinv @ b))
    rounding = 0.1 * jnp.sqrt(jnp.finfo(b.dtype).eps)
    return jnp.where(size > rounding * (1.0 + jnp.linalg.norm(b)), size, -jnp.inf)
