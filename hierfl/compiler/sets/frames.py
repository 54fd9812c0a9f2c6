"""Orthonormal coordinates for a membership: ``A y + b = U diag(d) (W y + offset) + lost`` with W W' = I and U' U = I.

``lost`` is the part of b that y cannot reach (rows without coefficients, and for Euclidean norms whatever is outside the
range of A): it uses up some of the radius. All arrays have a leading axis G for memberships side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.members.affine_map import DENSE_ENTRIES, CompiledRows, Values
from hierfl.compiler.sets.members.memberships import CompiledMembership

Coordinates = tuple[Float[Array, "G k"], Float[Array, "G k"], Float[Array, "G lost"]]


class Frame(Protocol):
    """Coordinates of one or more memberships."""

    @property
    def entries(self) -> Int[np.ndarray, " n"]:
        """Entries of the flat y, in the order of ``into`` and ``back``."""

    @property
    def sample_scales(self) -> list[Float[np.ndarray, " k"]]:
        """Examples of d: what families decide by."""

    @property
    def is_square(self) -> bool:
        """Whether W is orthogonal."""

    @property
    def may_lose(self) -> bool:
        """Whether ``lost`` may be nonzero."""

    def coordinates(self, values: Values) -> Coordinates:
        """The triple (d, offset, lost) that maps y to the family's coordinates."""

    def into(self, z: Float[Array, " n"], values: Values) -> Float[Array, "G k"]:
        """The coordinates W z."""

    def back(self, v: Float[Array, "G k"], values: Values) -> Float[Array, " n"]:
        """The point W' v."""


