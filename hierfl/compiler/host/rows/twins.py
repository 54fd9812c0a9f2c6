"""Entries of u that are alike, each with rows of its own that say the same: data that are repeated, or a row that stands for several.

One of them, at the cost of all, stands for the others: they are as large, and of its rows' multipliers each has the share of its cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

Matrix = Float[np.ndarray, "rows width"]
Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]


@dataclass(frozen=True, eq=False)
class Twins:
    """For each entry of u, and for each row of A u + b, the one that stands for it: itself where it is like none before."""

    g: Vector
    a: Matrix
    entry: Int[np.ndarray, " width"]
    row: Int[np.ndarray, " rows"]

    @classmethod
    def of(
        cls, g: Vector, a: Matrix, b: Rows, entries: Int[np.ndarray, " t"], owner: Int[np.ndarray, " rows"]
    ) -> Twins | None:
        """Those among some entries without curvature, each with the rows that it owns; None where all differ."""
        entry, row = np.arange(len(g)), np.arange(len(b))
        rest = np.setdiff1d(entry, entries)
        order = np.argsort(owner, kind="stable")
        starts = np.searchsorted(owner[order], np.arange(len(entries) + 1))
        said = np.column_stack([a[:, rest], b]) + 0.0  # of which -0.0 becomes 0.0
        first: dict[bytes, int] = {}
        for t, own in enumerate(entries):
            rows = order[starts[t] : starts[t + 1]]
            one = first.setdefault(said[rows].tobytes() + a[rows, own].tobytes(), t)
            entry[own], row[rows] = entries[one], order[starts[one] : starts[one + 1]]
        return None if (entry == np.arange(len(entry))).all() else cls(g, a, entry, row)

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

    def of_all(self, u: Vector, z: Rows) -> tuple[Vector, Rows]:
        """The pair of the whole program from that of the one with one of each."""
        of_u, of_z = np.zeros(len(self.entry)), np.zeros(len(self.row))
        of_u[self.entries], of_z[self.rows] = u, z
        of_z = of_z[self.row]
        several = np.bincount(self.entry, minlength=len(self.entry))[self.entry] > 1
        for own in np.flatnonzero(several):
            of_z[self.a[:, own] != 0] *= self.g[own] / self.costs[self.entry[own]]
        return of_u[self.entry], of_z
