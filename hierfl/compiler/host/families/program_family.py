"""Quadratic programs over cones of one form, solved together: where one is solved, Newton's method goes on to its neighbours.

The steps are those of :class:`ConeProgram`, stacked: over rows a primal-dual active-set method (Hintermüller, Ito and Kunisch, 2003),
which needs a few steps from one set of rows to the next. An answer is taken where it satisfies the conditions to rounding and is the
only one beyond doubt; every other program is solved by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from hierfl.compiler.host.cone_program import EXACT, ConeProgram
from hierfl.compiler.host.cone_solution import ONE, SOLVED, ConeSolution
from hierfl.compiler.host.families.conditions import Conditions
from hierfl.compiler.host.families.daqp_on_each import daqp_on_each
from hierfl.compiler.host.families.held_systems import HeldSystems
from hierfl.compiler.host.families.program_shape import ProgramShape
from hierfl.compiler.host.families.stacks import Stack, solved, times, turned
from hierfl.compiler.host.reached_limits import ReachedLimits
from hierfl.compiler.host.rows.greatest_pieces import GreatestPieces
from hierfl.compiler.host.rows.twins import Twins
from hierfl.compiler.host.standard_form import SEMIDEFINITE, Cone

STEPS = 8
FEW = 16  # programs over rows, from which on they are worth solving together: DAQP takes a fraction of a millisecond for each
PATIENCE, WORTH = 3, 0.02  # answers that lead to less than a share of the others, before each is looked for by itself
LARGEST = 60  # unknowns of a linear system, up to which a few of them are solved sooner than a program over rows
SURE = 1e-5  # relative: a multiplier or slack, from which all ways to an answer end on the same rows
LARGE = 1e6  # of an adjoint, relative to its seed, from which rows may depend on each other


@dataclass(frozen=True, eq=False)
class ProgramFamily:
    """Programs of one shape, with g (k, width) and b (k, rows); ``systems`` are those of the shape, kept with it."""

    systems: HeldSystems
    g: Float[np.ndarray, "k width"]
    b: Float[np.ndarray, "k rows"]

    @classmethod
    def of(
        cls,
        stacks: Iterable[np.ndarray],
        cones: Sequence[Cone],
        bounds: int,
        size: int,
        known: HeldSystems | None = None,
    ) -> ProgramFamily:
        """The programs of (H, g, A, b), each a stack; the ``known`` systems are theirs where H and A are those of their shape.

        H and A may have one entry that is all programs'.
        """
        h, g, a, b = stacks
        if known is not None and known.shape.is_of(h, a):
            return cls(known, g, b)
        return cls(HeldSystems(ProgramShape.of(h, a, cones, bounds, size)), g, b)

    @property
    def shape(self) -> ProgramShape:
        """H, A and the cones."""
        return self.systems.shape

    def __len__(self) -> int:
        return len(self.g)

    def __getitem__(self, k: int) -> ConeProgram:
        shape = self.shape
        h, a = (shape.first.h, shape.first.a) if shape.shared else (shape.h[k], shape.a[k])
        return ConeProgram(h, self.g[k], a, self.b[k], shape.cones, shape.bounds)

    def among(self, chosen: Int[np.ndarray, " chosen"]) -> ProgramFamily:
        """Some of the programs."""
        shape = self.shape.among(chosen)
        systems = self.systems if shape is self.shape else HeldSystems(shape)
        return ProgramFamily(systems, self.g[chosen], self.b[chosen])

    def solve(self) -> list[ConeSolution]:
        """All solutions, in order; each with the status that its program has by itself."""
        limits = None if self.shape.polyhedral else self[0].limits
        if limits is not None and self._all_have(limits):
            shape, systems = self.shape, self.systems
            arrays = limits.inner(shape.h, self.g, shape.a, self.b)
            inner = ProgramFamily.of(arrays, limits.inner_cones(shape.cones), 0, shape.size, systems.inner)
            systems.inner = inner.systems
            return [limits.outer(self[k].a, self.b[k], answer) for k, answer in enumerate(inner.solve())]
        if (answers := self._solved_by_one_of_each()) is not None:
            return answers
        together, shape = self._together and limits is None, self.shape
        by_rows = together and shape.polyhedral and shape.symmetric and not shape.has_zero_rows
        return self._few_over_rows() if by_rows and len(self) < FEW else self._one_after_another(together, by_rows)

    def _solved_by_one_of_each(self) -> list[ConeSolution] | None:
        """The answers with one of each of the entries of u that are alike in all programs; None where all differ."""
        pieces = self._pieces if self.shape.shared else None
        if pieces is None or not (self.g[:, pieces.entries] > 0).all():
            return None
        twins = Twins.of(self.g[0], self.shape.a[0], self.b.T, pieces.entries, pieces.owner)
        if twins is None:
            return None
        each = [twins.at(g) for g in self.g]
        fewer, size = pieces.without(twins), int(np.sum(twins.entries < self.shape.size))
        costs = np.stack([one.costs[one.entries] for one in each])
        stacks = (fewer.h[None], costs, fewer.a[None], self.b[:, twins.rows])
        inner = ProgramFamily.of(stacks, fewer.cones, 0, size, self.systems.inner)
        self.systems.inner = inner.systems
        answers = inner.solve()
        for k, answer in enumerate(answers):
            if answer.status == SOLVED:
                u, z = each[k].of_all(answer.u, answer.z)
                answers[k] = replace(answer, u=u, z=z)
            else:
                answers[k] = self[k].solve()
        return answers

    def _all_have(self, limits: ReachedLimits) -> bool:
        """Whether the first program's limits are those of all."""
        columns, rows = list(limits.columns), list(limits.rows)
        h, a = self.shape.h, self.shape.a
        free = not h[:, columns].any() and not self.g[:, columns].any()
        below = (a[:, rows, columns] < 0).all()
        return free and bool(below and ((a != 0) == (a[0] != 0)).all())

    def _one_after_another(self, together: bool, by_rows: bool) -> list[ConeSolution]:
        """Where one is solved, Newton's method goes on to the others; where it leads to few, each is looked for by itself."""
        answers: dict[int, ConeSolution] = {}
        fewest, left, last, in_vain = FEW if self.shape.polyhedral else 1, np.arange(len(self)), None, 0
        while len(left):
            k, left = int(left[0]), left[1:]
            answers[k] = self[k].solve(last)
            last = answers[k] if answers[k].status == SOLVED else None
            if not together or last is None or len(left) < fewest or in_vain >= PATIENCE:
                continue
            u, z = (np.tile(part, (len(left), 1)) for part in (last.u, last.z))
            taken, u, z, error = self.among(left)._from(u, z)
            for place in np.flatnonzero(taken):
                answers[int(left[place])] = ConeSolution(u[place], z[place], float(error[place]), SOLVED, ONE)
            in_vain, left = 0 if taken.sum() > WORTH * len(taken) else in_vain + 1, left[~taken]
            if in_vain == PATIENCE and by_rows:
                answers |= self._each_by_rows(left)
                left = np.array([k for k in left if k not in answers], int)
        return [answers[k] for k in range(len(self))]

    def _few_over_rows(self) -> list[ConeSolution]:
        """The answers of a few programs: on the rows that held for as many before, else by DAQP for each."""
        answers: dict[int, ConeSolution] = {}
        latest, shared = self.systems.latest, self.shape.shared
        if shared and latest is not None and latest.shape == self.b.shape:
            answers = self._on_rows(np.arange(len(self)), latest, strict=True)
        if len(answers) < len(self):
            left = np.array([k for k in range(len(self)) if k not in answers], int)
            answers |= self._each_by_rows(left)
            for k in left:
                if int(k) not in answers:
                    alone = answers[int(k)] = self[k].solve()
                    if shared:
                        answers |= self._on_rows(k[None], self.shape.held_at(alone.z[None]), strict=True)
        found = [answers[k] for k in range(len(self))]
        if shared:
            self.systems.latest = self.shape.held_at(np.stack([one.z for one in found]))
        return found

    def _on_rows(
        self, numbers: Int[np.ndarray, " some"], held: Bool[np.ndarray, "some rows"], strict: bool
    ) -> dict[int, ConeSolution]:
        """The answers, by number, of those whose rows these are: ``strict`` where no other rows would do as well."""
        if not len(numbers):
            return {}
        some = self.among(numbers)
        return some._taken(numbers, *self.systems.on(held, some.g, some.b), strict=strict)

    def _each_by_rows(self, numbers: Int[np.ndarray, " some"]) -> dict[int, ConeSolution]:
        """The answers, by number, of some programs over rows: DAQP for each, and what follows for all together."""
        some = self.among(numbers)
        found, u, z = daqp_on_each(some.shape, some.g, some.b)
        answers: dict[int, ConeSolution] = {}
        if self.shape.shared:
            answers = self._on_rows(numbers[found], self.shape.held_at(z[found]), strict=False)
        left = np.array([k for k in np.flatnonzero(found) if int(numbers[k]) not in answers], int)
        if not len(left):
            return answers
        some, u, z = some.among(left), u[left], z[left]
        if (rough := np.flatnonzero(some._at(u, z).errors > EXACT)).size:
            held = self.shape.held_at(z[rough])
            u[rough], z[rough] = some.among(rough)._stepped_each(held, u[rough], z[rough])
        return answers | some._taken(numbers[left], u, z)

    def _taken(
        self, numbers: Int[np.ndarray, " k"], u: Stack, z: Stack, strict: bool = False
    ) -> dict[int, ConeSolution]:
        """The answers, by number, that are exact and the only ones; ``strict`` leaves out where a row may hold or not."""
        there = self._at(u, z)
        taken = (there.errors <= EXACT) & self._is_one(there)
        if strict:
            taken &= there.strict(SURE).all(axis=1)
        errors = there.errors.tolist()
        return {int(numbers[k]): ConeSolution(u[k], z[k], errors[k], SOLVED, ONE) for k in np.flatnonzero(taken)}

    @property
    def _together(self) -> bool:
        """Whether the steps are stacked: cones whose projections are, units that all share, no large systems where one by one is sooner."""
        shape = self.shape
        large = shape.polyhedral and sum(shape.a.shape[1:]) > LARGEST and not shape.shared
        large = large or self._has_greatest_pieces
        return not (large or shape.has_units or any(cone.kind == SEMIDEFINITE for cone in shape.cones))

    @property
    def _has_greatest_pieces(self) -> bool:
        """Whether most entries of u are bounds of maxima over rows, without which a program by itself is small."""
        return self._pieces is not None

    @cached_property
    def _pieces(self) -> GreatestPieces | None:
        """The bounds of maxima over rows of the first program."""
        return GreatestPieces.of(self[0]) if self.shape.polyhedral and self.shape.symmetric else None

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
        best_u, best_z, best = u.copy(), z.copy(), self._at(u, z).errors
        if self.shape.by_rows_alone:  # programs whose answers hold the same rows are solved by one system
            alike_u, alike_z = self.systems.on(self.shape.held_at(z), self.g, self.b)
            error = self._at(alike_u, alike_z).errors
            alike = np.flatnonzero(error <= EXACT)
            best_u[alike], best_z[alike], best[alike] = alike_u[alike], alike_z[alike], error[alike]
        linear = self.shape.by_rows_alone and self.shape.linear  # from vertex to vertex these steps do not lead
        going = np.flatnonzero((best > EXACT) & (not linear))
        for _ in range(STEPS):
            if not len(going):
                break
            family = self.among(going)
            u[going], z[going] = family._stepped(u[going], z[going])
            error = family._at(u[going], z[going]).errors
            better = going[error < best[going]]
            best[going] = np.minimum(error, best[going])
            best_u[better], best_z[better] = u[better], z[better]
            going = going[(error > EXACT) & np.isfinite(error)]
        return best <= EXACT, best_u, best_z, best

    def _stepped(self, u: Stack, z: Stack) -> tuple[Stack, Stack]:
        """One step on H u + g - A' z = 0, z - P(z - t (A u + b)) = 0, with t in z's units."""
        there = self._at(u, z)
        if self.shape.by_rows_alone:
            return self.systems.on(self.shape.held_at(there.gap), self.g, self.b)
        goal, slope, unit = self.shape.projected(there.gap), self.shape.slope(there.gap), there.units
        goal[:, self.shape.repeated] = z[:, self.shape.repeated]
        count, width, rows = len(self), self.g.shape[1], self.b.shape[1]
        system = np.zeros((count, width + rows, width + rows))
        system[:, :width, :width], system[:, :width, width:] = self.shape.h, -turned(self.shape.a)
        system[:, width:, :width], system[:, width:, width:] = (
            slope @ (unit[..., None] * self.shape.a),
            np.eye(rows) - slope,
        )
        right = -np.concatenate([times(self.shape.h, u) + self.g - times(turned(self.shape.a), z), z - goal], axis=1)
        finite = np.isfinite(system).all(axis=(1, 2)) & np.isfinite(right).all(axis=1)
        system = np.where(finite[:, None, None], system, np.eye(width + rows))
        right = np.where(finite[:, None], right, 0.0)
        step = solved(system, right)  # a least-norm step, by all singular values, leads nowhere sooner than a solver
        return u + step[:, :width], z + step[:, width:]

    def _stepped_each(self, held: Bool[np.ndarray, "k rows"], u: Stack, z: Stack) -> tuple[Stack, Stack]:
        """The same step, of each program by itself: to the last bit the same in any company."""
        z = np.where(held | self.shape.repeated, z, 0.0)
        pulls = times(self.shape.h, u) + self.g - times(turned(self.shape.a), z)
        left = np.where(held, (times(self.shape.a, u) + self.b) / self.shape.sizes, 0.0)
        step = solved(self.shape.systems(held), -np.concatenate([pulls, left], axis=1))
        return u + step[:, : u.shape[1]], z + np.where(held, step[:, u.shape[1] :], 0.0) / self.shape.sizes

    # --- derivatives -----------------------------------------------------------------------------------------------------

    def adjoints(self, u: Stack, z: Stack, seeds: Stack) -> tuple[Bool[np.ndarray, " k"], Stack, Stack]:
        """(where the derivative is beyond doubt, v, w) at answers: seed'u moves by -(v, w) times what moves the conditions.

        By the conditions' own derivative, where every row and cone that holds has a multiplier and they are independent.
        """
        if self._has_greatest_pieces:
            return np.zeros(len(self), bool), np.zeros_like(u), np.zeros_like(z)
        there = self._at(u, z)
        if self.shape.by_rows_alone:
            v, w, missed = self.systems.adjoint(self.shape.held_at(there.gap), seeds)
            return there.strict().all(axis=1) & self._moderate(v, w, missed, seeds), v, w
        slope, strict, unit, limits = self.shape.slope(there.gap), there.strict(), there.units, self[0].limits
        reached = [] if limits is None else list(limits.rows)
        slope[:, reached, reached], strict[:, reached] = 1.0, True
        count, width, rows = len(self), self.g.shape[1], self.b.shape[1]
        system = np.zeros((count, width + rows, width + rows))
        system[:, :width, :width] = turned(self.shape.h)
        system[:, :width, width:] = turned(slope @ (unit[..., None] * self.shape.a))
        system[:, width:, :width], system[:, width:, width:] = -self.shape.a, np.eye(rows) - turned(slope)
        right = np.concatenate([seeds, np.zeros((count, rows))], axis=1)
        answer = solved(system, right)
        v, w = answer[:, :width], unit * times(turned(slope), answer[:, width:])
        missed = np.linalg.norm(times(system, answer) - right, axis=1)
        return strict.all(axis=1) & self._moderate(v, w, missed, seeds), v, w

    def _moderate(self, v: Stack, w: Stack, missed: np.ndarray, seeds: Stack) -> Bool[np.ndarray, " k"]:
        """Where adjoints are of a size beside which nothing depends on rounding, and solve their equations."""
        size = np.linalg.norm(seeds, axis=1)
        stiff = self.shape.stiffness * np.abs(v).max(axis=1)
        pulled = np.abs(self.shape.sizes * w).max(axis=1, initial=0.0)
        with np.errstate(invalid="ignore"):
            return np.asarray((np.maximum(stiff, pulled) <= LARGE * size) & (missed <= EXACT * LARGE * size))

    def is_one(self, u: Stack, z: Stack) -> Bool[np.ndarray, " k"]:
        """Where y is the only answer: H is positive definite in y, or it and the rows that are pulled at determine u."""
        return self._is_one(self._at(u, z))

    def _is_one(self, there: Conditions) -> Bool[np.ndarray, " k"]:
        if self.shape.regular_in_all:
            return np.ones(len(self), bool)
        one = np.broadcast_to(self.shape.regular, len(self))
        if not self.shape.polyhedral:
            return one
        sure = self.systems.determined(there.pulled)
        if not self.shape.symmetric:  # then rows that hold without a multiplier may have one at another solution
            sure &= there.strict().all(axis=1)
        return one | sure

    def _at(self, u: Stack, z: Stack) -> Conditions:
        return Conditions(self.shape, self.g, self.b, u, z)
