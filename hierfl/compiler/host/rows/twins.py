"""Entries of u that are alike, each with rows of its own that say the same: data that are repeated, or a row that stands for several.

One of them, at the cost of all, stands for the others: they are as large, and of its rows' multipliers each has the share of its cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from hierfl.compiler.host.standard_form import NONNEGATIVE, ZERO, Cone

if TYPE_CHECKING:
    from hierfl.compiler.host.cone_program import ConeProgram

Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]


@dataclass(frozen=True, eq=False)
class Twins:
    """For each entry of u, and for each row, the one that stands for it: itself where it is like none before."""

    program: ConeProgram
    entry: Int[np.ndarray, " width"]
    row: Int[np.ndarray, " rows"]

    @classmethod
    def of(cls, program: ConeProgram, entries: Int[np.ndarray, " t"], owner: Int[np.ndarray, " rows"]) -> Twins | None:
        """Those among some entries without curvature, each with the rows that it owns; None where all differ."""
        entry, row = np.arange(len(program.g)), np.arange(len(program.b))
        rest = np.setdiff1d(entry, entries)
        order = np.argsort(owner, kind="stable")
        starts = np.searchsorted(owner[order], np.arange(len(entries) + 1))
        said = np.column_stack([program.a[:, rest], program.b]) + 0.0  # of which -0.0 becomes 0.0
        first: dict[bytes, int] = {}
        for t, own in enumerate(entries):
            rows = order[starts[t] : starts[t + 1]]
            one = first.setdefault(said[rows].tobytes() + program.a[rows, own].tobytes(), t)
            entry[own], row[rows] = entries[one], order[starts[one] : starts[one + 1]]
        return None if (entry == np.arange(len(entry))).all() else cls(program, entry, row)

    @property
    def without(self) -> ConeProgram:
        """The program with one of each."""
        program, costs = self.program, np.zeros(len(self.entry))
        np.add.at(costs, self.entry, program.g)
        columns, rows = np.unique(self.entry), np.unique(self.row)
        cones = [Cone(ZERO, program.equations), Cone(NONNEGATIVE, len(rows) - program.equations)]
        h, a = program.h[np.ix_(columns, columns)], program.a[np.ix_(rows, columns)]
        return type(program)(h, costs[columns], a, program.b[rows], [cone for cone in cones if cone.size])

    def of_all(self, u: Vector, z: Rows) -> tuple[Vector, Rows]:
        """The pair of the whole program from that of the one without."""
        program, costs = self.program, np.zeros(len(self.entry))
        np.add.at(costs, self.entry, program.g)
        of_u, of_z = np.zeros(len(self.entry)), np.zeros(len(self.row))
        of_u[np.unique(self.entry)], of_z[np.unique(self.row)] = u, z
        of_z = of_z[self.row]
        several = np.bincount(self.entry, minlength=len(self.entry))[self.entry] > 1
        shares = np.ones(len(self.entry))
        shares[several] = program.g[several] / costs[self.entry[several]]
        for own in np.flatnonzero(several):
            of_z[program.a[:, own] != 0] *= shares[own]
        return of_u[self.entry], of_z