@dataclass(frozen=True, eq=False)
class EntryFrame:
    """Rows of one entry each, no entry twice: W is signs and an order; the coefficients may move."""

    entries: Int[np.ndarray, " n"]
    shape: tuple[int, int]
    rows: CompiledRows
    is_square: bool = True

    @classmethod
    def of(cls, memberships: Sequence[CompiledMembership]) -> EntryFrame | None:
        """The frame of memberships of one constraint and size; None if some row is no single entry."""
        rows = CompiledRows(memberships[0].source, np.concatenate([m.rows.index for m in memberships]))
        columns = rows.pattern.indices
        if (np.diff(rows.pattern.indptr) != 1).any() or len(np.unique(columns)) < len(columns):
            return None
        return cls(columns, (len(memberships), len(columns) // len(memberships)), rows)

    @property
    def may_lose(self) -> bool:
        """Only coefficients that move can vanish."""
        return not self.rows.constant

    @cached_property
    def sample_scales(self) -> list[Float[np.ndarray, " k"]]:
        """The scales at both draws of the parameters."""
        draws = [draw[self.rows.index] for draw in self.rows.source.coefficients.draws]
        return [row for draw in draws for row in np.asarray(abs(draw).sum(axis=1)).reshape(self.shape)]

    def coordinates(self, values: Values) -> Coordinates:
        """The coordinates with d = |a| and the offset b / d."""
        a, b = self._coefficients(values), self.rows.offsets(values).reshape(self.shape)
        d = jnp.abs(a)
        return d, jnp.where(d > 0, b / jnp.where(d > 0, d, 1.0), 0.0), jnp.where(d > 0, 0.0, b)

    def into(self, z: Float[Array, " n"], values: Values) -> Float[Array, "G k"]:
        return self._signs(values) * z.reshape(self.shape)

    def back(self, v: Float[Array, "G k"], values: Values) -> Float[Array, " n"]:
        return (self._signs(values) * v).ravel()

    def _coefficients(self, values: Values) -> Float[Array, "G k"]:
        return self.rows.coefficients(values).reshape(self.shape)

    def _signs(self, values: Values) -> Float[Array, "G k"]:
        return jnp.where(self._coefficients(values) < 0, -1.0, 1.0)


@dataclass(frozen=True, eq=False)
class RotatedFrame:
    """A constant matrix, taken apart once: W = diag(1/d) A for orthogonal rows, else a singular value decomposition."""

    entries: Int[np.ndarray, " n"]
    rows: CompiledRows
    left: sp.csr_array  # U (rows, k)
    scales: Float[np.ndarray, " k"]  # d
    right: sp.csr_array  # W (k, entries)
    may_lose: bool

    @classmethod
    def of(cls, membership: CompiledMembership, euclidean: bool) -> RotatedFrame | None:
        """The frame, or None: coefficients that move; rows that are not orthogonal where the norm is not ``euclidean``."""
        if not membership.rows.constant:
            return None
        entries = membership.support
        matrix = sp.csr_array(membership.rows.pattern[:, entries])
        rows, columns = matrix.shape
        filled = np.flatnonzero(np.diff(matrix.indptr))
        by_rows = _norms_if_orthogonal(sp.csr_array(matrix[filled]))
        if by_rows is not None:
            left = sp.csr_array((np.ones(len(filled)), (filled, np.arange(len(filled)))), shape=(rows, len(filled)))
            right = sp.csr_array(sp.diags_array(1.0 / by_rows) @ matrix[filled])
            return cls(entries, membership.rows, left, by_rows, right, len(filled) < rows)
        if not euclidean:
            return None
        by_columns = _norms_if_orthogonal(sp.csr_array(matrix.T))
        if by_columns is not None:
            left = sp.csr_array(matrix @ sp.diags_array(1.0 / by_columns))
            return cls(entries, membership.rows, left, by_columns, sp.eye_array(columns, format="csr"), True)
        if rows * columns > DENSE_ENTRIES:
            return None
        u, d, w = np.linalg.svd(matrix.toarray(), full_matrices=False)
        keep = d > 1e-13 * d.max()
        return cls(entries, membership.rows, sp.csr_array(u[:, keep]), d[keep], sp.csr_array(w[keep]), True)

    @property
    def is_square(self) -> bool:
        """Whether y is determined by its coordinates."""
        return self.right.shape[0] == len(self.entries)

    @property
    def sample_scales(self) -> list[Float[np.ndarray, " k"]]:
        return [self.scales]

    def coordinates(self, values: Values) -> Coordinates:
        """The coordinates with the offset U' b / d and what is lost, b - U U' b."""
        b = self.rows.offsets(values)
        inside = product(self.left.T, b)
        lost = b - product(self.left, inside) if self.may_lose else jnp.zeros(1)
        d = jnp.asarray(self.scales, float)
        return d[None], (inside / d)[None], lost[None]

    def into(self, z: Float[Array, " n"], values: Values) -> Float[Array, "G k"]:
        return product(self.right, z)[None]

    def back(self, v: Float[Array, "G k"], values: Values) -> Float[Array, " n"]:
        return product(self.right.T, v[0])


def _norms_if_orthogonal(matrix: sp.csr_array) -> Float[np.ndarray, " rows"] | None:
    """Norms of the rows, if they are nonzero and orthogonal to each other."""
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    if not lengths.size or (lengths == 0).any():
        return None
    unit = sp.csr_array(sp.diags_array(1.0 / lengths) @ matrix)
    gram = sp.csr_array(unit @ unit.T)
    off = gram - sp.diags_array(gram.diagonal())
    return lengths if off.nnz == 0 or abs(off).max() <= 1e-12 else None


def product(matrix: sp.csr_array, vector: Float[Array, " columns"]) -> Float[Array, " rows"]:
    """A constant sparse matrix times a vector: dense where that is no larger than a few times its entries."""
    rows, columns = matrix.shape
    if rows * columns <= 8 * max(matrix.nnz, 1000):
        return jnp.asarray(matrix.toarray(), vector.dtype) @ vector
    triples = sp.coo_array(matrix)
    weights = jnp.asarray(triples.data, vector.dtype)
    return jnp.zeros(rows, vector.dtype).at[triples.coords[0]].add(weights * vector[triples.coords[1]])
