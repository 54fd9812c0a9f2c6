"""Orthonormal coordinates for memberships: ``A y + b = d * (W y + b / d)`` with W W' = I, for constant orthogonal rows A.

All arrays have a leading axis G for memberships side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.members.affine_map import CompiledRows, Values
from hierfl.compiler.sets.members.memberships import CompiledMembership


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates of memberships; ``entries`` are those of the flat y in the order of ``into`` and ``back``.

    ``turn`` is W: the signs of single entries, where each row has one of its own, else a sparse matrix (k, entries).
    """

    entries: Int[np.ndarray, " n"]
    rows: tuple[CompiledRows, ...]  # those of one affine map after another
    scales: Float[np.ndarray, "G k"]  # d
    turn: Float[np.ndarray, "G k"] | sp.csr_array

    @classmethod
    def of(cls, memberships: Sequence[CompiledMembership]) -> Frame | None:
        """The frame of memberships of one size, those of a constraint together; None where rows move, or are not orthogonal."""
        rows = tuple(
            CompiledRows(same[0].source, np.concatenate([m.rows.index for m in same])) for same in by_source(memberships)
        )
        if not all(own.constant for own in rows):
            return None
        columns = np.concatenate([own.pattern.indices for own in rows])
        if all(map(has_single_entries, rows)) and len(np.unique(columns)) == len(columns):
            weights = np.concatenate([own.pattern.data for own in rows]).reshape(len(memberships), -1)
            return cls(columns, rows, np.abs(weights), np.sign(weights))
        if len(memberships) > 1:
            return None
        entries = memberships[0].support
        matrix = sp.csr_array(rows[0].pattern[:, entries])
        norms = _norms_if_orthogonal(matrix)
        return (
            None if norms is None else cls(entries, rows, norms[None], sp.csr_array(sp.diags_array(1 / norms) @ matrix))
        )

    @property
    def is_square(self) -> bool:
        """Whether W is orthogonal: y is determined by its coordinates."""
        return self.scales.size == len(self.entries)

    def offset(self, values: Values) -> Float[Array, "G k"]:
        """The part b / d."""
        offsets = jnp.concatenate([own.offsets(values) for own in self.rows]).reshape(self.scales.shape)
        return offsets / jnp.asarray(self.scales, offsets.dtype)

    def into(self, z: Float[Array, " n"]) -> Float[Array, "G k"]:
        """The coordinates W z."""
        if isinstance(self.turn, np.ndarray):
            return jnp.asarray(self.turn, z.dtype) * z.reshape(self.turn.shape)
        return product(self.turn, z)[None]

    def back(self, v: Float[Array, "G k"]) -> Float[Array, " n"]:
        """The point W' v."""
        if isinstance(self.turn, np.ndarray):
            return (jnp.asarray(self.turn, v.dtype) * v).ravel()
        return product(self.turn.T, v[0])


def by_source(memberships: Sequence[CompiledMembership]) -> list[list[CompiledMembership]]:
    """Memberships by the constraint that they are of."""
    found: dict[int, list[CompiledMembership]] = {}
    for membership in memberships:
        found.setdefault(id(membership.source), []).append(membership)
    return list(found.values())


def has_single_entries(rows: CompiledRows) -> bool:
    """Whether each row has one entry of y."""
    return bool((np.diff(rows.pattern.indptr) == 1).all())


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
