"""How a solution of a standard form moves with x: its derivative from the active set and the multipliers, degenerate cases included.

At a solution (u, z) of  R(x, u, z) = G(x, u) - E(x, u)' z = 0,  e(x, u) in K,  z in K*,  e'z = 0  (E the derivative of e in u):

* where the rows that hold are independent and all their multipliers positive, u moves on them, by one linear system;
* else the derivative along r solves a quadratic program over the critical cone (Bonnans and Shapiro, 2000, section 5.2):
  of all multipliers those count that minimise z'(e_x r), rows with a positive one stay, the other active ones may leave. Along
  a generic r what is tight stays tight around r, and gives the derivative there: at a point where u is differentiable *the* derivative,
  at a kink that of one of the pieces that meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.cone_program import ACTIVE, ConeProgram
from hierfl.compiler.host.cone_solution import SOLVED, cancelled
from hierfl.compiler.host.cones import blocks, dual_slope
from hierfl.compiler.host.critical_cone import STEEP, CriticalCone
from hierfl.compiler.host.rows.followers import followers
from hierfl.compiler.host.rows.greatest_pieces import GreatestPieces
from hierfl.compiler.host.singular_values import decomposed, solution_of
from hierfl.compiler.host.standard_form import NONNEGATIVE, SECOND_ORDER, ZERO, Cone

RANK, RANK_IN_CONES = 1e-10, 1e-12  # of the largest singular value, below which one counts as zero
TIGHT = 1e-9  # relative, within which a row holds along a direction
STILL = 1e-13  # of how far u would move without rows, up to which it does not: all rows hold then that leave it no way
BESIDE = 1e-7  # of a multiplier, how far from an apex its derivative is taken
INWARD, WITHIN = 1e-6, 1e-4  # a step to where a set has opened, and how near its slope is, relative
NOTHING = (1e-7, 1e-9, 1e-13)  # relative, of cones and multipliers: as near as solvers come, or zero to rounding
LARGE = 1e8  # a curvature beside which others are none, and that is told beside them
FURTHER, ROUGHLY = (1e-4, 1e-3), 1e-2  # steps along x, and how near a slope is there, relative
DEEPEST = 2  # how often a cone may hold without a multiplier along a generic direction
CONSISTENT = 1e-7  # relative, to which a seed has to be reached for a gradient to exist

Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]
Push = Callable[[Rows, Float[np.ndarray, " n"]], tuple[Vector, Rows]]  # (z, r) -> (R_x r, e_x r)
Pull = Callable[[Rows, Vector, Rows], Float[np.ndarray, " n"]]  # (z, v, w) -> R_x' v + e_x' w


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """The lower level at its solution: ``program`` is its quadratic model there, (u, z) the solution."""

    program: ConeProgram
    u: Vector
    z: Rows
    push: Push
    pull: Pull
    size: int  # of x
    depth: int = 0  # how often a derivative was that of another one

    def gradient(self, seed: Vector) -> Float[np.ndarray, " n"]:
        """The gradient of seed'u(x); NaN where it does not exist."""
        if not self.program.polyhedral:
            if (tame := self._tame) is not None:
                vague = CriticalCone.of(tame.program, tame.u, tame.z).vague
                return np.full(self.size, np.nan) if vague else tame._smooth(seed)
            if self._cancels:  # multipliers without bound: the set has shrunk to where they tell nothing
                return np.full(self.size, np.nan)
            return self._in_cones(seed)
        if (few := self._without_twins(seed) or self._without_followers(seed)) is not None:
            return few[0].gradient(few[1])
        if (sure := self._where_all_pull(seed)) is not None:
            return sure
        z, tight = next((found for r in self._ways if (found := self._along(r)) is not None), self._what_stays)
        return self._on_rows(tight, z, seed)

    def where_sure(self, seed: Vector) -> Float[np.ndarray, " n"] | None:
        """The gradient, whichever multipliers were found: all rows that hold are independent and have one; None elsewhere."""
        if not self.program.polyhedral:
            return None
        if (few := self._without_twins(seed) or self._without_followers(seed)) is not None:
            return few[0].where_sure(few[1])
        return self._where_all_pull(seed)

    def _where_all_pull(self, seed: Vector) -> Float[np.ndarray, " n"] | None:
        active = self.active
        strong = active & ((self.z > self._small) | self._equal)
        sure = strong.sum() == active.sum() and self._independent(active)
        return self._on_rows(active, self.z, seed) if sure else None

    @property
    def _ways(self) -> tuple[Float[np.ndarray, " n"], ...]:
        """Directions of x along which nothing happens that does not happen along their neighbours; a weight of zero has but one way to go."""
        generic = np.cos(np.arange(1, self.size + 1) ** 2)
        return generic, -generic, np.abs(generic), -np.abs(generic)

    # --- what holds ------------------------------------------------------------------------------------------------

    @cached_property
    def slack(self) -> Rows:
        """A u + b, in units of the rows."""
        program = self.program
        size = np.abs(program.a) @ np.abs(self.u) + np.abs(program.b) + program.sizes
        return (program.a @ self.u + program.b) / size

    @property
    def _equal(self) -> Bool[np.ndarray, " rows"]:
        return np.arange(len(self.z)) < self.program.equations

    @cached_property
    def active(self) -> Bool[np.ndarray, " rows"]:
        """The rows that hold with equality; rows without coefficients count for nothing."""
        return (self._equal | (self.slack <= ACTIVE)) & self.program.a.any(axis=1)

    @cached_property
    def _small(self) -> Rows:
        """The size below which a multiplier counts as zero."""
        scaled = np.abs(self.z) * self.program.sizes
        noise = max(self.program.rounding_at(self.u), 1e-300)
        return max(ACTIVE * float(scaled.max(initial=0.0)), noise) / self.program.sizes

    def _independent(self, rows: Bool[np.ndarray, " rows"]) -> bool:
        matrix = self.program.a[rows] / self.program.sizes[rows, None]
        return not len(matrix) or (
            len(matrix) <= matrix.shape[1] and np.linalg.matrix_rank(matrix, tol=RANK * len(matrix)) == len(matrix)
        )

    # --- polyhedral ------------------------------------------------------------------------------------------------

    def _without_twins(self, seed: Vector) -> tuple[Sensitivity, Vector] | None:
        """(the same, the seed) with one of each of the entries of u that are alike, as data that are repeated; None where all differ."""
        pieces = GreatestPieces.of(self.program) if self.program.symmetric else None
        twins = None if pieces is None else pieces.twins
        if pieces is None or twins is None or seed[pieces.entries].any():
            return None

        def push(z: Rows, r: Float[np.ndarray, " n"]) -> tuple[Vector, Rows]:
            force, moved = self.push(twins.of_all(self.u[twins.entries], z)[1], r)
            return twins.entry_sums(force), moved[twins.rows]

        def pull(z: Rows, v: Vector, w: Rows) -> Float[np.ndarray, " n"]:
            return self.pull(twins.of_all(v, z)[1], *twins.of_all(v, w))

        u, z = twins.of_one(self.u, self.z)
        return Sensitivity(pieces.without(twins), u, z, push, pull, self.size), seed[twins.entries]

    def _without_followers(self, seed: Vector) -> tuple[Sensitivity, Vector] | None:
        """(the same, the seed) without the entries of u that follow others and are not asked about; None where they are few."""
        program, active = self.program, np.flatnonzero(self.active)
        firm = ((self.z > self._small) & ~self._equal)[active]
        entries, places = followers(program.h, program.a[active], firm)
        entries, followed = entries[seed[entries] == 0], active[places[seed[entries] == 0]]
        if not len(entries):
            return None
        rest, rows = np.setdiff1d(np.arange(len(self.u)), entries), np.setdiff1d(active, followed)
        across = program.a[np.ix_(followed, rest)] / program.a[followed, entries][:, None]
        holding = np.where(self.active, self.z, 0.0)

        def whole(part: Rows, within: Rows) -> Rows:
            out = np.array(within)
            out[rows] = part
            return out

        def push(z: Rows, r: Float[np.ndarray, " n"]) -> tuple[Vector, Rows]:
            force, moved = self.push(whole(z, holding), r)
            return force[rest] - across.T @ force[entries], moved[rows]

        def pull(z: Rows, v: Vector, w: Rows) -> Float[np.ndarray, " n"]:
            of_u = np.zeros(len(self.u))
            of_u[rest], of_u[entries] = v, -across @ v
            return self.pull(whole(z, holding), of_u, whole(w, np.zeros_like(holding)))

        count = int(self._equal[rows].sum())
        cones = [cone for cone in (Cone(ZERO, count), Cone(NONNEGATIVE, len(rows) - count)) if cone.size]
        h, a = program.h[np.ix_(rest, rest)], program.a[np.ix_(rows, rest)]
        less = ConeProgram(h, program.g[rest], a, program.b[rows], cones)
        return Sensitivity(less, self.u[rest], self.z[rows], push, pull, self.size), seed[rest]

    def _on_rows(self, held: Bool[np.ndarray, " rows"], z: Rows, seed: Vector) -> Float[np.ndarray, " n"]:
        """The gradient where u moves on these rows; by their null space, so that they may depend on each other."""
        rows = self.program.a[held] / self.program.sizes[held, None]
        left, values, right = decomposed(rows) if len(rows) else (np.eye(0), np.zeros(0), np.eye(len(seed)))
        rank = int(np.sum(values > RANK * max(1.0, values.max(initial=0.0))))
        free, span = right[rank:].T, right[:rank].T
        h = self.program.h
        inside = free.T @ h @ free
        wanted = free.T @ seed
        direction, loose, missed = solution_of(inside.T, wanted, float(np.abs(h).max(initial=0.0)), RANK)
        if not missed <= CONSISTENT * (float(np.linalg.norm(seed)) or 1.0):
            return np.full(self.size, np.nan)

        def moved(v: Vector, target: Vector) -> Float[np.ndarray, " n"]:
            w = np.zeros(len(z))
            scaled = left[:, :rank] @ ((span.T @ (target - h.T @ v)) / values[:rank])
            w[held] = scaled / self.program.sizes[held]
            return self.pull(z, v, w)

        gradient = -moved(free @ direction, seed)
        for vector in loose.T:  # along which u is not determined: it jumps where the cost along it moves with x
            jump = moved(free @ vector, np.zeros_like(seed))
            if not np.linalg.norm(jump) <= CONSISTENT * (1.0 + float(np.linalg.norm(gradient))):
                return np.full(self.size, np.nan)
        return gradient

    def _along(self, r: Float[np.ndarray, " n"]) -> tuple[Rows, Bool[np.ndarray, " rows"]] | None:
        """(the multipliers that count along r, the rows that are tight there); None where u jumps along r, or is one of many."""
        z = np.where(self.active, self.z, 0.0)
        tight = self._tight(z, r)
        if tight is None:  # these multipliers do not count along r
            z = self._multipliers(z, r)
            tight = self._tight(z, r)
        return None if tight is None else (z, tight)

    @property
    def _what_stays(self) -> tuple[Rows, Bool[np.ndarray, " rows"]]:
        """(the multipliers, the rows that have one)."""
        z = np.where(self.active, self.z, 0.0)
        return z, self.active & (self._equal | (z > self._small))

    def _tight(self, z: Rows, r: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " rows"] | None:
        """The rows that hold along r, by the program over the critical cone; None where there is no direction in it."""
        program, active = self.program, np.flatnonzero(self.active)
        stays = (self._equal | (z > self._small))[active]
        order = np.concatenate([active[stays], active[~stays]])
        force, moved = self.push(z, r)
        cones = [Cone(ZERO, int(stays.sum())), Cone(NONNEGATIVE, int((~stays).sum()))]
        model = ConeProgram(program.h, force, program.a[order], moved[order], cones)
        answer = model.solve()
        if answer.status != SOLVED:
            return None
        moves = max(float(np.abs(answer.u).max(initial=0.0)), float(np.abs(model.b / model.sizes).max(initial=0.0)))
        tight = np.zeros(len(z), bool)
        stiff = float(np.abs(model.h).max(initial=0.0))
        rounding = STILL * float(np.abs(force).max(initial=0.0)) / stiff if stiff > 0 else 0.0
        tight[order] = np.abs(model.a @ answer.u + model.b) <= model.sizes * (TIGHT * moves + rounding)
        tight[order[: int(stays.sum())]] = True
        return tight

    def _multipliers(self, z: Rows, r: Float[np.ndarray, " n"]) -> Rows:
        """Of all multipliers those that minimise z'(e_x r): by the linear program whose dual that is."""
        program, active = self.program, np.flatnonzero(self.active)
        order = np.concatenate([active[self._equal[active]], active[~self._equal[active]]])
        cones = [
            Cone(ZERO, int(self._equal[active].sum())),
            Cone(NONNEGATIVE, int((~self._equal[active]).sum())),
        ]
        rows = program.a[order]
        flat = np.zeros((rows.shape[1], rows.shape[1]))
        answer = ConeProgram(flat, rows.T @ z[order], rows, self.push(z, r)[1][order], cones).solve()
        if answer.status != SOLVED:
            return z
        out = np.zeros_like(z)
        out[order] = answer.z
        return out

    # --- other cones -----------------------------------------------------------------------------------------------

    def _off_apexes(self, e: Rows) -> Rows:
        """e, next to the apex of a second-order cone where its multiplier is on the boundary: there a set that ends in one point opens."""
        out = np.array(e)
        for cone, rows in blocks(self.program.cones):
            pull = self.z[rows]
            size = float(np.linalg.norm(pull))
            at_apex = np.linalg.norm(e[rows]) <= RANK_IN_CONES * size
            if (
                cone.kind == SECOND_ORDER
                and at_apex
                and abs(pull[0] - np.linalg.norm(pull[1:])) <= RANK_IN_CONES * size
            ):
                out[rows] = BESIDE * np.concatenate([pull[:1], -pull[1:]])
        return out

    def _is_slope_within(self, gradient: Float[np.ndarray, " n"], seed: Vector) -> bool:
        """Whether a gradient is the slope of seed'u along the x for which a set opens, by the program a little within.

        Where rows or several cones hold at a point that a set has shrunk to it need not be: together they say where the apex is left for.
        """
        program = self.program
        r = self.pull(self.z, np.zeros(len(self.u)), self.z)
        length = float(np.linalg.norm(r))
        if not length > 0:
            return True
        shift = self.push(self.z, r / length)[1]
        force = self.push(np.zeros_like(self.z), r / length)[0]
        step = INWARD * max(1.0, float(np.abs(self.u).max(initial=0.0)))
        answer = replace(program, g=program.g + step * force, b=program.b + step * shift).solve()
        slope = float(seed @ (answer.u - self.u)) / step
        size = float(np.linalg.norm(seed)) * max(float(np.linalg.norm(answer.u - self.u)) / step, 1.0)
        return answer.status == SOLVED and bool(abs(slope - gradient @ r / length) <= WITHIN * size)

    @property
    def _cancels(self) -> bool:
        """Whether multipliers are so much larger than the forces that these are lost in them."""
        forces = [self.program.force_at(self.u, z) for z in (self.z, np.zeros_like(self.z))]
        return bool(cancelled(*forces) > 0)

    @property
    def _tame(self) -> Sensitivity | None:
        """The same with curvatures that stand for infinite ones only large, beside which cones' multipliers are told; None without any."""
        program = self.program
        if program.h.max(initial=0.0) < STEEP:
            return None
        values, vectors = np.linalg.eigh(program.h)
        steep = values >= STEEP
        large = LARGE * max(1.0, float(values[~steep].max(initial=0.0)))
        ways = vectors[:, steep]
        cut = (
            ways * (1.0 - large / values[steep])
        ) @ ways.T  # what of a force is taken away, so that u follows as before
        h = program.h - (ways * (values[steep] - large)) @ ways.T

        def push(z: Rows, r: Float[np.ndarray, " n"]) -> tuple[Vector, Rows]:
            force, moved = self.push(z, r)
            return force - cut @ force, moved

        less = replace(program, h=h, g=program.a.T @ self.z, b=program.a @ self.u + program.b)  # told by u - u(x)
        nothing = np.zeros_like(self.u)
        return Sensitivity(less, nothing, self.z, push, lambda z, v, w: self.pull(z, v - cut @ v, w), self.size)

    def _in_cones(self, seed: Vector) -> Float[np.ndarray, " n"]:
        """The gradient by the cones' projections, or where these have no derivative by the critical cone."""
        loosest, *closer = NOTHING
        around = CriticalCone.of(self.program, self.u, self.z, loosest)
        critical = [CriticalCone.of(self.program, self.u, self.z, nothing) for nothing in closer if around.vague]
        looks = [*critical[::-1], around]  # the closest first
        if not looks[0].vague:
            gradient = self._smooth(seed)
            doubtful = around.vague or not self._determined(around)
            if not (doubtful and np.isfinite(gradient).all()) or any(
                self._is_slope(gradient, seed, r) for r in self._ways
            ):
                return gradient
        slopes = (self._beside(look, seed) for look in looks if look.vague)
        return next((one for one in slopes if np.isfinite(one).all()), np.full(self.size, np.nan))

    def _determined(self, critical: CriticalCone) -> bool:
        """Whether what holds is independent, so that there are no other multipliers."""
        rows = critical.select @ self.program.a
        sizes = np.linalg.norm(rows, axis=1)
        return not len(rows) or bool(
            (sizes > 0).all() and np.linalg.matrix_rank(rows / sizes[:, None], RANK) == len(rows)
        )

    def _beside(self, critical: CriticalCone, seed: Vector) -> Float[np.ndarray, " n"]:
        """The gradient where a cone holds without a multiplier: the derivative, along a generic r, of what solves the program over the critical cone."""
        program, bend, select = self.program, critical.bend, critical.select
        h = program.h + program.a.T @ bend @ program.a

        def push(_: Rows, r: Float[np.ndarray, " n"]) -> tuple[Vector, Rows]:
            force, moved = self.push(self.z, r)
            return force + program.a.T @ (bend @ moved), select @ moved

        def pull(_: Rows, v: Vector, w: Rows) -> Float[np.ndarray, " n"]:
            return self.pull(self.z, v, bend @ (program.a @ v) + select.T @ w)

        for r in self._ways:
            force, moved = push(self.z, r)
            along = ConeProgram(h, force, select @ program.a, moved, critical.cones)
            answer = along.solve()
            if answer.status != SOLVED:
                continue
            if self.depth >= DEEPEST:
                break
            gradient = Sensitivity(along, answer.u, answer.z, push, pull, self.size, self.depth + 1).gradient(seed)
            if np.isfinite(gradient).all() and self._is_slope(gradient, seed, r):
                return gradient
        return np.full(self.size, np.nan)

    def _is_slope(self, gradient: Float[np.ndarray, " n"], seed: Vector, r: Float[np.ndarray, " n"]) -> bool:
        """Whether seed'u moves that way along r, by the program a little further: solvers do not come near what is degenerate from everywhere."""
        force, moved = self.push(self.z, r)
        for share in FURTHER:
            step = share * max(1.0, float(np.abs(self.u).max(initial=0.0)))
            answer = replace(self.program, g=self.program.g + step * force, b=self.program.b + step * moved).solve()
            if answer.status == SOLVED:
                way = (answer.u - self.u) / step
                size = float(np.linalg.norm(seed)) * max(float(np.linalg.norm(way[seed != 0])), 1.0)
                if abs(seed @ way - gradient @ r) <= ROUGHLY * size:
                    return True
        return False

    def _smooth(self, seed: Vector) -> Float[np.ndarray, " n"]:
        """The gradient by z = P(z - t e), P the projection on K*, which is differentiable where u is."""
        program, width = self.program, len(self.u)
        held = program.a @ self.u + program.b
        e = self._off_apexes(held)
        slope = dual_slope(program.cones, self.z - e)
        system = np.block([[program.h, -program.a.T], [slope @ program.a, np.eye(len(e)) - slope]])
        wanted, scale = np.concatenate([seed, np.zeros(len(e))]), float(np.abs(system).max(initial=0.0))
        solution, loose, missed = solution_of(system.T, wanted, scale, RANK_IN_CONES)
        if not missed <= CONSISTENT * (float(np.linalg.norm(seed)) or 1.0):
            return np.full(self.size, np.nan)
        gradient, *jumps = (
            -self.pull(self.z, v[:width], slope.T @ v[width:]) for v in np.column_stack([solution, loose]).T
        )
        if not all(np.linalg.norm(jump) <= CONSISTENT * (1.0 + np.linalg.norm(gradient)) for jump in jumps):
            return np.full(self.size, np.nan)
        if (e != held).any() and not self._is_slope_within(gradient, seed):
            return np.full(self.size, np.nan)
        return gradient
