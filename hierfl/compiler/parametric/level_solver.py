"""What is asked of a level of one owner: its y at theta, the one that is meant where there are several, and how it moves.

Of several solutions the one of least norm is taken, unless the declaration says which: then the upper objective chooses, in a second
convex program over the solution set, or at one of its vertices where it bends the other way. Both choices are programs with conditions of
their own, so that what is chosen has derivatives as well:

    minimise F(y, t) over (u, t, z_J)   subject to   P u + q = A_J' z_J,  A_J u + b_J = 0,  the other rows of the level, those of F.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cone_solution import ONE, SEVERAL, TWISTED, UNKNOWN
from hierfl.compiler.host.distance_bound import distance_bound
from hierfl.compiler.host.standard_form import KINDS, NONNEGATIVE, ZERO, Cone
from hierfl.compiler.parametric.all_solutions import AllSolutions, settled
from hierfl.compiler.parametric.convex_program import ConvexProgram, ProgramSolution, merged
from hierfl.compiler.parametric.level_form import LevelForm, Thetas
from hierfl.compiler.parametric.many_programs import FamilyAnswers, ManyPrograms, pulled_together, solved_together
from hierfl.compiler.parametric.response import Adjoint, ProgramResponse, slopes_of
from hierfl.compiler.parametric.row_block import Slopes
from hierfl.compiler.parametric.small_and_sparse import (
    as_array,
    beside,
    diagonal,
    is_monotone,
    nothing,
    placed,
    stacked,
)
from hierfl.compiler.parametric.solve_program import polished, solve_program
from hierfl.errors import NotConvexError

BOUNDED = 500  # scalars of u, and twice as many rows, up to which errors are bounded
KEPT = 256  # answers, so that a derivative does not solve again
SCALARS = 5_000_000  # that are kept with them
FAMILIES = 4  # sets of answers of many owners that are kept
AMONG = 1e-6  # the error of a choice over curved cones that is good enough


class Upper(NamedTuple):
    """The upper objective of an owner as a convex cost of y; ``sign`` -1 where its negation is.

    ``why_not`` says why neither is one.
    """

    form: LevelForm | None
    sign: float
    why_not: str = ""


class LevelAnswer(NamedTuple):
    """A y with its program and multipliers; ``ends`` are other solutions, where there are several."""

    program: ConvexProgram
    first: ProgramSolution
    chosen: ProgramSolution
    unique: int
    ends: tuple[ProgramSolution, ...] = ()

    @property
    def y(self) -> np.ndarray:
        return self.chosen.u[: self.program.size]


@dataclass(frozen=True, eq=False)
class LevelSolver:
    """Of one level; ``selection`` is "optimistic", "pessimistic" or None, ``upper`` what it chooses by."""

    form: LevelForm
    strict: bool
    selection: str | None = None
    upper: Upper | None = None
    mapping: bool = False  # P is a map's, and need not be the curvature of anything convex
    _kept: OrderedDict[bytes, LevelAnswer] = field(default_factory=OrderedDict)
    _families: OrderedDict[bytes, FamilyAnswers] = field(default_factory=OrderedDict)

    def answer(self, thetas: Thetas, of_upper: Thetas = ()) -> LevelAnswer:  # type: ignore[assignment]
        """y at theta; ``of_upper`` is theta of the upper objective, where it chooses."""
        key = _key([*thetas, *of_upper])
        if key not in self._kept:
            self._kept[key] = self._answer(thetas, of_upper)
            while len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
        return self._kept[key]

    @cached_property
    def has_families(self) -> bool:
        """Whether the programs of many owners are solved together."""
        return ManyPrograms.treats(self.form) and not self.mapping

    def answers(self, thetas: Thetas, of_upper: Thetas) -> tuple[FamilyAnswers, Iterator[tuple[int, LevelAnswer]]]:
        """At thetas with a leading axis: (those beyond doubt together, the number and the answer of each of the others)."""
        family = self._family(thetas)
        others = np.flatnonzero(~family.taken)
        return family, (
            (int(k), self.answer([part[k] for part in thetas], [part[k] for part in of_upper])) for k in others
        )

    def _family(self, thetas: Thetas) -> FamilyAnswers:
        key = _key(thetas)
        if key not in self._families:
            latest = next(reversed(self._families.values()), None)
            self._families[key] = solved_together(self.form, thetas, latest)
            while len(self._families) > FAMILIES:
                self._families.popitem(last=False)
        return self._families[key]

    def pulls(
        self, thetas: Thetas, of_upper: Thetas, seeds: np.ndarray, tangents: list[Thetas]
    ) -> Iterator[tuple[np.ndarray, Thetas | None]]:
        """(numbers, gradients of seed'y in both thetas, one below another) for thetas and seeds with a leading axis; None where there is none."""
        sure, found = pulled_together(self.form, thetas, self._family(thetas), seeds)
        yield np.flatnonzero(sure), [*found, *(np.zeros_like(part[sure]) for part in of_upper)]
        for k in np.flatnonzero(~sure):
            at = ([part[k] for part in each] for each in (thetas, of_upper, *tangents))
            below, above, *moves = at
            pulled = self.pull(below, above, seeds[k], moves)
            yield np.array([k]), None if pulled is None else [part[None] for part in pulled]

    def error_bound(self, thetas: Thetas, of_upper: Thetas, modulus: float) -> float:
        """A bound on ||y - y(x)||; infinite where none is proved."""
        answer = self.answer(thetas, of_upper)
        program, u, z = answer.program, answer.chosen.u, answer.chosen.z
        if not answer.chosen.solved or program.width > BOUNDED or len(program.b) > 2 * BOUNDED or not modulus > 0:
            return np.inf
        order = np.argsort(program.rank_of_rows, kind="stable")
        cones = sorted(program.cones, key=lambda cone: KINDS.index(cone.kind))
        h, a = as_array(program.curvature(u)), as_array(program.a)[order]
        dense = ConeProgram(h, program.slope(u) - h @ u, a, program.b[order], merged(cones))
        costs = np.abs([program.constant, program.cost(u) + program.constant])
        return distance_bound(dense, u, z[order], modulus, program.size, costs)

    @cached_property
    def _capacity(self) -> int:
        return int(np.clip(SCALARS // (1 + self.form.base.matrix.rows.size + self.form.base.width), 4, KEPT))

    def _answer(self, thetas: Thetas, of_upper: Thetas) -> LevelAnswer:
        program = self.form.program(thetas)
        first = solve_program(program)
        if first.solved and self.mapping and not is_monotone(program.p):
            return LevelAnswer(program, first, first, TWISTED)
        if not first.solved or self.strict:
            return LevelAnswer(program, first, first, ONE if self.strict else UNKNOWN)
        several = AllSolutions(program, first)
        if several.is_one is not False:
            return LevelAnswer(program, first, first, ONE if several.is_one else UNKNOWN)
        ends = tuple(several.ends)
        chosen = self._least(several) if self.selection is None else self._selected(several, of_upper)
        return LevelAnswer(program, first, chosen, SEVERAL, ends)

    @staticmethod
    def _least(several: AllSolutions) -> ProgramSolution:
        least = several.least_norm()
        return least if least.solved or (not several.program.polyhedral and least.error <= AMONG) else several.answer

    # --- selections ----------------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> float:
        return 1.0 if self.selection == "optimistic" else -1.0

    def _selected(self, several: AllSolutions, of_upper: Thetas) -> ProgramSolution:
        """The best, or the worst, solution for the upper objective."""
        assert self.upper is not None
        if self.upper.form is None:
            raise NotConvexError(_not_convex(str(self.selection), self.upper.why_not))
        cost = self.upper.form.program(of_upper)
        if self.upper.sign == self._wanted:
            chosen = solve_program(self._choice(several, cost))
            return chosen if chosen.solved else self._none_chosen(several, chosen)
        try:
            return self._extreme(several, cost)
        except ValueError as reason:
            raise NotConvexError(_not_convex(str(self.selection), f"of the solutions' set {reason}")) from None

    def _none_chosen(self, several: AllSolutions, chosen: ProgramSolution) -> ProgramSolution:
        if not several.program.polyhedral and chosen.error <= AMONG:
            return chosen
        return several.program.none(chosen.status)

    def _choice(self, several: AllSolutions, cost: ConvexProgram) -> ConvexProgram:
        """The cost over the solution set: of (u, the cost's own bounds)."""
        width = several.program.width
        place = _places(cost, width)
        total = width + cost.width - cost.size
        p = placed(cost.p, place, place, (total, total))
        q = np.zeros(total)
        q[place] = cost.q
        a = placed(cost.a, np.arange(len(cost.b)), place, (len(cost.b), total))
        smooth = None if cost.smooth is None else cost.smooth.placed(place, total)
        return replace(several.restricted(p, q, a, cost.b, tuple(cost.cones)), smooth=smooth)

    def _extreme(self, several: AllSolutions, cost: ConvexProgram) -> ProgramSolution:
        """The vertex at which a convex cost is largest."""
        best: tuple[float, np.ndarray] | None = None
        size = several.program.size
        for vertex in several.vertices():
            value = _value_at(cost, vertex[:size])
            if best is None or value > best[0]:
                best = value, vertex
        if best is None:
            raise ValueError("no vertex was found")
        return several.program.judged(best[1], several.answer.z)

    # --- derivatives ---------------------------------------------------------------------------------------------

    def pull(self, thetas: Thetas, of_upper: Thetas, seed: np.ndarray, tangents: list[Thetas]) -> Thetas | None:
        """The gradient of seed'y in (theta, theta of the upper objective); None where there is none.

        ``tangents`` are directions of both, in which it has to be one.
        """
        answer = self.answer(thetas, of_upper)
        if not answer.chosen.solved:
            return None
        count = len(thetas)
        if answer.unique != SEVERAL:
            whole = np.concatenate([seed, np.zeros(answer.program.width - len(seed))])
            answer = answer._replace(chosen=settled(answer.program, answer.chosen))
            response = ProgramResponse(self.form.program, thetas, answer.program, answer.chosen, self.form.push)
            pair = response.adjoint(whole, [tangent[:count] for tangent in tangents])
            if pair is None:
                return None
            return [*self.form.pull(thetas, slopes_of(pair, answer.chosen.u)), *map(np.zeros_like, of_upper)]
        if not answer.program.polyhedral:
            return None
        whole = np.concatenate([seed, np.zeros(answer.program.width - len(seed))])
        middle = self._middle(
            answer
        )  # where the fewest rows hold: what differs between solutions may not concern the seed
        pair = ProgramResponse(self.form.program, thetas, answer.program, middle, self.form.push).adjoint(
            whole, [t[:count] for t in tangents], True
        )
        stays = self.selection is None or bool(seed.any())  # else what is chosen may leap between equals
        if pair is not None and stays:
            return [*self.form.pull(thetas, slopes_of(pair, middle.u)), *map(np.zeros_like, of_upper)]
        if answer.program.smooth is not None:
            return None
        return self._pull_of_chosen(answer, thetas, of_upper, seed, tangents)

    @staticmethod
    def _middle(answer: LevelAnswer) -> ProgramSolution:
        """A solution between all that are known; multipliers of one are those of all."""
        width = answer.program.width
        known = [answer.first.u, answer.chosen.u[:width], *(end.u[:width] for end in answer.ends)]
        return answer.program.judged(np.mean(known, axis=0), answer.first.z)

    def _pull_of_chosen(
        self, answer: LevelAnswer, thetas: Thetas, of_upper: Thetas, seed: np.ndarray, tangents: list[Thetas]
    ) -> Thetas | None:
        several = AllSolutions(answer.program, answer.first)
        chosen_by = self.upper.form if self.selection is not None and self.upper is not None else None
        if chosen_by is not None and self.upper is not None and self.upper.sign != self._wanted:
            return None  # a vertex: the extreme one may change
        build = partial(self._conditions, several.strong, chosen_by, len(thetas))
        both = [*thetas, *of_upper]
        program = build(both)
        guess = self._guess(several, answer, program, chosen_by, of_upper)
        if guess is None:
            return None
        whole = np.concatenate([seed, np.zeros(program.width - len(seed))])
        pair = ProgramResponse(build, both, program, guess).adjoint(whole, tangents, True)
        if pair is None:
            return None
        return self._shared(pair, guess, several.strong, answer.program, chosen_by, thetas, of_upper)

    def _conditions(self, strong: np.ndarray, chosen_by: LevelForm | None, count: int, both: Thetas) -> ConvexProgram:
        """The program of (u, t, z_J) in the head of this file."""
        level = self.form.program(both[:count])
        cost = chosen_by.program(both[count:]) if chosen_by is not None else None
        width, held, extra = level.width, int(strong.sum()), 0 if cost is None else cost.width - cost.size
        total = width + extra + held
        rows = level.a
        if cost is None:
            p = diagonal(np.concatenate([np.ones(level.size), np.zeros(total - level.size)]), level.p)
            q, own, offset, cones, smooth = np.zeros(total), nothing(0, total, rows), np.zeros(0), [], None
        else:
            place = _places(cost, width)
            p = placed(cost.p, place, place, (total, total))
            q = np.zeros(total)
            q[place] = cost.q
            own = placed(cost.a, np.arange(len(cost.b)), place, (len(cost.b), total))
            offset, cones = cost.b, list(cost.cones)
            smooth = None if cost.smooth is None else cost.smooth.placed(place, total)
        force = beside([level.p, nothing(width, extra, rows), -rows[strong].T])
        others = [beside([rows[some], nothing(int(some.sum()), extra + held, rows)]) for some in (strong, ~strong)]
        a = stacked([force, *others, own])
        b = np.concatenate([level.q, level.b[strong], level.b[~strong], offset])
        kinds = [Cone(ZERO, width + held), Cone(NONNEGATIVE, len(level.b) - held), *cones]
        return ConvexProgram(p, q, a, b, [cone for cone in kinds if cone.size], level.size, p, smooth)

    def _guess(
        self,
        several: AllSolutions,
        answer: LevelAnswer,
        program: ConvexProgram,
        chosen_by: LevelForm | None,
        of_upper: Thetas,
    ) -> ProgramSolution | None:
        """What is chosen as a solution of those conditions, with multipliers."""
        level, strong = answer.program, several.strong
        width, held = level.width, int(strong.sum())
        pinned = several.pinned[0].shape[0]
        z = np.zeros(len(program.b))
        own = answer.chosen.z
        loose = len(level.b) - held
        z[width + held : width + held + loose] = own[pinned : pinned + loose]
        z[width + held + loose :] = own[pinned + loose :]
        u = np.concatenate([answer.chosen.u, answer.first.z[strong]])
        found = polished(program, u, z)
        return found if found.solved else None

    def _shared(
        self,
        pair: Adjoint,
        guess: ProgramSolution,
        strong: np.ndarray,
        level: ConvexProgram,
        chosen_by: LevelForm | None,
        thetas: Thetas,
        of_upper: Thetas,
    ) -> Thetas:
        """The slopes in the numbers of those conditions as slopes in the level's and the cost's."""
        width = level.width
        cost = None if chosen_by is None else chosen_by.program(of_upper)
        extra = 0 if cost is None else cost.width - cost.size
        whole = slopes_of(pair, guess.u)
        below, above = Slopes(offset=np.zeros(len(level.b))), Slopes()
        heights = np.concatenate([np.flatnonzero(strong), np.flatnonzero(~strong)])
        ends = width + len(level.b)

        def of_rows(part: np.ndarray) -> np.ndarray:
            out = np.zeros(len(level.b))
            out[heights] = part[width:ends]
            return out

        def multipliers(part: np.ndarray) -> np.ndarray:
            out = np.zeros(len(level.b))
            out[strong] = part[width + extra :]
            return out

        place = None if cost is None else _places(cost, width)
        for left, right in whole.rows:
            below.bends.append((left[:width], right[:width]))
            below.rows.append((-multipliers(right), left[:width]))
            below.rows.append((of_rows(left), right[:width]))
            if place is not None:
                above.rows.append((left[ends:], right[place]))
        assert whole.offset is not None
        below.forces.append((whole.offset[:width], np.zeros(width)))
        below.offset = of_rows(whole.offset)
        found = self.form.pull(thetas, below)
        if chosen_by is None or place is None:
            return [*found, *map(np.zeros_like, of_upper)]
        above.forces = [(left[place], right[place]) for left, right in whole.forces]
        above.offset = whole.offset[ends:]
        return [*found, *chosen_by.pull(of_upper, above)]


def _places(cost: ConvexProgram, width: int) -> np.ndarray:
    """Where a cost's (y, bounds) are beside u."""
    return np.concatenate([np.arange(cost.size), width + np.arange(cost.width - cost.size)])


def _value_at(cost: ConvexProgram, y: np.ndarray) -> float:
    """A cost at y: its bounds as low as they go."""
    size, width = cost.size, cost.width
    rows = diagonal(np.ones(width), cost.a)[:size]
    cones = [*cost.cones, Cone(ZERO, size)]
    fixed = replace(cost, a=stacked([cost.a, rows]), b=np.concatenate([cost.b, -y]), cones=cones)
    found = solve_program(fixed)
    return cost.cost(found.u) if found.solved else np.nan


def _key(parts: Thetas) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()


def _not_convex(selection: str, why: str) -> str:
    bends = "convex" if selection == "optimistic" else "concave"
    return (
        f"selection={selection!r} chooses among several lower solutions by a convex program, for which the upper objective has to be "
        f"{bends} in y: here it is not ({why}). Write an upper objective that is, or a lower level with one solution."
    )
