"""Costs of greatest pieces: v'Hv/2 + g'v + sum_j g_j t_j, with t_j at least as large as each of its pieces, affine in v.

Averages over data of hinges, quantiles and sizes have this form, with an entry t_j for each row of data. At the solution most of them
have one piece above the others by far. Around a v, up to where others meet, those are linear; what is left is solved exactly there,
and a solution that does not end at that limit is the program's, which is convex. DAQP's work grows with the cube of the entries, of
which few are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from hierfl.compiler.host.cone_solution import SOLVED, ConeSolution
from hierfl.compiler.host.rows.twins import Twins
from hierfl.compiler.host.standard_form import NONNEGATIVE, ZERO, Cone

if TYPE_CHECKING:
    from hierfl.compiler.host.cone_program import ConeProgram

MANY = 64  # entries t, from which a look at them is worth it
SAMPLE, NEAR = 24, 32  # how many of them are kept for a first v, and then around it
ROUNDS = 24
LENGTHS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of steps that went as far as they might
INSIDE, ALIKE, HOLDS = 1 - 1e-9, 1e-9, 1e-12  # relative: an end that is not met, distances that are one, rows that hold

Vector = Float[np.ndarray, " width"]


@dataclass(frozen=True, eq=False)
class GreatestPieces:
    """The entries of u that are t, and whose piece each row is (-1: nobody's)."""

    program: ConeProgram
    entries: Int[np.ndarray, " t"]
    owner: Int[np.ndarray, " rows"]

    @classmethod
    def of(cls, program: ConeProgram, fewest: int = MANY) -> GreatestPieces | None:
        """Those of a program over rows; None where there are fewer."""
        h, a = program.h, program.a
        if len(h) <= fewest:
            return None
        taken = (program.g > 0) & ~h.any(axis=0) & ~h.any(axis=1) & (a >= 0).all(axis=0) & a.any(axis=0)
        taken &= ~a[program.equal].any(axis=0)
        met = (a != 0) & taken
        taken &= ~met[met.sum(axis=1) > 1].any(axis=0)
        entries = np.flatnonzero(taken)
        if len(entries) < fewest:
            return None
        met = met[:, entries]
        return cls(program, entries, np.where(met.any(axis=1), met.argmax(axis=1), -1))

    def solution(self, u: Vector | None = None) -> ConeSolution | None:
        """The program's, looked for from that of one like it; None where it is not found this way."""
        program, twins = self.program, self.twins
        if twins is not None:
            answer = self.without(twins).solve()
            return program.solution_of(*twins.of_all(answer.u, answer.z)) if answer.status == SOLVED else None
        v, near = self._first if u is None else u[self._others], NEAR
        for _ in range(ROUNDS):
            value, greatest = self._value(v), self._greatest(v)
            kept, radius = self._around(v, greatest, near)
            answer = self._relaxed(kept, greatest, around=(v, radius))
            if answer.status != SOLVED:
                break
            way = answer.u[: len(v)] - v
            if not (np.abs(way[self._felt]) >= INSIDE * radius).any():
                return self._whole(answer, kept, greatest)
            further = [v + length * way for length in LENGTHS]
            v = min((one for one in further if self._holds(one)), key=self._value, default=v)
            near = near if self._value(v) < value else 2 * near
        return None

    @cached_property
    def twins(self) -> Twins | None:
        """The entries that are alike; None where all differ."""
        program = self.program
        return Twins.of(program.g, program.a, program.b[:, None], self.entries, self.owner)

    def without(self, twins: Twins) -> ConeProgram:
        """The program with one of each entries that are alike."""
        program, entries, rows = self.program, twins.entries, twins.rows
        h, a = program.h[np.ix_(entries, entries)], program.a[np.ix_(rows, entries)]
        cones = [Cone(ZERO, program.equations), Cone(NONNEGATIVE, len(rows) - program.equations)]
        return type(program)(h, twins.costs[entries], a, program.b[rows], [cone for cone in cones if cone.size])

    @cached_property
    def _others(self) -> Int[np.ndarray, " v"]:
        """The entries of u that are v."""
        return np.setdiff1d(np.arange(len(self.program.g)), self.entries)

    @cached_property
    def _pieces(self) -> tuple[Int[np.ndarray, " p"], np.ndarray, np.ndarray]:
        """(rows that are pieces, those of one t together; C and d of the values C v + d that t is no smaller than)."""
        rows = np.argsort(self.owner, kind="stable")[np.sum(self.owner < 0) :]
        pivots = self.program.a[rows, self.entries[self.owner[rows]]]
        return rows, -self.program.a[np.ix_(rows, self._others)] / pivots[:, None], -self.program.b[rows] / pivots

    @cached_property
    def _group(self) -> Int[np.ndarray, " p"]:
        """Whose each piece is."""
        return self.owner[self._pieces[0]]

    @cached_property
    def _starts(self) -> Int[np.ndarray, " t"]:
        """Where the pieces of each t begin."""
        return np.searchsorted(self._group, np.arange(len(self.entries)))

    @cached_property
    def _felt(self) -> Bool[np.ndarray, " v"]:
        """The entries of v that move a piece."""
        return np.asarray(self._pieces[1].any(axis=0))

    @cached_property
    def _curvature(self) -> np.ndarray:
        return self.program.h[np.ix_(self._others, self._others)]

    @cached_property
    def _costs(self) -> Float[np.ndarray, " t"]:
        return self.program.g[self.entries]

    @cached_property
    def _units(self) -> Float[np.ndarray, " t"]:
        """What the t are counted in: powers of two as large as their slopes, so that a row has entries alike."""
        steepest = np.maximum.reduceat(np.abs(self._pieces[1]).max(axis=1, initial=0.0), self._starts)
        return np.exp2(np.round(np.log2(np.where(steepest > 0, steepest, 1.0))))

    @cached_property
    def _first(self) -> Vector:
        """A point to begin at: the solution for a sample of the t in which those that weigh more are more likely to be."""
        _, slopes, _ = self._pieces
        weights = self._costs * np.maximum.reduceat(np.abs(slopes).max(axis=1, initial=0.0), self._starts)
        so_far = np.cumsum(weights)
        places = np.searchsorted(so_far, so_far[-1] * (np.arange(SAMPLE) + 0.5) / SAMPLE)
        kept = np.zeros(len(weights), bool)
        kept[np.minimum(places, len(weights) - 1)] = True
        answer = self._relaxed(kept, None, so_far[-1] / max(float(weights[kept].sum()), 1e-300))
        return answer.u[: len(self._others)] if answer.status == SOLVED else np.zeros(len(self._others))

    def _relaxed(
        self,
        kept: Bool[np.ndarray, " t"],
        greatest: Int[np.ndarray, " t"] | None,
        more: float = 1.0,
        around: tuple[Vector, float] | None = None,
    ) -> ConeSolution:
        """The solution over (v, the t that are kept, which cost so much more), the others on one piece each, or left out.

        ``around`` a point v goes so far at most; the rows that say so come last.
        """
        program, (_, slopes, _) = self.program, self._pieces
        others, count = self._others, int(kept.sum())
        columns = np.concatenate([others, self.entries[kept]])
        rows = self._rows(kept)
        units = np.concatenate([np.ones(len(others)), self._units[kept]])
        g = program.g[columns] * units
        g[len(others) :] *= more
        if greatest is not None:
            g[: len(others)] += self._costs[~kept] @ slopes[greatest[~kept]]
        h = np.zeros((len(columns), len(columns)))
        h[: len(others), : len(others)] = self._curvature
        a, b = program.a[np.ix_(rows, columns)] * units, program.b[rows]
        if around is not None and np.isfinite(around[1]):
            box = np.eye(len(columns))[: len(others)][self._felt]
            center = around[0][self._felt]
            a, b = np.vstack([a, box, -box]), np.concatenate([b, around[1] - center, around[1] + center])
        cones = [Cone(ZERO, program.equations), Cone(NONNEGATIVE, len(b) - program.equations)]
        return type(program)(h, g, a, b, [cone for cone in cones if cone.size], count).by_all_rows()

    def _rows(self, kept: Bool[np.ndarray, " t"]) -> Int[np.ndarray, " rows"]:
        """Those that are nobody's pieces, and those of some t."""
        return np.flatnonzero((self.owner < 0) | kept[self.owner])

    def _value(self, v: Vector) -> float:
        """The cost at v, every t as small as it may be."""
        program, (_, slopes, offsets) = self.program, self._pieces
        tops = np.maximum.reduceat(slopes @ v + offsets, self._starts)
        return float(0.5 * v @ self._curvature @ v + program.g[self._others] @ v + self._costs @ tops)

    def _greatest(self, v: Vector) -> Int[np.ndarray, " t"]:
        """Which piece of each t is the greatest at v."""
        _, slopes, offsets = self._pieces
        return np.lexsort((-(slopes @ v + offsets), self._group))[self._starts]

    def _holds(self, v: Vector) -> bool:
        """Whether the rows that are nobody's pieces hold."""
        program, rows = self.program, self.owner < 0
        a = program.a[rows][:, self._others]
        e = (a @ v + program.b[rows]) / (np.abs(a) @ np.abs(v) + np.abs(program.b[rows]) + program.sizes[rows])
        return bool((np.where(program.equal[rows], -np.abs(e), e) >= -HOLDS).all())

    def _around(self, v: Vector, greatest: Int[np.ndarray, " t"], near: int) -> tuple[Bool[np.ndarray, " t"], float]:
        """(the t of which another piece is as great nearest to v, how far each entry of v may go until one of another t is)."""
        _, slopes, offsets = self._pieces
        values, best = slopes @ v + offsets, greatest[self._group]
        turns = np.linalg.norm(slopes - slopes[best], axis=1)
        ways = np.full(len(values), np.inf)
        np.divide(values[best] - values, turns, out=ways, where=turns > 0)
        ways = np.minimum.reduceat(ways, self._starts)
        kept = ways <= np.sort(ways)[min(near, len(ways)) - 1] * (1 + ALIKE)
        return kept, float(ways[~kept].min(initial=np.inf)) / np.sqrt(max(int(self._felt.sum()), 1))

    def _whole(
        self, answer: ConeSolution, kept: Bool[np.ndarray, " t"], greatest: Int[np.ndarray, " t"]
    ) -> ConeSolution | None:
        """The solution of the program from that of a relaxation."""
        program, (rows, slopes, offsets) = self.program, self._pieces
        u, z = np.zeros(len(program.g)), np.zeros(len(program.b))
        v = answer.u[: len(self._others)]
        u[self._others] = v
        u[self.entries] = np.maximum.reduceat(slopes @ v + offsets, self._starts)
        mine = self._rows(kept)
        z[mine] = answer.z[: len(mine)]
        fixed = rows[greatest[~kept]]
        z[fixed] = self._costs[~kept] / program.a[fixed, self.entries[~kept]]
        return program.solution_of(u, z)
