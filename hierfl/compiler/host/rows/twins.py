"""Entries of u that are alike, each with rows of its own that say the same: data that are repeated, or a row that stands for several.

One of them, at the cost of all, stands for the others: they are as large, and of its rows' multipliers each has the share of its cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

Matrix = Float[np.ndarray, "rows width"]
Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]


@dataclass(frozen=True, eq=False)
class Twins:
    """For each entry of u, and for each row of A u + b, the one that stands for it: itself where it is like none before.

    ``owner`` is the entry that a row is one of the rows of; -1 where it is nobody's.
    """

    g: Vector
    entry: Int[np.ndarray, " width"]
    row: Int[np.ndarray, " rows"]
    owner: Int[np.ndarray, " rows"]

    @classmethod
    def of(
        cls,
        g: Vector,
        a: Matrix,
        b: Float[np.ndarray, "rows programs"],
        entries: Int[np.ndarray, " t"],
        owner: Int[np.ndarray, " rows"],
    ) -> Twins | None:
        """Those among some entries without curvature, each with the rows that it owns, whatever b of several; None where all differ."""
        entry, row = np.arange(len(g)), np.arange(len(b))
        rest = np.setdiff1d(entry, entries)
        order = np.argsort(owner, kind="stable")
        starts = np.searchsorted(owner[order], np.arange(len(entries) + 1))
        said = np.column_stack([a[:, rest], b]) + 0.0  # of which -0.0 becomes 0.0
        sums = (said * np.cos(np.arange(said.shape[1]) ** 2)).sum(axis=1)  # equal where rows are
        _, which, count = np.unique(np.add.reduceat(sums[order], starts[:-1]), return_inverse=True, return_counts=True)
        first: dict[bytes, int] = {}
        for t in map(int, np.flatnonzero(count[which] > 1)):
            own, rows = entries[t], order[starts[t] : starts[t + 1]]
            one = first.setdefault(said[rows].tobytes() + a[rows, own].tobytes(), t)
            entry[own], row[rows] = entries[one], order[starts[one] : starts[one + 1]]
        if (entry == np.arange(len(entry))).all():
            return None
        return cls(g, entry, row, np.where(owner >= 0, entries[owner], -1))

    def at(self, g: Vector) -> Twins:
        """The same of a program with other costs."""
        return replace(self, g=g)

    @cached_property
    def entries(self) -> Int[np.ndarray, " fewer"]:
        """One of each."""
        return np.unique(self.entry)

    @cached_property
    def rows(self) -> Int[np.ndarray, " fewer_rows"]:
        """Those that stay."""
        return np.unique(self.row)

    @cached_property
    def costs(self) -> Vector:
        """What each entry costs that stands for others, with theirs."""
        return np.bincount(self.entry, self.g, len(self.entry))

    @cached_property
    def _shares(self) -> Rows:
        """What a row has of the multiplier of the one that stands for it."""
        shares = self.g / np.where(self.costs[self.entry] > 0, self.costs[self.entry], 1.0)
        return np.where(self.owner >= 0, shares[self.owner], 1.0)

    def of_one(self, u: Vector, z: Rows) -> tuple[Vector, Rows]:
        """The pair of the program with one of each from that of the whole."""
        return u[self.entries], np.bincount(self.row, z, len(self.row))[self.rows]

    def entry_sums(self, force: Vector) -> Vector:
        """What one of each entry has, with that of those it stands for."""
        return np.bincount(self.entry, force, len(self.entry))[self.entries]

    def of_all(self, u: Vector, z: Rows) -> tuple[Vector, Rows]:
        """The pair of the whole program from that of the one with one of each."""
        of_u, of_z = np.zeros(len(self.entry)), np.zeros(len(self.row))
        of_u[self.entries], of_z[self.rows] = u, z
        return of_u[self.entry], of_z[self.row] * self._shares
