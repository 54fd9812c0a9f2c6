"""Sparse arrays that are affine in a parameter vector theta: the pattern is fixed, the numbers follow."""

from __future__ import annotations

from dataclasses import dataclass
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

    def values(self, theta: Float[np.ndarray, "*batch theta"]) -> Float[np.ndarray, "*batch entries"]:
        """The entries at theta, or at each of many."""
        if not self.moves:
            return np.broadcast_to(self.constant, (*theta.shape[:-1], len(self.constant)))
        moved = self.linear @ theta if theta.ndim == 1 else (self.linear @ theta.T).T
        return np.asarray(self.constant + moved)

    def moved(self, tangent: Float[np.ndarray, "*batch theta"]) -> Float[np.ndarray, "*batch entries"]:
        """How the entries move where theta moves along a direction, or along each of many."""
        return np.asarray(self.linear @ tangent if tangent.ndim == 1 else (self.linear @ tangent.T).T)

    def pull(self, slopes: Float[np.ndarray, "*batch entries"]) -> Float[np.ndarray, "*batch theta"]:
        """The gradient in theta of what has these slopes in the entries."""
        if not self.moves:
            return np.zeros((*slopes.shape[:-1], self.linear.shape[1]))
        back = self.linear.T
        return np.asarray(back @ slopes if slopes.ndim == 1 else (back @ slopes.T).T)
