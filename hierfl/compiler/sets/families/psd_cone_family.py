"""The cone of positive semidefinite matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.bounded_terms import BoundedTerm, LargestEigenvalue, Semidefinite
from hierfl.compiler.sets.families.family import Family, Membership
from hierfl.compiler.sets.families.scales import is_uniform
from hierfl.projections import psd


@dataclass(frozen=True)
class PsdCone(Family):
    """Positive semidefinite matrices of this order; v holds svec coordinates (lower triangle, off-diagonal times sqrt 2)."""

    order: int
    name: ClassVar[str] = "PSD cone"
    cost: ClassVar[str] = "O(n^1.5): an eigenvalue decomposition"

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """A semidefinite matrix, or a largest eigenvalue below a bound: bound * I - scale * X is semidefinite."""
        function = term.function
        if isinstance(function, Semidefinite):
            matrix = function.argument
        elif isinstance(function, LargestEigenvalue):
            matrix = term.bound * np.eye(function.argument.shape[0]) - term.scaled(function.argument)
        else:
            return None
        order = int(matrix.shape[0])
        coordinates = sp.csr_array(_svec_map(order))
        return Membership(cls(order), matrix, np.arange(coordinates.shape[0])[None], coordinates=coordinates)

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        """Whether all rows share one scale."""
        return is_uniform(scales)

    def project(
        self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""], uniform: bool
    ) -> Float[Array, " k"]:
        """Clip the eigenvalues."""
        rows, columns, scales = _triangle(self.order)
        half = v / jnp.asarray(scales, v.dtype)
        matrix = jnp.zeros((self.order, self.order), v.dtype).at[rows, columns].set(half).at[columns, rows].set(half)
        return psd.project(matrix)[rows, columns] * jnp.asarray(scales, v.dtype)


def _svec_map(order: int) -> Float[np.ndarray, "k square"]:
    """The matrix (order (order + 1) / 2, order^2) from a raveled matrix to the svec coordinates of its symmetric part."""
    rows, columns, scales = _triangle(order)
    picked = np.zeros((len(rows), order * order))
    place = np.arange(len(rows))
    picked[place, rows + order * columns] += 0.5 * scales
    picked[place, columns + order * rows] += 0.5 * scales
    return picked


def _triangle(order: int) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """The lower triangle: rows, columns, and the scales that keep the Frobenius norm."""
    rows, columns = np.tril_indices(order)
    return rows, columns, np.where(rows == columns, 1.0, np.sqrt(2.0))
