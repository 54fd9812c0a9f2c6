"""Affine sets {y : A y + b = 0}, factorised once for a constant A; dependent rows are allowed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.projections.emptiness import beyond


class Factor(NamedTuple):
    """A, its pseudo-inverse ``pinv``, an orthonormal basis of its range (zero columns beyond the rank), its condition."""

    matrix: Any
    pinv: Any
    basis: Any
    condition: Any


def factorise(matrix: np.ndarray) -> Factor:
    """By SVD, in NumPy double precision, for a matrix that never changes; dependent rows are cut off."""
    return Factor(*map(np.asarray, _factor(np, matrix)))


def factorise_traced(matrix: Array) -> Factor:
    """The same for a matrix that moves with the environment."""
    return Factor(*_factor(jnp, matrix))


def _factor(xp: Any, matrix: Any) -> tuple[Any, ...]:
    u, s, vt = xp.linalg.svd(matrix, full_matrices=False)
    kept = s > _cutoff(matrix.shape, matrix.dtype) * xp.max(s, initial=0.0)
    inverse = xp.where(kept, 1.0 / xp.where(kept, s, 1.0), 0.0)
    condition = xp.max(s, initial=0.0) * xp.max(inverse, initial=0.0)
    return matrix, (vt.T * inverse) @ u.T, xp.where(kept, u, 0.0), condition


def _cutoff(shape: tuple[int, ...], dtype: Any) -> float:
    """Singular values below this share of the largest count as zero."""
    return 10 * max(*shape, 1) * float(jnp.finfo(dtype).eps)


def project(z: Array, factor: Factor, b: Array) -> Array:
    """z - A^+ (A z + b), once more on the result: ill-conditioned rows lose digits in one pass."""
    matrix, pinv = (jnp.asarray(part, float) for part in factor[:2])
    near = z - pinv @ (matrix @ z + b)
    return near - pinv @ (matrix @ near + b)


def gap(factor: Factor, b: Array) -> Array:
    """Distance of -b to the range of A: positive when the equations contradict each other."""
    basis = jnp.asarray(factor.basis, float)
    size = jnp.linalg.norm(b)
    return beyond(jnp.linalg.norm(b - basis @ (basis.T @ b)), size)
