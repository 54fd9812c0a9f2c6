"""Newton's method for a smooth monotone map over a standard form's cones: at each step the map's linear model is solved there.

Josephy and Newton's method (Facchinei and Pang, 2003, section 7.3). Steps are cut where the map has turned against them, which for
a gradient is a line search on a convex function along the step; a map that is flat gets a diagonal that goes with its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from hierfl.compiler.host.cone_program import GOOD_IN_CONES, ConeProgram
from hierfl.compiler.host.cone_solution import FAILED, SOLVED, ConeSolution
from hierfl.compiler.host.cones import blocks
from hierfl.compiler.host.smooth.infinite_slopes import ROUNDING, are_multipliers, around, balanced, loosened
from hierfl.compiler.host.standard_form import NONNEGATIVE, ZERO, Cone

STEPS, CUTS = 200, 60
SETTLED = 4e-16  # relative step below which nothing moves any more
CLOSE = 1e-12  # relative step that is accepted where steps have stopped shrinking
SHORT = 0.995  # of a step to the boundary
NEARLY = 0.95  # of the way to where the map has no value
ENDLESS = 1e100  # a force that stands for an infinite one
NOTHING = 1e-30  # of the largest y on the way
NEAR = 1e-6  # relative step from which Newton's method needs no line search
STEADY = 0.9  # what a step has to shrink by
EXACT = 1e-14  # of the terms of a linear model, what rounding leaves between it and the map
WAIT = 20  # steps of next to nothing, after which y is known as well as it will be: beside an infinite derivative they go on
NOISE = (
    4e-15  # of the force beside the slope, 1 at most: steps of that length are rounding, which is seen where y is zero
)

Vector = Float[np.ndarray, " width"]
Force = Callable[[Vector], tuple[Vector, Float[np.ndarray, "width width"]]]


@dataclass(frozen=True, eq=False)
class NewtonMethod:
    """Solve 0 in G(u) - A' z with z in the normals of A u + b in K; ``force`` gives (G, its derivative) at u.

    The first ``size`` entries of u are y, the next ``raised`` are bounds that G depends on, told by what it feels of them: it may be flat
    there. The others are not unique and may move when y has settled.
    ``interior`` says that G may grow without bound at the boundary of K, which no step may reach, ``roots`` that its derivative may
    be infinite inside, where steps are short because of that alone.
    """

    force: Force
    a: Float[np.ndarray, "rows width"]
    b: Float[np.ndarray, " rows"]
    cones: Sequence[Cone]
    size: int
    interior: bool = False
    roots: bool = False
    raised: int = 0

    def solve(self, start: Vector) -> ConeSolution:
        """The solution from a feasible start at which G is finite."""
        u, last, answer, visited = start, np.inf, None, _largest(start)
        waited = 0
        force, slope = self.force(u)
        felt = _largest(force)
        if not _is_finite(force):
            return ConeSolution(np.full_like(u, np.nan), np.full(len(self.b), np.nan), np.inf, FAILED)
        for _ in range(STEPS):
            ahead, plain = self._model(u, force, slope)
            if ahead.status != SOLVED:
                return ahead
            step, moved, size, rounding = self._measured(u, ahead, force, slope)
            rising = self._felt_of_bounds(step, slope) / (felt or 1.0)
            if rising > SETTLED:
                size, rounding = max(size, rising), False
            nothing = rising <= SETTLED and moved <= NOTHING * visited  # near y = 0, where nothing is small beside y
            still = rounding or nothing or size <= SETTLED or (size <= CLOSE and size > STEADY * last)
            waited += size <= CLOSE
            told = (
                moved / (visited or 1.0) if self.roots or nothing else size
            )  # beside a y that goes to a corner at 0 no step is small
            short = None
            if still and self.roots and waited <= WAIT and not self._is_there(felt, ahead.u, ahead.z):
                short, still = (ahead, told), False
                ahead, plain = self._model(u, force, loosened(slope, force, u))
                if ahead.status != SOLVED:
                    return ahead
                step, moved, size, rounding = self._measured(u, ahead, force, slope)
            if still or waited > WAIT:
                return self._with_y(u, ahead, told)
            if (
                self._length > 0
                and not self.roots
                and moved <= GOOD_IN_CONES * self._length
                and rising <= GOOD_IN_CONES
            ):  # interior points come no nearer, to y = 0 above all
                return ConeSolution(ahead.u, ahead.z, min(size, moved / self._length), SOLVED)
            share, force_ahead, slope_ahead = self._share(u, step, force)
            if share == 0.0 and short is not None:  # nor does a longer step lead further
                return self._with_y(u, *short)
            if share < 1.0 and size <= NEAR:  # along so short a step only rounding may be seen
                full = self.force(ahead.u)
                if (share == 0.0 and size < 0.5 * last) or self._follows(force, slope, step, full[0]):
                    share, (force_ahead, slope_ahead) = 1.0, full
            if share == 1.0 and plain and self._is_exact(force, slope, step, force_ahead, slope_ahead):
                return ahead
            if (
                self.roots and share == 0.0
            ):  # rows hold to rounding, beside which roots move; or a corner is as near as y can be
                near = [ahead.u] if moved <= SETTLED * (visited or 1.0) else []
                for there in (*near, u):
                    if self._is_there(felt, there, ahead.z):
                        return ConeSolution(there, ahead.z, SETTLED, SOLVED)
            if share == 0.0 or not np.isfinite(force_ahead).all():
                if moved <= EXACT * visited and self._is_linear(slope, ahead.u):
                    return ConeSolution(u, ahead.z, moved / visited, SOLVED)
                return ConeSolution(u, ahead.z, size, SOLVED if size <= 1e3 * CLOSE else FAILED)
            u, force, slope, answer = u + share * step, force_ahead, slope_ahead, ahead
            visited, felt = max(visited, _largest(u)), max(felt, _largest(force))
            last = size if share == 1.0 or size <= CLOSE else np.inf
        assert answer is not None
        return ConeSolution(u, answer.z, last, FAILED)

    def _felt_of_bounds(self, step: Vector, slope: np.ndarray) -> float:
        """The most that G changes by the step of the bounds that it depends on."""
        bounds = slice(self.size, self.size + self.raised)
        return _largest(slope[:, bounds] @ step[bounds])

    def _with_y(self, u: Vector, ahead: ConeSolution, size: float) -> ConeSolution:
        """The answer with y as it is, and what else moves as it was last told."""
        return ConeSolution(np.concatenate([u[: self.size], ahead.u[self.size :]]), ahead.z, size, SOLVED)

    def _measured(
        self, u: Vector, ahead: ConeSolution, force: Vector, slope: np.ndarray
    ) -> tuple[Vector, float, float, bool]:
        """(the step, the most that y moves, that relative to y, whether it is rounding)."""
        step = ahead.u - u
        moved = _largest(step[: self.size])
        size, rounding = relative_step(moved, _largest(u[: self.size]), _largest(force), _largest(slope))
        return step, moved, float(size), bool(rounding)

    def _is_there(self, felt: float, u: Vector, z: np.ndarray) -> bool:
        """Whether multipliers balance the map at u, beside the largest force that was ``felt``."""
        ends = [self.force(v)[0] for v in (u, *around(u))]
        return are_multipliers(self.cones, z, felt) and bool(balanced(felt, self.a.T @ z, *ends))

    @cached_property
    def _length(self) -> float:
        """How far from 0 the cones that are no rows have their apexes in y, at most: what is small beside it is; 0 without such cones."""
        found = [0.0]
        for cone, rows in blocks(self.cones):
            sizes = np.linalg.norm(self.a[rows, : self.size], axis=1)
            if cone.kind not in (ZERO, NONNEGATIVE) and sizes.any():
                found.append(float((np.abs(self.b[rows])[sizes > 0] / sizes[sizes > 0]).max()))
        return max(found)

    @staticmethod
    def _is_exact(force: Vector, slope: np.ndarray, step: Vector, force_ahead: Vector, slope_ahead: np.ndarray) -> bool:
        """Whether the linear model is the map itself, so that the model's solution is the answer."""
        if not np.array_equal(slope, slope_ahead):
            return False
        size = np.abs(force) + np.abs(slope) @ np.abs(step)
        return bool((np.abs(force + slope @ step - force_ahead) <= EXACT * size).all())

    @staticmethod
    def _follows(force: Vector, slope: np.ndarray, step: Vector, force_ahead: Vector) -> bool:
        """Whether the linear model tells each entry of the map ahead, by half of how it changes or up to rounding."""
        change = slope @ step
        rounding = EXACT * (np.abs(force) + np.abs(slope) @ np.abs(step))
        return bool((np.abs(force + change - force_ahead) <= 0.5 * np.abs(change) + rounding).all())

    def _is_linear(self, slope: np.ndarray, ahead: Vector) -> bool:
        """Whether the derivative is the same ahead: where the map does not follow it over a step as short as that, it is rounding."""
        slope_ahead = self.force(ahead)[1]
        return bool(np.abs(slope_ahead - slope).max(initial=0.0) <= EXACT * np.abs(slope).max(initial=0.0))

    def _largest_share(self, u: Vector, step: Vector) -> float:
        """1, or just less than to the boundary that the step would reach."""
        if not self.interior:
            return 1.0
        here, ahead = self.a @ u + self.b, self.a @ (u + step) + self.b
        rows = np.arange(len(here)) >= sum(cone.size for cone in self.cones if cone.kind == ZERO)
        return SHORT if (rows & (here > 0) & (ahead <= 1e-3 * here)).any() else 1.0

    def _model(self, u: Vector, force: Vector, slope: np.ndarray) -> tuple[ConeSolution, bool]:
        """(the solution of the linear model, whether it is that); with a diagonal where the model has none."""
        size = np.abs(slope).max(initial=0.0)
        answer, plain = ConeProgram(slope, force - slope @ u, self.a, self.b, self.cones).solve(), True
        weight = max(1e-8 * size, 1e-3 * _largest(force) / (1.0 + _largest(u)))
        for _ in range(12):
            if answer.status == SOLVED or not weight > 0:
                break
            curved = slope + weight * np.eye(len(u))
            answer, plain = ConeProgram(curved, force - curved @ u, self.a, self.b, self.cones).solve(), False
            weight *= 10
        return answer, plain

    def _share(self, u: Vector, step: Vector, force: Vector) -> tuple[float, Vector, np.ndarray]:
        """How much of the step to take: all, or to where the map along it changes sign, or nearly to where it ends; 0 where there is no such place."""
        slope_here = float(force @ step)
        low, high, blocked, share = 0.0, np.inf, False, self._largest_share(u, step)
        most = share
        for _ in range(CUTS):
            ahead, slope = self.force(u + share * step)
            if np.isfinite(ahead).all() and np.isfinite(slope).all():
                along = float(ahead @ step)
                if along <= 0.5 * abs(slope_here) and (share == most or along >= -0.5 * abs(slope_here)):
                    return share, ahead, slope
                if along > 0:
                    high, blocked = share, False
                else:
                    low = share
            else:
                high, blocked = share, True
            if blocked and low > NEARLY * high:  # it still descends where the map ends: the way in is for the next step
                return low, *self.force(u + low * step)
            share = 0.5 * (low + high)
            if share * _largest(step) <= 1e-17 * (_largest(u) or 1.0):
                break
            if self.roots and low > 0.0 and (high - low) * _largest(step) <= ROUNDING * _largest(u):
                return low, *self.force(u + low * step)  # up to where it would turn, which is between two numbers
        return 0.0, force, np.zeros((len(u), len(u)))


def relative_step(
    moved: np.ndarray | float, y: np.ndarray | float, force: np.ndarray | float, slope: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """(steps relative to y, which of them are rounding), from the largest entries of steps, of y, of the map and of its derivative."""
    with np.errstate(over="ignore"):  # beside a y that is next to nothing, steps are infinitely long
        unit = np.minimum(force / _or_one(slope), 1.0)
        size, rounding = moved / _or_one(y), np.asarray(moved <= NOISE * unit)
        return np.where(rounding, np.minimum(size, moved / _or_one(unit)), size), rounding


def _or_one(sizes: np.ndarray | float) -> np.ndarray:
    return np.where(np.asarray(sizes) > 0, sizes, 1.0)


def _is_finite(force: Vector) -> bool:
    """Whether a force is one: what stands for infinity, as the slope of y log y at 0, is none."""
    return bool((np.abs(force) < ENDLESS).all())


def _largest(v: Vector) -> float:
    return float(np.abs(v).max(initial=0.0))
