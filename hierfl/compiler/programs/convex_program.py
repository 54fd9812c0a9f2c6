"""A convex program in numbers, its optimality conditions, how far a pair is from meeting them, and how a solver of it may end.

minimise  u' P u / 2 + q' u + s(u)   subject to   A u + b in K;        P u + q + s'(u) = A' z,  z in K*,  z' (A u + b) = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.programs.cones import NONNEGATIVE, ZERO, Cone, blocks, of_kind, project_dual
from hierfl.compiler.programs.small_and_sparse import (
    Matrix,
    columns_scaled,
    count_in_rows,
    diagonal,
    entries_of,
    largest,
    row_norms,
    same,
    vstack,
    zeros,
)
from hierfl.compiler.programs.smooth_atoms import SmoothSum

SOLVED, EMPTY, UNBOUNDED, FAILED, UNATTAINED = 0, 1, 2, 3, 4

# whether y has no other value: several (and the upper objective tells them apart), one, alike (it does not), unknown, or twisted:
# the conditions are those of a map that is not monotone, and others far away may hold as well
SEVERAL, ONE, ALIKE, UNKNOWN, TWISTED = 0, 1, 2, -1, -2


FAINT, FAINTEST = 1e-6, 1e-16  # of the highest price of a bound, from which units follow it, and the least that counts
SPREAD = 1e3  # of square roots of curvatures, from which u is told in other units
# the relative error of the conditions up to which a pair is a solution; over rows it is rounding
GOOD, GOOD_OVER_ROWS = 1e-9, 1e-11

Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]


@dataclass(frozen=True, eq=False)
class ProgramSolution:
    """u and z with the relative ``error`` of the optimality conditions; ``status`` says whether they are a solution.

    ``work`` counts what it took: factorisations, iterations, whatever the solver tells.
    """

    u: Vector
    z: Rows
    error: float
    status: int
    work: int = 0

    @property
    def solved(self) -> bool:
        return self.status == SOLVED


OF_MATRICES = ("equal", "loose", "polyhedral", "sizes", "seen", "bounds", "_absolute", "curved_cones")  # what follows from P, A and the cones


@dataclass(frozen=True, eq=False)
class ConvexProgram:
    """P (width, width), symmetric, q, A (rows, width), b, the cones of the rows, in any order; the first ``size`` entries of u are y.

    ``curved`` has rows whose null space is that of P; ``smooth`` is s, if there is one.
    """

    p: Matrix
    q: Vector
    a: Matrix
    b: Rows
    cones: Sequence[Cone]
    size: int
    curved: Matrix
    smooth: SmoothSum | None = None
    constant: float = 0.0  # of the objective
    may_cost: np.ndarray | None = None  # which entries of u may have a cost, at some theta; None for all
    is_map: bool = False  # P is no curvature: P u + q is an affine map that is no gradient
    is_scaled: bool = False  # u is in units that suit it
    moderate: float = np.inf  # at most this of P's largest entry says what a force is beside; more stands for an infinite curvature
    free: np.ndarray | bool = False  # entries of u whose prices may as well be larger: nothing moves with them

    @classmethod
    def of(
        cls, p: Matrix, q: Vector, a: Matrix, b: Rows, cones: Sequence[Cone], size: int | None = None
    ) -> ConvexProgram:
        """A quadratic program; all of u is y unless its ``size`` is given."""
        return cls(p, q, a, b, cones, len(q) if size is None else size, p)

    @classmethod
    def flat(cls, q: Vector, a: Matrix, b: Rows, cones: Sequence[Cone], size: int | None = None) -> ConvexProgram:
        """The same without a curvature."""
        return cls.of(zeros(len(q), len(q), a), q, a, b, cones, size)

    def sharing(self, other: ConvexProgram | None) -> ConvexProgram:
        """The same program, which shares P, A and all that follows from them with another one that has the same."""
        if other is None or self.cones != other.cones or self.moderate != other.moderate or not same([self.p, self.a], [other.p, other.a]):
            return self
        shared = replace(self, p=other.p, a=other.a)
        shared.__dict__.update({name: getattr(other, name) for name in OF_MATRICES})
        return shared

    @property
    def width(self) -> int:
        return len(self.q)

    @cached_property
    def equal(self) -> Bool[np.ndarray, " rows"]:
        """Which rows are equations."""
        return of_kind(self.cones, ZERO)

    @cached_property
    def loose(self) -> Bool[np.ndarray, " rows"]:
        """Which rows are inequalities."""
        return of_kind(self.cones, NONNEGATIVE)

    @cached_property
    def polyhedral(self) -> bool:
        return bool((self.equal | self.loose).all())

    @cached_property
    def linear(self) -> bool:
        return self.polyhedral and self.smooth is None and largest(self.p) == 0.0

    @cached_property
    def is_held(self) -> bool:
        """Whether some inequality is sure to hold: an entry of u has a price, and nothing else keeps it."""
        if self.smooth is not None or not (priced := np.flatnonzero(self.q != 0)).size:
            return False
        kept = row_norms(self.p.T)[priced] + row_norms(self.a[self.equal].T)[priced]
        return bool((kept == 0).any())

    @cached_property
    def sizes(self) -> Rows:
        """The length of each row of A, 1 for a row of zeros."""
        sizes = row_norms(self.a)
        return np.where(sizes > 0, sizes, 1.0)

    @property
    def cone_sizes(self) -> Rows:
        """The length of each row, one for all rows of a curved cone."""
        return self._cone_scale(self.sizes)

    @cached_property
    def seen(self) -> Bool[np.ndarray, " rows"]:
        """Which rows u enters."""
        return row_norms(self.a) > 0

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, columns, numbers) of the equations and inequalities with a single entry."""
        simple = np.flatnonzero((self.equal | self.loose) & (count_in_rows(self.a) == 1))
        row, column, value = entries_of(self.a[simple])
        return simple[row], column, value

    @cached_property
    def _absolute(self) -> tuple[Matrix, Matrix, float]:
        """(the sizes of P, those of A, the largest of P that is moderate)."""
        return abs(self.p), abs(self.a), min(largest(self.p), self.moderate)

    @cached_property
    def units(self) -> Vector:
        """Powers of two in which entries of u are all about as stiff; 1 where they are within a factor of a thousand.

        They are 1 at most: larger ones would make rows long, beside which nothing misses them. Bounds alone, whose prices are as far
        apart as shares of a law are, may have larger ones.
        """
        if self.is_map or self.is_scaled:
            return np.ones(self.width)
        stiff = np.sqrt(np.maximum(self.p.diagonal(), 0.0))
        units, curved = np.ones(len(stiff)), stiff[stiff > 0]
        if len(curved) and curved.max() > SPREAD * curved.min():
            ratio = np.where(stiff > 0, stiff, curved.min()) / curved.min()
            units = np.exp2(-np.round(np.log2(ratio)))
        price = np.where((stiff == 0) & (np.arange(self.width) >= self.size), np.abs(self.q), 0.0)
        most = float(price.max(initial=0.0))
        if (price[price > 0] < FAINT * most).any():
            share = np.maximum(price / most, FAINTEST)
            units = np.where(price > 0, np.exp2(-np.round(0.5 * np.log2(share))), units)
        return np.asarray(units)

    def in_units(self, units: Vector) -> ConvexProgram:
        """The same program for u / units."""
        p = columns_scaled(columns_scaled(self.p, units).T, units)
        a, curved = columns_scaled(self.a, units), columns_scaled(self.curved, units)
        smooth = None if self.smooth is None else self.smooth.in_units(units)
        return replace(self, p=p, q=units * self.q, a=a, curved=curved, smooth=smooth, is_scaled=True)

    def slack(self, u: Vector) -> Rows:
        return np.asarray(self.a @ u + self.b)

    def force(self, u: Vector, z: Rows) -> Vector:
        """P u + q + s'(u) - A' z."""
        return self.slope(u) - np.asarray(self.a.T @ z)

    def slope(self, u: Vector) -> Vector:
        plain = np.asarray(self.p @ u + self.q)
        return plain if self.smooth is None else plain + self.smooth.gradient(u)

    def cost(self, u: Vector) -> float:
        plain = float(0.5 * u @ (self.p @ u) + self.q @ u)
        return plain if self.smooth is None else plain + self.smooth.value(u)

    def curvature(self, u: Vector, least: float = 0.0) -> Matrix:
        """Its second derivative; see ``SmoothTerm.curvature``."""
        return self.p if self.smooth is None else self.p + self.smooth.hessian(u, least)

    def flat_along(self, u: Vector) -> Matrix:
        """Rows whose null space has the directions along which the objective is linear from u on."""
        return self.curved if self.smooth is None else vstack([self.curved, self.smooth.curved(u)])

    def model(self, u: Vector, curvature: Matrix) -> ConvexProgram:
        """The quadratic program that it is like at u."""
        slope, curved = self.slope(u) - curvature @ u, self.flat_along(u)
        moderate = self._absolute[2] if self.smooth is not None and self.smooth.steep else np.inf
        return ConvexProgram(curvature, slope, self.a, self.b, self.cones, self.size, curved, moderate=moderate)

    def linear_at(self, u: Vector) -> ConvexProgram:
        """The same with smooth functions as the quadratic ones that they are like at u."""
        model = self.model(u, self.curvature(u))
        return replace(self, p=model.p, q=model.q, curved=model.curved, moderate=model.moderate, smooth=None)

    def around(self, u: Vector, unit: float) -> ConvexProgram:
        """The program for v in u + unit v, with the same multipliers; of a program without smooth functions."""
        return replace(self, p=self.p * unit, q=self.slope(u), b=self.slack(u) / unit, curved=self.curved * unit)

    def drawn_to(self, centre: Float[np.ndarray, " size"], weight: float = 1.0) -> ConvexProgram:
        """The program with weight ||y - centre||^2 / 2 added."""
        of_y, q = np.arange(self.width) < self.size, self.q.copy()
        p = self.p + diagonal(np.where(of_y, weight, 0.0), self.p)
        q[: self.size] -= weight * centre
        return replace(self, p=p, q=q, curved=p)

    def force_size(self, u: Vector, z: Rows) -> float:
        """The size of what balances there."""
        return max(float(self.force_sizes(u, z).max(initial=0.0)), 1e-4 * self._absolute[2]) or 1.0

    def force_sizes(self, u: Vector, z: Rows) -> Vector:
        """The same for each entry of u."""
        p, a, _ = self._absolute
        size = np.asarray(p @ np.abs(u) + np.abs(self.q) + a.T @ np.abs(z))
        return size if self.smooth is None else size + self.smooth.gradient_size(u)

    def slope_sizes(self, u: Vector) -> np.ndarray:
        """The sizes of what the objective's slope adds up from: prices, curvature as far as 1 from u, smooth functions."""
        smooth = [] if self.smooth is None else [self.smooth.gradient_size(u)]
        return np.concatenate([np.abs(self.q), self._absolute[0] @ (1.0 + np.abs(u)), *smooth])

    def row_sizes(self, u: Vector) -> Rows:
        """The size of what adds up to each row's slack."""
        return np.asarray(self._absolute[1] @ np.abs(u) + np.abs(self.b) + self.sizes)

    def error(self, u: Vector, z: Rows, beside: float | None = None) -> float:
        """The largest relative error of the three conditions, beside the size of what balances or another; NaN where it is not defined."""
        if not (np.isfinite(u).all() and np.isfinite(z).all()):
            return np.inf
        size = self.force_size(u, z) if beside is None else beside
        left = np.abs(self.force(u, z))
        if self.smooth is not None:
            left = left - np.minimum(self.smooth.rounding(u), left)
        worst = [left.max(initial=0.0) / size]
        if not len(self.b):
            return float(worst[0])
        rows, sizes = self._cone_scale(self.row_sizes(u)), self._cone_scale(self.sizes)
        e, dual = self.slack(u) / rows, z * sizes / size
        simple = self.equal | self.loose
        inside = np.where(self.equal, np.abs(e), np.maximum(-e, 0.0))[simple]
        fit = np.abs(np.where(self.equal, e, np.minimum(dual, e)))[simple]
        worst += [inside.max(initial=0.0), fit.max(initial=0.0)]
        for cone, place in self.curved_cones:
            outside = project_dual([cone], -e[place])
            apart = dual[place] - project_dual([cone], dual[place] - e[place])
            worst += [np.linalg.norm(outside), np.abs(apart).max()]
        return float(np.max(worst))

    @cached_property
    def curved_cones(self) -> list[tuple[Cone, slice]]:
        return [(cone, rows) for cone, rows in blocks(self.cones) if cone.kind not in (ZERO, NONNEGATIVE)]

    def _cone_scale(self, rows: Rows) -> Rows:
        """The size of each row; one size for all rows of a cone that is no product of rows."""
        scale = np.array(rows)
        for _, place in self.curved_cones:
            scale[place] = rows[place].max()
        return scale

    def judged(self, u: Vector, z: Rows, work: int = 0) -> ProgramSolution:
        """The pair as a solution, if it is one."""
        error = self.error(u, z)
        error = error if np.isfinite(error) else np.inf
        return ProgramSolution(u, z, error, SOLVED if error <= self.good else FAILED, work)

    @property
    def size_of_data(self) -> float:
        return max(float(np.abs(self.q).max(initial=0.0)), float(np.abs(self.b).max(initial=0.0)))

    @property
    def good(self) -> float:
        """The error up to which a pair is a solution."""
        return GOOD_OVER_ROWS if self.polyhedral and self.smooth is None else GOOD

    def none(self, status: int) -> ProgramSolution:
        return ProgramSolution(np.full(self.width, np.nan), np.full(len(self.b), np.nan), np.inf, status)

    def shows_empty(self, z: Rows) -> bool:
        """Whether z, brought to K*, tells that no u is feasible: A' z = 0, b' z < 0, to a tolerance."""
        z = project_dual(self.cones, z)
        z = z / (np.abs(z * self.sizes).max(initial=0.0) or 1.0)
        lost = float(self.b @ z)
        return lost < 0 and float(np.abs(self.a.T @ z).max(initial=0.0)) <= 1e-7 * -lost

    def shows_unbounded(self, u: Vector) -> bool:
        """Whether u is, to a tolerance, a direction along which the objective falls without end."""
        u = u / (np.abs(u).max(initial=0.0) or 1.0)
        gain = -float(self.q @ u)
        if gain <= 0:
            return False
        e = np.asarray(self.a @ u) / self.sizes
        away = np.where(self.equal, np.abs(e), np.maximum(-e, 0.0))[self.equal | self.loose]
        curved = [np.linalg.norm(project_dual([cone], -e[place])) for cone, place in self.curved_cones]
        floor = 1e-7 * gain / (1.0 + np.abs(self.q).max(initial=0.0))
        worst = max(float(away.max(initial=0.0)), *curved, 0.1 * float(np.abs(self.p @ u).max(initial=0.0)))
        return worst <= max(floor, 1e-9)


def merged(cones: list[Cone]) -> list[Cone]:
    """Rows of equations, and of inequalities, as one cone each."""
    merged: list[Cone] = []
    for cone in cones:
        if merged and cone.kind in (ZERO, NONNEGATIVE) and merged[-1].kind == cone.kind:
            merged[-1] = Cone(cone.kind, merged[-1].size + cone.size)
        else:
            merged.append(cone)
    return merged
