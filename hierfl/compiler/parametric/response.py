"""How the solution of a program moves with theta: one factorisation of the conditions at what holds.

With the rows J that hold, [P A_J'; A_J 0] (du, -dz) = -(r, s), where r and s are what the conditions move by at a fixed solution; the
adjoint of a seed solves the same system. Rows that hold without a multiplier make y(theta) directional only: then the derivative along
a direction is a quadratic program over the critical cone, and there is a gradient if those along generic directions, there and back,
are what the adjoint says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hierfl.compiler.host.cones import dual_slope, middles
from hierfl.compiler.host.standard_form import NONNEGATIVE, SECOND_ORDER, ZERO, Cone, triangle
from hierfl.compiler.parametric.all_solutions import AllSolutions, unpriced
from hierfl.compiler.parametric.convex_program import EMPTY, UNBOUNDED, ConvexProgram, ProgramSolution
from hierfl.compiler.parametric.level_form import Thetas
from hierfl.compiler.parametric.row_block import Slopes
from hierfl.compiler.parametric.saddle import Saddle
from hierfl.compiler.parametric.small_and_sparse import Matrix, as_array, diagonal, largest, nothing, stacked
from hierfl.compiler.parametric.solve_program import solve_program

CONSISTENT = 1e-7  # of a right side, that may be left of a system that has a solution
UNMOVED = 1e-4  # of how far u would go without rows: what it moves by less than 1e-9 of that is none
TIGHT_ALONG = 1e-9  # of a row's change, up to which it goes on holding
ROUNDING = 1e-10  # of u, that it may seem to move by
FURTHER, ROUGHLY = 1e-4, 1e-2  # a step along a direction, and how near a slope is there, relative
ALIKE = 1e-6  # of two derivatives that are the same
STEP = 1e-3  # of theta's size, in differences of what is a polynomial of degree 3 at most: two of them make it exact
FAINT = 1e-10  # of the forces, up to which a cone's multiplier is none
STILL = 1e-9  # of a vector of length 1, up to which an entry does not move along it
CANCELLED = 1e6  # how much larger than the slope forces are, from which that is lost in them
AT_CORNER, NEAR_CORNER = (
    1e-12,
    1e-7,
)  # of a multiplier and a slack in a curved cone: at a corner of their conditions, or in doubt
LARGEST = 2_000  # unknowns of the conditions over curved cones, which are dense

Build = Callable[[Thetas], ConvexProgram]
Push = Callable[[Thetas, Thetas, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Adjoint(NamedTuple):
    """(a, b) and the multipliers such that the gradient of seed'u is that of -a'(P u + q - A'z) - b'(A u + b) at fixed u and z."""

    a: np.ndarray
    b: np.ndarray
    z: np.ndarray


class _Look(NamedTuple):
    """How u moves along a direction of theta, and by what that was found."""

    by: ProgramResponse
    way: Thetas
    moved: ProgramSolution


@dataclass(frozen=True, eq=False)
class ProgramResponse:
    """Of the solution of ``build(thetas)``."""

    build: Build
    thetas: Thetas
    program: ConvexProgram
    answer: ProgramSolution
    push: Push | None = None  # how the conditions move along a direction of theta; else by differences of what is built

    _saddles: dict[bytes, Saddle] = field(default_factory=dict)

    @cached_property
    def solutions(self) -> AllSolutions:
        return AllSolutions(self.program, self.answer)

    def adjoint(
        self, seed: np.ndarray, tangents: Sequence[Thetas], leaps: bool = False
    ) -> Adjoint | None:
        """The adjoint of seed'u; None where there is none.

        ``tangents`` are directions of theta in which it has to be one; ``leaps`` says that u may jump, which a seed of zero does not see.
        """
        if not seed.any():
            followed = not leaps or all(self._stays(self.moved(tangent)) for tangent in tangents)
            zero = np.zeros(self.program.width), np.zeros(len(self.program.b))
            return Adjoint(*zero, self.answer.z) if followed else None
        if not self.program.polyhedral:
            return None if unpriced(self.program).any() else self._over_cones(seed, tangents)
        if not self.solutions.weak.any():
            pair = self._at(self.solutions.strong, seed)
            if pair is not None and all(self._is_followed(self.moved(tangent)) for tangent in tangents):
                return pair
            if self._are_independent:
                return None
        ways = [[sign * part for part in tangent] for tangent in tangents for sign in (1.0, -1.0)]
        looks = [look for way in ways if (look := self._look(way)) is not None]
        if not looks or not all(look.moved.solved for look in looks):
            return None
        for by, way, moved in looks:
            pair = by._at(by._held_along(moved, *by.moved(way)), seed)
            if pair is not None and all(by._agrees(pair, seed, by.moved(look.way), look.moved) for look in looks):
                return pair
        return None

    def _look(self, way: Thetas) -> _Look | None:
        """The derivative along a direction, by the multipliers that count there; None where it leads out of the domain."""
        force, slack = self.moved(way)
        moved = self._along(force, slack)
        if moved.solved:
            return _Look(self, way, moved)
        if self._leads_out(moved.status, slack):
            return None
        other = self._by_multipliers_along(slack)
        return _Look(self, way, moved) if other is None else _Look(other, way, other._along(*other.moved(way)))

    @cached_property
    def _are_independent(self) -> bool:
        """Whether the rows that hold are, so that there are no other multipliers."""
        held = self.solutions.strong
        numbers = np.cos(np.arange(1, int(held.sum()) + 1) ** 2)
        _, multipliers, left = Saddle(diagonal(np.ones(self.program.width), self.program.a), self.program.a[held]).solve(
            self.program.a[held].T @ numbers, np.zeros(len(numbers))
        )
        return bool(left <= CONSISTENT and np.abs(multipliers - numbers).max(initial=0.0) <= ALIKE)

    def _by_multipliers_along(self, slack: np.ndarray) -> ProgramResponse | None:
        """The same by those multipliers that make the least of what slacks move by (Gauvin and Janin, 1988): of the linear program
        whose dual that is.
        """
        program, z = self.program, self.answer.z
        tight = self.solutions.strong | self.solutions.weak
        order = np.concatenate([np.flatnonzero(tight & program.equal), np.flatnonzero(tight & program.loose)])
        kinds = [Cone(ZERO, int((tight & program.equal).sum())), Cone(NONNEGATIVE, int((tight & program.loose).sum()))]
        flat, rows = nothing(program.width, program.width, program.p), program.a[order]
        cones = [cone for cone in kinds if cone.size]
        least = ConvexProgram(flat, np.asarray(rows.T @ z[order]), rows, slack[order], cones, program.size, flat)
        found = solve_program(least)
        if not found.solved:
            return None
        multipliers = np.zeros_like(z)
        multipliers[order] = found.z
        if not program.judged(self.answer.u, multipliers).solved:
            return None
        return replace(self, answer=replace(self.answer, z=multipliers), _saddles={})

    # --- rows ----------------------------------------------------------------------------------------------------

    @cached_property
    def _curvature(self) -> Matrix:
        return self.program.curvature(self.answer.u)

    def _saddle(self, held: np.ndarray) -> Saddle:
        key = held.tobytes()
        if key not in self._saddles:
            self._saddles[key] = Saddle(self._curvature, self.program.a[held])
        return self._saddles[key]

    def _at(self, held: np.ndarray, seed: np.ndarray) -> Adjoint | None:
        """The adjoint where these rows hold; None where they leave the seed undetermined."""
        a, multipliers, left = self._saddle(held).solve(seed, np.zeros(int(held.sum())))
        if left > CONSISTENT:
            return None
        b = np.zeros(len(self.program.b))
        b[held] = multipliers
        return Adjoint(a, b, self.answer.z)

    def moved(self, tangent: Thetas) -> tuple[np.ndarray, np.ndarray]:
        """How the conditions move along a direction of theta, at fixed u and z: (of P u + q - A'z, of A u + b)."""
        if self.push is not None:
            return self.push(self.thetas, tangent, self.answer.u, self.answer.z)
        u, z = self.answer.u, self.answer.z
        size = max((float(np.abs(part).max(initial=0.0)) for part in tangent), default=0.0)
        scale = max((float(np.abs(part).max(initial=0.0)) for part in self.thetas), default=0.0)
        if size == 0.0:
            return np.zeros(self.program.width), np.zeros(len(self.program.b))
        step = STEP * max(scale, 1e-3) / size

        def at(times: float) -> tuple[np.ndarray, np.ndarray]:
            program = self.build([part + times * step * way for part, way in zip(self.thetas, tangent)])
            return program.force(u, z), program.slack(u)

        (f1, s1), (b1, t1), (f2, s2), (b2, t2) = at(1.0), at(-1.0), at(2.0), at(-2.0)
        return (8 * (f1 - b1) - (f2 - b2)) / (12 * step), (8 * (s1 - t1) - (s2 - t2)) / (12 * step)

    def _stays(self, moved: tuple[np.ndarray, np.ndarray]) -> bool:
        """Whether u has a derivative along a direction, there and back."""
        if not self.solutions.weak.any():
            return self._is_followed(moved)
        return all(self._along(sign * moved[0], sign * moved[1]).solved for sign in (1.0, -1.0))

    def _is_followed(self, moved: tuple[np.ndarray, np.ndarray]) -> bool:
        """Whether the rows that hold can go on holding along a direction."""
        force, slack = moved
        strong = self.solutions.strong
        _, _, left = self._saddle(strong).solve(-force, -slack[strong])
        size = max(float(np.abs(force).max(initial=0.0)), float(np.abs(slack[strong]).max(initial=0.0)))
        noise = 1e-9 * self.program.force_size(self.answer.u, self.answer.z)
        return bool(left <= CONSISTENT or left * size <= noise)

    def _agrees(
        self,
        pair: Adjoint,
        seed: np.ndarray,
        way: tuple[np.ndarray, np.ndarray],
        moved: ProgramSolution,
    ) -> bool:
        """Whether the derivative along a direction is what the adjoint says."""
        (a, b, _), (force, slack) = pair, way
        said = -float(a @ force + b @ slack)
        size = float(np.abs(a) @ np.abs(force) + np.abs(b) @ np.abs(slack) + np.abs(seed) @ np.abs(moved.u))
        rounding = ROUNDING * float(np.abs(seed).max()) * (1.0 + float(np.abs(self.answer.u).max(initial=0.0)))
        return abs(float(seed @ moved.u) - said) <= ALIKE * size + rounding

    def _along(self, force: np.ndarray, slack: np.ndarray) -> ProgramSolution:
        """The derivative of u along a direction."""
        program, strong, weak = self.program, self.solutions.strong, self.solutions.weak
        a = stacked([program.a[strong], program.a[weak]])
        b = np.concatenate([slack[strong], slack[weak]])
        cones = [Cone(ZERO, int(strong.sum())), Cone(NONNEGATIVE, int(weak.sum()))]
        kinds = [cone for cone in cones if cone.size]
        return solve_program(ConvexProgram(self._curvature, force, a, b, kinds, program.size, program.flat_along))

    def _leads_out(self, status: int, slack: np.ndarray) -> bool:
        """Whether a direction leads out of the domain: no u meets the rows there, or a weight that is zero falls below."""
        if status == UNBOUNDED:
            return bool(unpriced(self.program).any())
        if status != EMPTY:
            return False
        program, tight = self.program, self.solutions.strong | self.solutions.weak
        equal = tight & program.equal
        loose = tight & program.loose
        a = stacked([program.a[equal], program.a[loose]])
        cones = [cone for cone in (Cone(ZERO, int(equal.sum())), Cone(NONNEGATIVE, int(loose.sum()))) if cone.size]
        flat, none = nothing(program.width, program.width, program.p), np.zeros(program.width)
        b = np.concatenate([slack[equal], slack[loose]])
        return solve_program(ConvexProgram(flat, none, a, b, cones, program.size, flat)).status == EMPTY

    def _held_along(self, moved: ProgramSolution, force: np.ndarray, slack: np.ndarray) -> np.ndarray:
        """The rows that hold here and a little along a direction."""
        program, weak = self.program, self.solutions.weak
        change = np.asarray(program.a @ moved.u) + slack
        size = np.asarray(abs(program.a) @ np.abs(moved.u)) + np.abs(slack)
        stiff = largest(self._curvature)
        size = size + (program.sizes * UNMOVED * float(np.abs(force).max(initial=0.0)) / stiff if stiff > 0 else 1e-300)
        return self.solutions.strong | (weak & (np.abs(change) <= TIGHT_ALONG * size))

    # --- cones ---------------------------------------------------------------------------------------------------

    def _over_cones(self, seed: np.ndarray, tangents: Sequence[Thetas]) -> Adjoint | None:
        """From the derivative of z = Proj(z - scale (A u + b)); where it may have none, what the solutions a little further confirm."""
        program, u, z = self.program, self.answer.u, self.answer.z
        width, total = program.width, program.width + len(z)
        forces = program.force_size(u, z), program.force_size(u, np.zeros_like(z))
        if total > LARGEST or forces[0] > CANCELLED * forces[1]:  # multipliers without bound tell nothing
            return None
        weak, a, scale = self.solutions.weak, as_array(program.a), self._scale
        right = np.concatenate([seed, np.zeros(len(z))])
        corner = 0.0 if weak.any() else self._from_corner
        faint = [(c, rows) for c, rows in program.curved_cones if self._is_faint(rows) and corner <= NEAR_CORNER]
        for holds in (False, True) if weak.any() or faint else (False,):
            v = z - scale * program.slack(u)
            v[weak] = 1.0 if holds else -1.0
            for cone, rows in () if holds else faint:
                v[rows] = -middles([cone], program.sizes[rows])
            slope = dual_slope(program.cones, v)
            system = np.block([[as_array(self._curvature), -a.T], [scale * slope @ a, np.eye(len(z)) - slope]])
            found, _, rank, _ = np.linalg.lstsq(system.T, right, rcond=1e-12)
            if np.abs(system.T @ found - right).max() > CONSISTENT * np.abs(right).max():
                continue
            pair = Adjoint(found[:width], scale * slope.T @ found[width:], z)
            determined = rank == total or self._leaves_bounds_only(system, rank)
            if determined and corner > NEAR_CORNER:
                return pair
            ways = [(sign, tangent) for tangent in tangents for sign in (1.0, -1.0)]
            told = (self._is_slope(pair, seed, tangent, sign) for sign, tangent in ways)
            if all(told) if corner <= AT_CORNER or not determined else any(told):
                return pair
        return None

    def _is_faint(self, rows: slice) -> bool:
        """Whether a cone has no multiplier to speak of."""
        program = self.program
        size = float(np.abs(self.answer.z[rows] * program.sizes[rows]).max())
        return size <= FAINT * program.force_size(self.answer.u, np.zeros_like(self.answer.z))

    def _leaves_bounds_only(self, system: np.ndarray, rank: int) -> bool:
        """Whether what the conditions leave open are bounds that hold nothing."""
        loose = np.linalg.svd(system)[2][rank:]
        others = np.ones(len(system), bool)
        others[self.program.size : self.program.width] = False
        return float(np.abs(loose[:, others]).max(initial=0.0)) <= STILL

    def _is_slope(self, pair: Adjoint, seed: np.ndarray, tangent: Thetas, sign: float) -> bool:
        """Whether seed'u moves along a direction as the adjoint says: by the solution a little further."""
        force, slack = self.moved(tangent)
        said, u = -float(pair[0] @ force + pair[1] @ slack), self.answer.u
        size = max((float(np.abs(part).max(initial=0.0)) for part in tangent), default=0.0)
        if size == 0.0:
            return True
        step = FURTHER * max(1.0, float(np.abs(u).max(initial=0.0))) / size
        there = solve_program(self.build([part + sign * step * way for part, way in zip(self.thetas, tangent)]))
        if not there.solved:
            return False
        way = (there.u - u) / (sign * step)
        least = float(np.linalg.norm(seed)) * max(float(np.linalg.norm(way[seed != 0])), size)
        return abs(float(seed @ way) - said) <= ROUGHLY * least

    @property
    def _scale(self) -> float:
        program = self.program
        return program.force_size(self.answer.u, self.answer.z) / max(
            float(program.row_sizes(self.answer.u).max(initial=0.0)), 1e-300
        )

    @property
    def _from_corner(self) -> float:
        """How far multipliers and slacks of curved cones are from where the projection has no derivative, relative."""
        v = self.answer.z - self._scale * self.program.slack(self.answer.u)
        least = np.inf
        for cone, rows in self.program.curved_cones:
            part = v[rows]
            size = max(float(np.abs(part).max()), 1e-300)
            if cone.kind == SECOND_ORDER:
                length = float(np.linalg.norm(part[1:]))
                near = min(abs(part[0] - length), abs(part[0] + length))
            else:
                near = float(np.abs(np.linalg.eigvalsh((triangle(cone.order).T @ part).reshape(cone.order, -1))).min())
            least = min(least, near / size)
        return least


def slopes_of(adjoint: Adjoint, u: np.ndarray) -> Slopes:
    """The function of the program's numbers whose gradient in theta is that of seed'u."""
    a, b, z = adjoint
    return Slopes([(-a, u)], [], [(z, a), (-b, u)], -b)
