"""Sparse arrays that are affine in a parameter vector theta: the pattern is fixed, the numbers follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int


@dataclass(frozen=True, eq=False)
class AffineEntries:
    """The entries at (``rows``, ``columns``) of an array of this shape: ``constant + linear @ theta``.

    Entries are sorted by column, then row, and no place occurs twice.
    """

    shape: tuple[int, int]
    rows: Int[np.ndarray, " entries"]
    columns: Int[np.ndarray, " entries"]
    constant: Float[np.ndarray, " entries"]
    linear: Any  # csr (entries, theta)

    @classmethod
    def of(
        cls,
        shape: tuple[int, int],
        rows: np.ndarray,
        columns: np.ndarray,
        parameter: np.ndarray,
        value: np.ndarray,
        count: int,
    ) -> AffineEntries:
        """From contributions ``value`` of entry ``parameter`` of theta to places; parameter ``count`` stands for 1."""
        place, where = np.unique(columns.astype(np.int64) * shape[0] + rows, return_inverse=True)
        fixed = parameter == count
        constant = np.zeros(len(place))
        np.add.at(constant, where[fixed], value[fixed])
        moving = ~fixed
        linear = sp.csr_array((value[moving], (where[moving], parameter[moving])), (len(place), count))
        return cls(shape, place % shape[0], place // shape[0], constant, linear)

    @property
    def moves(self) -> bool:
        """Whether theta enters."""
        return bool(self.linear.nnz)

    @cached_property
    def _picked(self) -> tuple[slice | np.ndarray, np.ndarray | None] | None:
        """(where in theta, factors other than 1) if each entry is one of theta, so that many thetas need no product."""
        if self.linear.nnz != len(self.rows) or (np.diff(self.linear.indptr) != 1).any():
            return None
        where, factors = self.linear.indices, self.linear.data
        straight = len(where) > 0 and (np.diff(where) == 1).all()
        place = slice(int(where[0]), int(where[-1]) + 1) if straight else where
        return place, None if (factors == 1.0).all() else factors

    def values(self, theta: Float[np.ndarray, "*batch theta"]) -> Float[np.ndarray, "*batch entries"]:
        """The entries at theta, or at each of many; perhaps a view of it."""
        if not self.moves:
            return np.broadcast_to(self.constant, (*theta.shape[:-1], len(self.constant)))
        moved = self.moved(theta)
        return moved + self.constant if self.constant.any() else moved

    def moved(self, tangent: Float[np.ndarray, "*batch theta"]) -> Float[np.ndarray, "*batch entries"]:
        """How the entries move where theta moves along a direction, or along each of many."""
        if self._picked is not None:
            where, factors = self._picked
            return tangent[..., where] if factors is None else tangent[..., where] * factors
        return np.asarray(self.linear @ tangent if tangent.ndim == 1 else (self.linear @ tangent.T).T)

    def pull(self, slopes: Float[np.ndarray, "*batch entries"]) -> Float[np.ndarray, "*batch theta"]:
        """The gradient in theta of what has these slopes in the entries."""
        out = np.zeros((*slopes.shape[:-1], self.linear.shape[1]))
        if not self.moves:
            return out
        if self._picked is not None and isinstance(self._picked[0], slice):
            where, factors = self._picked
            out[..., where] = slopes if factors is None else slopes * factors
            return out
        back = self.linear.T
        return np.asarray(back @ slopes if slopes.ndim == 1 else (back @ slopes.T).T)

    def spread(self, of_entries: Float[np.ndarray, "k entries"]) -> Float[np.ndarray, "k rows"]:
        """Of a single column: what each of k has for the entries, by rows, and 0 elsewhere."""
        out = np.zeros((len(of_entries), self.shape[0]))
        out[:, self.rows] = of_entries
        return out

    @cached_property
    def _by_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(entries in the order of their rows, where each row starts, the rows that have some)."""
        order = np.argsort(self.rows, kind="stable")
        own, starts = np.unique(self.rows[order], return_index=True)
        return order, starts, own

    def row_sums(self, of_entries: Float[np.ndarray, "k entries"]) -> Float[np.ndarray, "k rows"]:
        """Sums of what each of k has for the entries, by rows."""
        order, starts, own = self._by_rows
        out = np.zeros((len(of_entries), self.shape[0]))
        if len(own) == 1:
            out[:, own[0]] = of_entries.sum(axis=1)
        elif len(own):
            out[:, own] = np.add.reduceat(of_entries[:, order], starts, axis=1)
        return out
