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


def factorise(matrix: Float[Numbers, "k n"], xp: ModuleType = np) -> Factor:
    """The factor by SVD, dependent rows cut off: in NumPy's double precision of a matrix that never changes, in JAX (``xp``) of one that moves."""
    u, s, vt = xp.linalg.svd(matrix, full_matrices=False)
    kept = s > 10 * max(*matrix.shape, 1) * float(jnp.finfo(matrix.dtype).eps) * xp.max(s, initial=0.0)
    inverse = xp.where(kept, 1.0 / xp.where(kept, s, 1.0), 0.0)
    condition = xp.max(s, initial=0.0) * xp.max(inverse, initial=0.0)
    return Factor(*map(xp.asarray, (matrix, (vt.T * inverse) @ u.T, xp.where(kept, u, 0.0), condition)))


def project(z: Float[Array, " n"], factor: Factor, b: Float[Array, " k"]) -> Float[Array, " n"]:
    """z - A^+ (A z + b), applied once more to the result: ill-conditioned rows lose digits in one pass."""
    matrix, pinv = (jnp.asarray(part, float) for part in factor[:2])
    near = z - pinv @ (matrix @ z + b)
    return near - pinv @ (matrix @ near + b)


def gap(factor: Factor, b: Float[Array, " k"]) -> Float[Array, ""]:
    """The distance of -b to the range of A: positive when the equations contradict each other."""
    basis = jnp.asarray(factor.basis, float)
    return beyond(jnp.linalg.norm(b - basis @ (basis.T @ b)), jnp.linalg.norm(b))
