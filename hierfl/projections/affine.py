"""Affine sets {y : A y + b = 0}, factorised once for a constant A; dependent rows are allowed."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hierfl.projections.emptiness import beyond

Numbers: TypeAlias = np.ndarray | Array  # of NumPy for a constant matrix, of JAX for one that moves


class Factor(NamedTuple):
    """A, its pseudo-inverse ``pinv``, an orthonormal basis of its range (zero columns beyond the rank), its condition."""

    matrix: Float[Numbers, "k n"]
    pinv: Float[Numbers, "n k"]
    basis: Float[Numbers, "k rank"]
    condition: Float[Numbers, ""]


def factorise(matrix: Float[np.ndarray, "k n"]) -> Factor:
    """The factor of a matrix that never changes, by SVD in NumPy's double precision; dependent rows are cut off."""
    return Factor(*map(np.asarray, _factor(np, matrix)))


def factorise_traced(matrix: Float[Array, "k n"]) -> Factor:
    """The factor of a matrix that moves with the environment, by SVD in JAX."""
    return Factor(*_factor(jnp, matrix))


def _factor(xp: ModuleType, matrix: Float[Numbers, "k n"]) -> tuple[Numbers, ...]:
    """The parts of the factor, in NumPy or in its namesake of JAX."""
    u, s, vt = xp.linalg.svd(matrix, full_matrices=False)
    kept = s > 10 * max(*matrix.shape, 1) * float(jnp.finfo(matrix.dtype).eps) * xp.max(s, initial=0.0)
    inverse = xp.where(kept, 1.0 / xp.where(kept, s, 1.0), 0.0)
    condition = xp.max(s, initial=0.0) * xp.max(inverse, initial=0.0)
    return matrix, (vt.T * inverse) @ u.T, xp.where(kept, u, 0.0), condition


def project(z: Float[Array, " n"], factor: Factor, b: Float[Array, " k"]) -> Float[Array, " n"]:
    """z - A^+ (A z + b), applied once more to the result: ill-conditioned rows lose digits in one pass."""
    matrix, pinv = (jnp.asarray(part, float) for part in factor[:2])
    near = z - pinv @ (matrix @ z + b)
    return near - pinv @ (matrix @ near + b)


def gap(factor: Factor, b: Float[Array, " k"]) -> Float[Array, ""]:
    """The distance of -b to the range of A: positive when the equations contradict each other."""
    basis = jnp.asarray(factor.basis, float)
    size = jnp.linalg.norm(b)
    return beyond(jnp.linalg.norm(b - basis @ (basis.T @ b)), size)
