"""Quadratic programs over cones of one form, solved together: where one is solved, Newton's method goes on to its neighbours.

The steps are those of :class:`ConeProgram`, stacked: over rows a primal-dual active-set method (Hintermüller, Ito and Kunisch, 2003),
which needs a few steps from one set of rows to the next. An answer is taken where it satisfies the conditions to rounding and is the
only one beyond doubt; every other program is solved by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import qr

from hierfl.compiler.host.cone_program import EXACT, TINY, ConeProgram
from hierfl.compiler.host.cone_solution import ONE, SOLVED, ConeSolution, cancelled
from hierfl.compiler.host.cones import blocks, second_order_projections, second_order_slopes
from hierfl.compiler.host.daqp_on_each import daqp_on_each
from hierfl.compiler.host.reached_limits import ReachedLimits
from hierfl.compiler.host.stacks import Stack, patterns, solved, times, turned
from hierfl.compiler.host.standard_form import SECOND_ORDER, SEMIDEFINITE, Cone

STEPS = 8
FEW = 16  # programs over rows, from which on they are worth solving together: DAQP takes a fraction of a millisecond for each
PATIENCE, WORTH = 3, 0.02  # answers that lead to less than a share of the others, before each is looked for by itself
LARGEST = 60  # unknowns of a linear system, up to which a few of them are solved sooner than a program over rows
STRICT = 1e-9  # relative: how far a multiplier or a slack is from zero, where the rows that hold are beyond doubt
CONDITION = 1e8  # of a linear system whose answer is the only one beyond doubt
LARGE = 1e6  # of an adjoint, relative to its seed, from which rows may depend on each other
INDEPENDENT = 1e-10  # of a row of length 1, what other rows leave of it
REGULAR = 1e-10  # of the least eigenvalue of H in y, scaled, from which it is positive definite
UNITS = 1e-6, 1e6  # between which a cone's slack is weighed against its multiplier


@dataclass(frozen=True, eq=False)
class ProgramFamily:
    """Programs as stacks: H (k, width, width), g (k, width), A (k, rows, width), b (k, rows); the first ``size`` entries of u are y."""

    h: Float[np.ndarray, "k width width"]
    g: Float[np.ndarray, "k width"]
    a: Float[np.ndarray, "k rows width"]
    b: Float[np.ndarray, "k rows"]
    cones: Sequence[Cone]
    bounds: int
    size: int

    @classmethod
    def of(cls, stacks: Iterable[np.ndarray], cones: Sequence[Cone], bounds: int, size: int) -> ProgramFamily:
        """The programs of (H, g, A, b)."""
        h, g, a, b = stacks
        return cls(h, g, a, b, cones, bounds, size)

    def __getitem__(self, k: int) -> ConeProgram:
        return ConeProgram(self.h[k], self.g[k], self.a[k], self.b[k], self.cones, self.bounds)

    def among(self, chosen: Int[np.ndarray, " chosen"]) -> ProgramFamily:
        """Some of the programs."""
        parts = (array[chosen] for array in (self.h, self.g, self.a, self.b))
        return ProgramFamily.of(parts, self.cones, self.bounds, self.size)

    def solve(self) -> list[ConeSolution]:
        """All solutions, in order; each with the status that its program has by itself."""
        limits = self[0].limits
        if limits is not None and self._all_have(limits):
            arrays = limits.inner(self.h, self.g, self.a, self.b)
            inner = ProgramFamily.of(arrays, limits.inner_cones(self.cones), 0, self.size)
            return [limits.outer(self.a[k], self.b[k], answer) for k, answer in enumerate(inner.solve())]
        return self._one_after_another(self._together and limits is None)

    def _all_have(self, limits: ReachedLimits) -> bool:
        """Whether the first program's limits are those of all."""
        columns, rows = list(limits.columns), list(limits.rows)
        free = not self.h[:, columns].any() and not self.g[:, columns].any()
        below = (self.a[:, rows, columns] < 0).all()
        return free and bool(below and ((self.a != 0) == (self.a[0] != 0)).all())

    def _one_after_another(self, together: bool) -> list[ConeSolution]:
        answers: dict[int, ConeSolution] = {}
        by_rows = together and self[0].polyhedral and self[0].symmetric
        fewest, each = FEW if self[0].polyhedral else 1, by_rows and len(self.h) < FEW
        left, last, in_vain = np.arange(len(self.h)), None, 0
        while len(left):
            if each:
                found = self.among(left)._each_by_rows()
                answers |= {int(left[k]): answer for k, answer in found.items()}
                left, each = np.delete(left, list(found)), False
                continue
            k, left = int(left[0]), left[1:]
            answers[k] = self[k].solve(last)
            last = answers[k] if answers[k].status == SOLVED else None
            if together and last is not None and len(left) >= fewest and in_vain < PATIENCE:
                u, z = (np.tile(part, (len(left), 1)) for part in (last.u, last.z))
                taken, u, z, error = self.among(left)._from(u, z)
                for place in np.flatnonzero(taken):
                    answers[int(left[place])] = ConeSolution(u[place], z[place], float(error[place]), SOLVED, ONE)
                in_vain = 0 if taken.sum() > WORTH * len(left) else in_vain + 1
                left, each = left[~taken], by_rows and in_vain == PATIENCE
        return [answers[k] for k in range(len(self.h))]

    def _each_by_rows(self) -> dict[int, ConeSolution]:
        """The answers, by number, of few programs over rows: DAQP for each, and what follows for all together."""
        if not self.a.any(axis=2).all():
            return {}
        found, u, z = daqp_on_each(self.h, self.g, self.a, self.b, self._equal)
        if not found.any():
            return {}
        at = np.flatnonzero(found)
        family, u, z = self.among(at), u[at], z[at]
        error = family._errors(u, z)
        if (rough := np.flatnonzero(error > EXACT)).size:
            some = family.among(rough)
            held = (some._equal & ~some._repeated) | (~some._equal & (z[rough] > 0))
            u[rough], z[rough] = some._stepped_each(held, u[rough], z[rough])
            error = family._errors(u, z)
        taken = (error <= EXACT) & family.is_one(u, z)
        return {int(at[k]): ConeSolution(u[k], z[k], float(error[k]), SOLVED, ONE) for k in np.flatnonzero(taken)}

    @property
    def _together(self) -> bool:
        """Whether the steps are stacked: cones whose projections are, units that all share, no large systems where DAQP is sooner."""
        large = self[0].polyhedral and sum(self.a.shape[1:]) > LARGEST and not self._shared
        return not (large or any(cone.kind == SEMIDEFINITE for cone in self.cones) or (self[0].units != 1.0).any())

    # --- Newton's method, stacked --------------------------------------------------------------------------------------

    def _from(self, u: Stack, z: Stack) -> tuple[Bool[np.ndarray, " k"], Stack, Stack, Stack]:
        """(which answers are the only ones beyond doubt, u, z, their errors), from these."""
        taken, u, z, error = self._reached(u, z)
        taken[taken] = self.among(np.flatnonzero(taken)).is_one(u[taken], z[taken])
        return taken, u, z, error

    def solve_from(self, u: Stack, z: Stack) -> tuple[Bool[np.ndarray, " k"], Stack, Stack]:
        """(which are solved, u, z) from answers of programs like these; there may be other answers."""
        solved, u, z = np.zeros(len(u), bool), u.copy(), z.copy()
        if self._together:
            solved, u, z, _ = self._reached(u, z)
        for k in map(int, np.flatnonzero(~solved)):
            answer = self[k].solve()
            solved[k], u[k], z[k] = answer.status == SOLVED, answer.u, answer.z
        return solved, u, z

    def _reached(self, u: Stack, z: Stack) -> tuple[Bool[np.ndarray, " k"], Stack, Stack, Stack]:
        """(where Newton's method leads to an answer, u, z, their errors), from these."""
        u, z = u.copy(), z.copy()
        best_u, best_z, best = u.copy(), z.copy(), self._errors(u, z)
        if self._by_rows_alone:  # programs whose answers hold the same rows are solved by one system
            held = (self._equal & ~self._repeated) | (~self._equal & (z > 0))
            alike_u, alike_z = self._stepped_on(held, u.copy(), z)
            error = self._errors(alike_u, alike_z)
            alike = np.flatnonzero(error <= EXACT)
            best_u[alike], best_z[alike], best[alike] = alike_u[alike], alike_z[alike], error[alike]
        linear = self._by_rows_alone and not self.h.any()  # from vertex to vertex these steps do not lead
        going = np.flatnonzero((best > EXACT) & (not linear))
        for _ in range(STEPS):
            if not len(going):
                break
            family = self.among(going)
            u[going], z[going] = family._stepped(u[going], z[going])
            error = family._errors(u[going], z[going])
            better = going[error < best[going]]
            best[going] = np.minimum(error, best[going])
            best_u[better], best_z[better] = u[better], z[better]
            going = going[(error > EXACT) & np.isfinite(error)]
        return best <= EXACT, best_u, best_z, best

    def _stepped(self, u: Stack, z: Stack) -> tuple[Stack, Stack]:
        """One step on H u + g - A' z = 0, z - P(z - t (A u + b)) = 0, with t in z's units."""
        unit = self._units(u, z)
        e = unit * (times(self.a, u) + self.b)
        if self._by_rows_alone:
            held = (self._equal & ~self._repeated) | (~self._equal & (z - e > 0))
            return self._stepped_on(held, u, z)
        goal, slope = self._projected(z - e), self._slope(z - e)
        goal[:, self._repeated] = z[:, self._repeated]
        count, width, rows = len(self.g), self.g.shape[1], self.b.shape[1]
        system = np.zeros((count, width + rows, width + rows))
        system[:, :width, :width], system[:, :width, width:] = self.h, -turned(self.a)
        system[:, width:, :width], system[:, width:, width:] = slope @ (unit[..., None] * self.a), np.eye(rows) - slope
        right = -np.concatenate([times(self.h, u) + self.g - times(turned(self.a), z), z - goal], axis=1)
        finite = np.isfinite(system).all(axis=(1, 2)) & np.isfinite(right).all(axis=1)
        system = np.where(finite[:, None, None], system, np.eye(width + rows))
        right = np.where(finite[:, None], right, 0.0)
        step = solved(system, right)  # a least-norm step, by all singular values, leads nowhere sooner than a solver
        return u + step[:, :width], z + step[:, width:]

    def _stepped_on(self, held: Bool[np.ndarray, "k rows"], u: Stack, z: Stack) -> tuple[Stack, Stack]:
        """The same step where only g and b differ and there are rows alone: one linear system for all that hold the same rows."""
        z = np.where(held | self._repeated, z, 0.0)
        pulls = times(self.h, u) + self.g - times(turned(self.a), z)
        left = (times(self.a, u) + self.b) / self._sizes
        width = u.shape[1]
        for some, rows, system in self._systems_of(held):
            step = solved(system[None], -np.concatenate([pulls[some], left[np.ix_(some, rows)]], axis=1).T[None])[0].T
            u[some] += step[:, :width]
            z[np.ix_(some, rows)] += step[:, width:] / self._sizes[0, rows]
        return u, z

    def _systems_of(self, held: Bool[np.ndarray, "k rows"]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(the programs that hold the same rows, the rows, their linear system), where H and A are shared."""
        first, which = patterns(held)
        for at, k in enumerate(first):
            rows = np.flatnonzero(held[k])
            normals = self.a[0, rows] / self._sizes[0, rows, None]
            zero = np.zeros((len(rows), len(rows)))
            yield np.flatnonzero(which == at), rows, np.block([[self.h[0], -normals.T], [normals, zero]])

    def _stepped_each(self, held: Bool[np.ndarray, "k rows"], u: Stack, z: Stack) -> tuple[Stack, Stack]:
        """The same step, of each program by itself: to the last bit the same in any company."""
        z = np.where(held | self._repeated, z, 0.0)
        pulls = times(self.h, u) + self.g - times(turned(self.a), z)
        left = np.where(held, (times(self.a, u) + self.b) / self._sizes, 0.0)
        step = solved(self._systems(held), -np.concatenate([pulls, left], axis=1))
        return u + step[:, : u.shape[1]], z + np.where(held, step[:, u.shape[1] :], 0.0) / self._sizes

    @cached_property
    def _shared(self) -> bool:
        """Whether H and A are the same in all programs."""
        return bool((self.h == self.h[:1]).all() and (self.a == self.a[:1]).all())

    @property
    def _by_rows_alone(self) -> bool:
        """Whether programs that hold the same rows have one linear system."""
        return self._shared and self[0].polyhedral

    def _units(self, u: Stack, z: Stack) -> Stack:
        """What a row's slack is multiplied by to be weighed against its multiplier."""
        unit = self._force(u, z)[:, None] / (self._sizes * self._row_scale(u))
        e = times(self.a, u) + self.b
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                slack, pulls = (np.linalg.norm(part[:, place], axis=1) for part in (e, z))
                own = np.clip(pulls / np.maximum(slack, 1e-300), *UNITS)
                unit[:, place] = np.where(pulls > 0, own, unit[:, place].min(axis=1))[:, None]
        return unit

    def _projected(self, v: Stack) -> Stack:
        """The nearest points of K*."""
        goal = np.where(self._equal, v, np.maximum(v, 0.0))
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                goal[:, place] = second_order_projections(v[:, place])
        return goal

    def _slope(self, v: Stack) -> Stack:
        """The derivative of that; of several one."""
        slope = np.eye(v.shape[1]) * ((self._equal & ~self._repeated) | (~self._equal & (v > 0)))[:, None, :]
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                slope[:, place, place] = second_order_slopes(v[:, place])
        return slope

    # --- the conditions, as ConeProgram.error has them -----------------------------------------------------------------

    def _errors(self, u: Stack, z: Stack) -> Float[np.ndarray, " k"]:
        """The largest relative error of each program's three conditions."""
        force = self._force(u, z)
        balance = times(self.h, u) + self.g - times(turned(self.a), z)
        e = (times(self.a, u) + self.b) / self._whole(self._row_scale(u))
        dual = z * self._whole(self._sizes) / force[:, None]
        inside = np.linalg.norm(self._projected(-e), axis=1)
        fit = np.abs(dual - self._projected(dual - e)).max(axis=1, initial=0.0)
        worst = np.maximum(np.abs(balance).max(axis=1) / force, np.maximum(inside, fit))
        worst = np.maximum(worst, cancelled(force, self._force(u, np.zeros_like(z))))
        return np.where(np.isfinite(worst), worst, np.inf)

    def _force(self, u: Stack, z: Stack) -> Float[np.ndarray, " k"]:
        size = times(np.abs(self.h), np.abs(u)) + np.abs(self.g) + times(np.abs(turned(self.a)), np.abs(z))
        force = np.maximum(size.max(axis=1), TINY * np.abs(self.h).max(axis=(1, 2)))
        return np.where(force > 0, force, 1.0)

    def _row_scale(self, u: Stack) -> Stack:
        return times(np.abs(self.a), np.abs(u)) + np.abs(self.b) + self._sizes

    def _whole(self, rows: Stack) -> Stack:
        """The size of each row; one size for all rows of a cone that is not a product of rows."""
        out = np.array(rows)
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                out[:, place] = rows[:, place].max(axis=1, keepdims=True)
        return out

    @cached_property
    def _sizes(self) -> Stack:
        sizes = np.linalg.norm(self.a, axis=2)
        return np.where(sizes > 0, sizes, 1.0)

    @cached_property
    def _equal(self) -> Bool[np.ndarray, " rows"]:
        return np.arange(self.b.shape[1]) < self[0].equations

    # --- derivatives -----------------------------------------------------------------------------------------------------

    def adjoints(self, u: Stack, z: Stack, seeds: Stack) -> tuple[Bool[np.ndarray, " k"], Stack, Stack]:
        """(where the derivative is beyond doubt, v, w) at answers: seed'u moves by -(v, w) times what moves the conditions.

        By the conditions' own derivative, where every row and cone that holds has a multiplier and they are independent.
        """
        unit = self._units(u, z)
        e = unit * (times(self.a, u) + self.b)
        if self._by_rows_alone:
            held = (self._equal & ~self._repeated) | (~self._equal & (z - e > 0))
            v, w, missed = self._adjoints_on(held, seeds)
            return self._strict(u, z) & self._moderate(v, w, missed, seeds), v, w
        slope, strict = self._slope(z - e), self._strict(u, z)
        limits = self[0].limits
        reached = list(limits.rows) if limits is not None else []
        slope[:, reached, reached] = 1.0
        count, width, rows = len(self.g), self.g.shape[1], self.b.shape[1]
        system = np.zeros((count, width + rows, width + rows))
        system[:, :width, :width] = turned(self.h)
        system[:, :width, width:] = turned(slope @ (unit[..., None] * self.a))
        system[:, width:, :width], system[:, width:, width:] = -self.a, np.eye(rows) - turned(slope)
        right = np.concatenate([seeds, np.zeros((count, rows))], axis=1)
        answer = solved(system, right)
        v, w = answer[:, :width], unit * times(turned(slope), answer[:, width:])
        missed = np.linalg.norm(times(system, answer) - right, axis=1)
        return strict & self._moderate(v, w, missed, seeds), v, w

    def _adjoints_on(self, held: Bool[np.ndarray, "k rows"], seeds: Stack) -> tuple[Stack, Stack, Stack]:
        """(v, w, what is missed) where only g and b differ and there are rows alone: one linear system for all that hold the same rows."""
        width = self.g.shape[1]
        v, w, missed = np.zeros_like(seeds), np.zeros_like(self.b), np.zeros(len(seeds))
        for some, rows, system in self._systems_of(held):
            right = np.concatenate([seeds[some], np.zeros((len(some), len(rows)))], axis=1)
            answer = solved(system.T[None], right.T[None])[0].T
            v[some], w[np.ix_(some, rows)] = answer[:, :width], answer[:, width:] / self._sizes[0, rows]
            missed[some] = np.linalg.norm(answer @ system - right, axis=1)
        return v, w, missed

    def _moderate(self, v: Stack, w: Stack, missed: np.ndarray, seeds: Stack) -> Bool[np.ndarray, " k"]:
        """Where adjoints are of a size beside which nothing depends on rounding, and solve their equations."""
        size = np.linalg.norm(seeds, axis=1)
        stiff = np.abs(self.h).max(axis=(1, 2)) * np.abs(v).max(axis=1)
        pulled = np.abs(self._sizes * w).max(axis=1, initial=0.0)
        with np.errstate(invalid="ignore"):
            return np.asarray((np.maximum(stiff, pulled) <= LARGE * size) & (missed <= EXACT * LARGE * size))

    def _strict(self, u: Stack, z: Stack) -> Bool[np.ndarray, " k"]:
        """Where every row is beyond doubt slack or held by a multiplier, and so is every cone."""
        slack = (times(self.a, u) + self.b) / self._row_scale(u)
        multiplier = z * self._sizes / self._force(u, z)[:, None]
        strict = self._equal | ((multiplier > STRICT) != (slack > STRICT))
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                v = (z - self._units(u, z) * (times(self.a, u) + self.b))[:, place]
                size, whole = np.linalg.norm(v[:, 1:], axis=1), np.linalg.norm(v, axis=1)
                strict[:, place] = (np.minimum(np.abs(v[:, 0] - size), np.abs(v[:, 0] + size)) > STRICT * whole)[
                    :, None
                ]
        limits = self[0].limits
        strict[:, [] if limits is None else list(limits.rows)] = True
        return np.asarray(strict.all(axis=1))

    @cached_property
    def _repeated(self) -> Bool[np.ndarray, " rows"]:
        """The equations that follow from the others, as one of a network's does: they hold by themselves."""
        rows = np.flatnonzero(self._equal)
        out = np.zeros(self.b.shape[1], bool)
        if len(rows):
            matrix = self.a[0, rows] / self._sizes[0, rows, None]
            _, triangle, order = qr(matrix.T, mode="economic", pivoting=True)
            rank = int(np.sum(np.abs(np.diagonal(triangle)) > INDEPENDENT))
            out[rows[order[rank:]]] = True
        return out

    def is_one(self, u: Stack, z: Stack) -> Bool[np.ndarray, " k"]:
        """Where y is the only answer: H is positive definite in y, or the rows that hold are beyond doubt and determine u."""
        one = self._regular
        if one.all() or not self[0].polyhedral:
            return one
        slack = (times(self.a, u) + self.b) / self._row_scale(u)
        held = self._equal | (z * self._sizes / self._force(u, z)[:, None] > STRICT)
        strict = (held | (slack > STRICT)).all(axis=1)
        first, which = patterns(held) if self._shared else (np.arange(len(held)),) * 2
        return one | (strict & self.among(first)._determined(held[first])[which])

    def _determined(self, held: Bool[np.ndarray, "k rows"]) -> Bool[np.ndarray, " k"]:
        """Where the rows that hold determine u and their multipliers."""
        return np.asarray(np.linalg.cond(self._systems(held)) < CONDITION)

    def _systems(self, held: Bool[np.ndarray, "k rows"]) -> Stack:
        """The linear systems of u and of the multipliers of the rows that hold; those of the others are zero."""
        rows = np.where(held[..., None], self.a / self._sizes[..., None], 0.0)
        off = np.eye(held.shape[1]) * ~held[:, None, :]
        upper, lower = np.concatenate([self.h, -turned(rows)], axis=2), np.concatenate([rows, off], axis=2)
        return np.concatenate([upper, lower], axis=1)

    @cached_property
    def _regular(self) -> Bool[np.ndarray, " k"]:
        if self._shared and len(self.h) > 1:
            return np.repeat(self.among(np.zeros(1, int))._regular, len(self.h))
        h = self.h[:, : self.size, : self.size]
        stiff = np.sqrt(np.maximum(np.diagonal(h, axis1=1, axis2=2), 0.0))
        curved = (stiff > 0).all(axis=1)
        stiff = np.where(stiff > 0, stiff, 1.0)
        scaled = h / stiff[:, None, :] / stiff[:, :, None]
        return np.asarray(curved & (np.linalg.eigvalsh(0.5 * (scaled + turned(scaled)))[:, 0] > REGULAR))
