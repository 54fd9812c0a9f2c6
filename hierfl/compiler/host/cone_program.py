"""Quadratic programs over cones on the host: DAQP where there are only rows, Clarabel elsewhere, then polished to rounding.

    minimise  u' H u / 2 + g' u   subject to   A u + b in K;        H u + g = A' z,  z in K*,  z' (A u + b) = 0.

With an H that is not symmetric the same conditions are those of an affine variational inequality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import daqp
import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.cone_solution import EMPTY, FAILED, SOLVED, UNBOUNDED, ConeSolution, cancelled
from hierfl.compiler.host.cones import blocks, distance, project_dual
from hierfl.compiler.host.interior_points import by_interior_points
from hierfl.compiler.host.polish import Polish
from hierfl.compiler.host.reached_limits import ReachedLimits
from hierfl.compiler.host.rows.complementarity import by_pivots
from hierfl.compiler.host.rows.feasible_descent import descended
from hierfl.compiler.host.rows.greatest_pieces import MANY, GreatestPieces
from hierfl.compiler.host.rows.least_gap import LeastGap
from hierfl.compiler.host.standard_form import NONNEGATIVE, ZERO, Cone

INFINITE, FEASIBLE = 1e30, 1e-12  # what DAQP is given for no bound, and for its tolerance
UNLIKELY = 1e8  # a solution in units of 1: DAQP goes as far where nothing is feasible
FAR = 1e3  # a bound on u, from which Clarabel is given other units: it calls such programs empty
INFEASIBLE, CYCLED, UNBOUNDED_BELOW = -1, -2, -3  # DAQP's words; the second: active sets went in circles
UNTOUCHED = (-5, -6)  # DAQP's words for H that is not convex, and for too many equations
FIRMER = 1e-4  # of I beside a singular H, in the units that DAQP is given
SPREAD = 1e3  # of square roots of curvatures, from which u is scaled
TINY = 1e-4  # of H, that u and g are held to be small beside
GOOD = 1e-9  # the error of the optimality conditions, relative, up to which an answer is one
PATIENCE = 5  # steps of Newton's method in vain, from afar
FINE = 1e-13  # the error from which a cost that hardly falls may be the reason
LOST = 1e-2  # of what H u balances, from which its rounding leaves nothing of it
EXACT = 1e-14  # the error of an answer that needs no other solver
GOOD_IN_CONES = 1e-9  # where other cones hold without a multiplier, interior points come no nearer
NOISE = 1e-15  # of the forces that balance: what rounding leaves of a multiplier
ACTIVE = 1e-14  # of a row's size, up to which it holds with equality: answers are polished to rounding

Matrix = Float[np.ndarray, "rows width"]
Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]


@dataclass(frozen=True, eq=False)
class ConeProgram:
    """H (width, width), g (width,), A (rows, width), b (rows,), and the cones of the rows, equations first."""

    h: Float[np.ndarray, "width width"]
    g: Vector
    a: Matrix
    b: Rows
    cones: Sequence[Cone]
    bounds: int = 0  # how many of the last entries of u are upper bounds of convex terms, which may as well be larger

    @cached_property
    def equations(self) -> int:
        """How many rows are equations."""
        return sum(cone.size for cone in self.cones if cone.kind == ZERO)

    @cached_property
    def polyhedral(self) -> bool:
        """Whether there are only equations and inequalities."""
        return all(cone.kind in (ZERO, NONNEGATIVE) for cone in self.cones)

    @cached_property
    def symmetric(self) -> bool:
        """Whether it is a minimisation."""
        return bool(np.abs(self.h - self.h.T).max(initial=0.0) <= 1e-13 * np.abs(self.h).max(initial=0.0))

    def solve(self, near: ConeSolution | None = None) -> ConeSolution:
        """The solution, or the reason why there is none, looked for from ``near``, the solution of a program like it."""
        units = self.units
        if (units != 1.0).any():
            near = None if near is None else replace(near, u=near.u / units)
            answer = self.in_units(units).solve(near)
            return replace(answer, u=answer.u * units)
        if not self.symmetric:
            return self._variational()
        if self.polyhedral:
            answer = self._by_rows(near)
            return self._by_clarabel() if answer.status == FAILED else answer
        if self.limits is not None:
            h, g, a, b = self.limits.inner(self.h, self.g, self.a, self.b)
            inner = ConeProgram(h, g, a, b, self.limits.inner_cones(self.cones))
            return self.limits.outer(self.a, self.b, inner.solve(None if near is None else self.limits.of_inner(near)))
        return self._from(near) or self._from(self._free) or self._by_clarabel()

    def solve_by_rows(self) -> ConeSolution:
        """The solution where DAQP finds it, which is quick; it may have failed where ``solve`` asks another solver."""
        units = self.units
        answer = self._by_rows() if (units == 1.0).all() else self.in_units(units)._by_rows()
        return replace(answer, u=answer.u * units)

    @cached_property
    def units(self) -> Vector:
        """Powers of two, 1 at most, in which entries of u are all about as stiff; 1 where they are within a factor of a thousand.

        Larger ones would make rows long, beside which nothing misses them.
        """
        stiff = np.sqrt(np.maximum(np.diagonal(self.h), 0.0))
        curved = stiff[stiff > 0]
        if not len(curved) or curved.max() <= SPREAD * curved.min():
            return np.ones(len(stiff))
        ratio = np.where(stiff > 0, stiff, curved.min()) / curved.min()
        return np.asarray(np.exp2(-np.round(np.log2(ratio))))

    def in_units(self, units: Vector) -> ConeProgram:
        """The same program for u / units."""
        if (units == 1.0).all():
            return self
        h, a = units[:, None] * self.h * units, self.a * units
        return _Scaled(h, units * self.g, a, self.b, self.cones, self.bounds)

    def _variational(self) -> ConeSolution:
        """The solution for an H that is not symmetric: by pivots over rows, by a least gap where they fail, as where H is singular.

        None is looked for over other cones.
        """
        if not self.polyhedral:
            return self._none(FAILED)
        answer = self._by_rows()
        rows = self.a / self.sizes[:, None], self.b / self.sizes, self.equations
        if answer.status == FAILED and (pair := by_pivots(self.h, self.g, *rows)) is not None:
            answer = self.polished_solution(pair[0], pair[1] / self.sizes)
        gap = LeastGap(self.h, self.g, *rows)
        if answer.status == EMPTY or (answer.status == SOLVED and not gap.is_far(answer.u)) or not gap.is_monotone:
            return answer
        program = ConeProgram(*gap.program)
        least = self._none(EMPTY) if gap.has_pull else program.solve()
        if least.status == SOLVED and np.abs(least.u).max(initial=0.0) > UNLIKELY:
            least = program._by_clarabel()
        if least.status == SOLVED:
            u, z = gap.pair(least.u)
            answer = self.polished_solution(u, z / self.sizes)
        if least.status == SOLVED == answer.status:
            return answer
        if self._really_empty():
            return self._none(EMPTY)
        without = least.status in (
            EMPTY,
            UNBOUNDED,
        )  # a gap is never negative: rows that no pair meets are told as either
        return self._none(UNBOUNDED) if without else replace(answer, status=FAILED)

    # --- rows ----------------------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> Rows:
        """The length of each row of A, 1 for a row of zeros."""
        sizes = np.linalg.norm(self.a, axis=1)
        return np.where(sizes > 0, sizes, 1.0)

    def _by_rows(self, near: ConeSolution | None = None) -> ConeSolution:
        found = self._by_pieces(near, MANY)
        if found is not None and found.error <= FINE:
            return found
        answer = self.by_all_rows()
        rough = answer.error > FINE and answer.status in (SOLVED, FAILED)
        found = self._by_pieces(near, 1) if rough else None
        return answer if found is None or found.error >= answer.error else found

    def _by_pieces(self, near: ConeSolution | None, fewest: int) -> ConeSolution | None:
        """The solution where the cost is one of greatest pieces, at least so many, from ``near``; None where it is not found that way."""
        pieces = GreatestPieces.of(self, fewest) if self.symmetric else None
        return None if pieces is None else pieces.solution(None if near is None else near.u)

    def by_all_rows(self) -> ConeSolution:
        """The solution where DAQP finds it, among all rows at once."""
        empty = np.linalg.norm(self.a, axis=1) == 0
        if empty.any() and self._contradiction(empty):
            return self._none(EMPTY)
        kept = np.flatnonzero(~empty)
        if not self.h.any() and not self.g.any() and not len(kept):
            return ConeSolution(np.zeros(len(self.g)), np.zeros(len(self.b)), 0.0, SOLVED)
        u, multipliers, flag = self._daqp(kept)
        if flag == UNBOUNDED_BELOW:
            return self._none(UNBOUNDED) if self.symmetric else self._none(FAILED)
        if flag == INFEASIBLE or (flag == CYCLED and self.symmetric):
            return self._by_firmer_rows(kept, flag)
        if not (np.abs(np.concatenate([u, multipliers])) < INFINITE).all():  # nor where they are no numbers
            return self._none(FAILED)
        answer = self._from_rows(kept, u, multipliers)
        return self._by_firmer_rows(kept, flag) if answer.status == FAILED and self.symmetric else answer

    def _by_firmer_rows(self, kept: np.ndarray, flag: int) -> ConeSolution:
        """Where H is singular, DAQP calls programs infeasible that are not, or goes in circles: the rows that hold with a little of I beside H."""
        weight, unit = self._scales(kept)
        if self.symmetric:
            firmer = replace(self, h=self.h + FIRMER * weight / unit * np.eye(len(self.g)))
            u, multipliers, again = firmer._daqp(kept)
            if again > 0 and (answer := self._from_rows(kept, u, multipliers)).status == SOLVED:
                return answer
        return self._none(EMPTY if flag == INFEASIBLE and self._really_empty() else FAILED)

    def _from_rows(self, kept: np.ndarray, u: Vector, multipliers: Rows) -> ConeSolution:
        """DAQP's answer for some rows, polished."""
        z = np.zeros(len(self.b))
        z[kept] = multipliers / self.sizes[kept]
        answer = self.polished_solution(u, z)
        if answer.error <= FINE or not self.symmetric or not self._holds(answer.u):
            return answer
        rows = self.a / self.sizes[:, None], self.b / self.sizes
        u, z, endless = descended(self.h, self.g, *rows, self.equal, answer.u)
        if endless:
            return self._none(UNBOUNDED)
        return min(answer, self.polished_solution(u, z / self.sizes), key=lambda one: one.error)

    def _holds(self, u: Vector) -> bool:
        """Whether u is feasible, up to rounding."""
        e = (self.a @ u + self.b) / (np.abs(self.a) @ np.abs(u) + np.abs(self.b) + self.sizes)
        return bool((np.where(self.equal, -np.abs(e), e) >= -GOOD).all())

    def _scales(self, kept: np.ndarray) -> tuple[float, float]:
        """(what the cost is divided by for DAQP, what u is)."""
        unit = max(1.0, float(np.abs(self.b[kept] / self.sizes[kept]).max(initial=0.0)))
        weight = max(float(np.abs(self.h).max(initial=0.0)) * unit, float(np.abs(self.g).max(initial=0.0))) or 1.0
        return weight, unit

    def _daqp(self, kept: np.ndarray) -> tuple[Vector, Rows, int]:
        """DAQP's u and z for these rows, scaled to length 1, in units in which bounds are about 1."""
        sizes = self.sizes[kept]
        rows, bounds = self.a[kept] / sizes[:, None], -self.b[kept] / sizes
        weight, unit = self._scales(kept)
        equal = kept < self.equations
        sense = np.where(equal, 5, 0).astype(np.int32)
        high = np.where(equal, bounds / unit, INFINITE)
        u, _, flag, info = daqp.solve(
            np.ascontiguousarray(self.h * (unit / weight)),
            np.ascontiguousarray(self.g / weight),
            np.ascontiguousarray(rows),
            high,
            np.ascontiguousarray(bounds / unit),
            sense,
            is_avi=not self.symmetric,
            primal_tol=FEASIBLE,
        )
        if flag in UNTOUCHED:  # what DAQP returns then is whatever was in memory
            return np.zeros(len(self.g)), np.zeros(len(kept)), int(flag)
        return np.array(u) * unit, -np.array(info["lam"]) * weight, int(flag)

    def _contradiction(self, empty: np.ndarray) -> bool:
        """Whether a row without coefficients does not hold."""
        floor = GOOD * (1.0 + np.abs(self.b).max(initial=0.0))
        wrong = np.where(self.equal, np.abs(self.b), -self.b)
        return bool((wrong[empty] > floor).any())

    def _really_empty(self) -> bool:
        """Whether no u is feasible: the nearest one to 0 by another solver."""
        nearest = ConeProgram(np.eye(len(self.g)), np.zeros(len(self.g)), self.a, self.b, self.cones)
        return nearest._by_clarabel().status == EMPTY

    @cached_property
    def limits(self) -> ReachedLimits | None:
        """The bounds of convex terms that only have a limit, where there are any."""
        return None if self.polyhedral else ReachedLimits.of(self.h, self.g, self.a, self.cones, self.bounds)

    # --- cones -----------------------------------------------------------------------------------------------------

    @property
    def _free(self) -> ConeSolution | None:
        """The minimiser without rows and cones; None where H is not safely positive definite."""
        if not self.symmetric:
            return None
        try:
            half = np.linalg.cholesky(self.h)
        except np.linalg.LinAlgError:
            return None
        u = np.linalg.solve(half.T, np.linalg.solve(half, -self.g))
        return ConeSolution(u, np.zeros(len(self.b)), np.inf, FAILED)

    def _from(self, near: ConeSolution | None) -> ConeSolution | None:
        """The answer by Newton's method from one nearby; None where it does not lead to one that is exact."""
        if near is None:
            return None
        u, z = self.polished(near.u, near.z, PATIENCE)
        error = self.error(u, z)
        return ConeSolution(u, z, error, SOLVED) if error <= EXACT else None

    def _by_clarabel(self) -> ConeSolution:
        if not self.symmetric:
            return self._none(FAILED)
        weight, unit = self._scales(np.arange(len(self.b)))
        weight, unit = (weight, unit) if unit > FAR else (1.0, 1.0)
        parts = self.h * (unit / weight), self.g / weight, self.a, self.b / unit
        status, u, z = by_interior_points(*parts, self.cones)
        if status != SOLVED:
            return self._none(status)
        return self._judged(Polish(self).without_faint(self.polished(u * unit, z * weight)))

    # --- what is common ----------------------------------------------------------------------------------------------

    def _none(self, status: int) -> ConeSolution:
        return ConeSolution(np.full(len(self.g), np.nan), np.full(len(self.b), np.nan), np.inf, status)

    def solution_of(self, u: Vector, z: Rows) -> ConeSolution:
        """A pair that misses no more than rounding as it is; else what Newton's method makes of it."""
        answer = self._judged((u, z))
        return answer if answer.error <= EXACT else self.polished_solution(u, z)

    def polished_solution(self, u: Vector, z: Rows) -> ConeSolution:
        """What Newton's method makes of a pair, judged by its error."""
        return self._judged(self.polished(u, z))

    def _judged(self, pair: tuple[Vector, Rows]) -> ConeSolution:
        error = self.error(*pair)
        good = GOOD if self.polyhedral else GOOD_IN_CONES
        return ConeSolution(*pair, error, SOLVED if error <= good else FAILED)

    def error(self, u: Vector, z: Rows) -> float:
        """The largest relative error of the three conditions: H u + g = A' z, A u + b in K, z the projection of z - (A u + b)."""
        hu, az, au = self.h @ u, self.a.T @ z, self.a @ u
        force = self.force_at(u, z)
        stationarity = max(np.abs(hu + self.g - az).max(initial=0.0) / force, self._lost(u, z))
        if not len(self.b):
            return float(stationarity)
        stationarity = max(stationarity, cancelled(force, self.force_at(u, np.zeros_like(z))))
        rows = self.sizes_of_entries[1] @ np.abs(u) + np.abs(self.b) + self.sizes
        if self.polyhedral:
            e, dual = (au + self.b) / rows, z * self.sizes / force
            inside = _size(np.where(self.equal, e, np.minimum(e, 0.0)))
            fit = float(np.abs(np.where(self.equal, e, np.minimum(dual, e))).max())
            return float(np.max([stationarity, inside, fit]))  # none where one is none
        e = (au + self.b) / _cone_scale(self.cones, rows)
        dual = z * _cone_scale(self.cones, self.sizes) / force
        inside = distance(self.cones, e)
        fit = float(np.abs(dual - project_dual(self.cones, dual - e)).max(initial=0.0))
        return float(np.max([stationarity, inside, fit]))  # none where one is none

    @cached_property
    def equal(self) -> Bool[np.ndarray, " rows"]:
        return np.arange(len(self.b)) < self.equations

    @cached_property
    def sizes_of_entries(self) -> tuple[Matrix, Matrix]:
        return np.abs(self.h), np.abs(self.a)

    def force_at(self, u: Vector, z: Rows) -> float:
        """The size of what balances in H u + g = A' z."""
        h, a = self.sizes_of_entries
        size = h @ np.abs(u) + np.abs(self.g) + a.T @ np.abs(z)
        return max(float(size.max(initial=0.0)), TINY * float(h.max(initial=0.0))) or 1.0

    def rounding_at(self, u: Vector) -> float:
        """Below what no multiplier of a row of size 1 is told from none."""
        return NOISE * self.force_at(u, np.zeros(len(self.b)))

    def _lost(self, u: Vector, z: Rows) -> float:
        """What rounding of H u is beside g and A'z, where it drowns them: u is on its way to infinity along a flat direction; else 0."""
        h, a = self.sizes_of_entries
        felt = np.where(np.abs(z) * self.sizes > self.rounding_at(u), np.abs(z), 0.0)
        balance = float((np.abs(self.g) + a.T @ felt).max(initial=0.0))
        rounding = np.finfo(float).eps * float((h @ np.abs(u)).max(initial=0.0))
        return rounding / balance if rounding > LOST * balance > 0 else 0.0

    def polished(self, u: Vector, z: Rows, patience: int = 2) -> tuple[Vector, Rows]:
        """The best of some steps of Newton's method on the conditions; it ends where they help no more, often."""
        return Polish(self).best(u, z, patience)


class _Scaled(ConeProgram):
    """A program in units of its own."""

    @cached_property
    def units(self) -> Vector:
        """None but these."""
        return np.ones(len(self.g))


def _size(v: np.ndarray) -> float:
    return float(np.linalg.norm(v))


def _cone_scale(cones: Sequence[Cone], rows: Rows) -> Rows:
    """The size of each row; one size for all rows of a cone that is not a product of rows."""
    scale = np.array(rows)
    for cone, place in blocks(cones):
        if cone.kind not in (ZERO, NONNEGATIVE):
            scale[place] = rows[place].max()
    return scale
