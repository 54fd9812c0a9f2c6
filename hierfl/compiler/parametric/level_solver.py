"""What is asked of a level of one owner: its y at theta, the one that is meant where there are several, and how it moves.

Of several solutions the one of least norm is taken, unless the declaration says which: then the upper objective chooses, in a second
convex program over the solution set, or at one of its vertices where it bends the other way. The choice is a program
with conditions of its own, so it has derivatives as well:

    minimise F(y, t) over (u, t, z_J)   subject to   P u + q = A_J' z_J,  A_J u + b_J = 0,  the other rows of the level, those of F.

F is the upper objective, or the length of y where nobody chooses.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import cvxpy as cp
import numpy as np

from hierfl.compiler.parametric.level_form import LevelForm, Thetas, WithoutCones
from hierfl.compiler.parametric.many_programs import LARGEST, FamilyAnswers, ManyPrograms
from hierfl.compiler.parametric.many_smooth import pulled_together, solved_together, treats_together
from hierfl.compiler.parametric.priced_form import PricedForm
from hierfl.compiler.programs.all_solutions import AllSolutions, settled, value_at
from hierfl.compiler.programs.cones import rows_of
from hierfl.compiler.programs.convex_program import (
    ONE,
    SEVERAL,
    TWISTED,
    UNBOUNDED,
    UNKNOWN,
    ConvexProgram,
    ProgramSolution,
)
from hierfl.compiler.programs.distance_bound import distance_bound
from hierfl.compiler.programs.response import Adjoint, Branch, ProgramResponse
from hierfl.compiler.programs.saddle import KEPT as SYSTEMS
from hierfl.compiler.programs.saddle import Saddle, Saddles
from hierfl.compiler.programs.second_looks import carried_on, looked_into, seen_beside_penalties
from hierfl.compiler.programs.small_and_sparse import (
    diagonal,
    hstack,
    is_dense,
    largest,
    on_one_thread,
    placed,
    vstack,
    zeros,
)
from hierfl.compiler.programs.solve_program import polished, solve_program
from hierfl.compiler.programs.variational_inequality import gap_program, gap_solution, solution_of_gap
from hierfl.errors import LowerLevelError, NotConvexError

BOUNDED = 500  # scalars of u, and twice as many rows, up to which errors are bounded
KEPT = 1024  # answers, so that a derivative does not solve again
SCALARS = 10_000_000  # that are kept with them
FAMILIES = 4  # sets of answers of many owners that are kept
AMONG = 1e-6  # the error of a choice over curved cones that is good enough
FOLLOWED = 10_000  # scalars of u and rows, up to which the derivative of the shortest of several solutions is looked for: minutes beyond


class Upper(NamedTuple):
    """The upper objective of an owner as a convex cost of y; ``sign`` -1 where its negation is.

    ``why_not`` says why neither is one. Where prices are chosen, it is a cost of them alone: parameters stand for the ``fixed`` variables.
    """

    form: LevelForm | None
    sign: float
    why_not: str = ""
    fixed: tuple[tuple[cp.Variable, cp.Parameter], ...] = ()


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
    has_edges: bool = True  # where nothing is feasible is outside of the domain: derivatives are those within
    together: int = LARGEST  # entries of a linear system, up to which those of many owners are solved together
    side_by_side: bool = False  # whether those of many owners are, on the device on which JAX computes; for calls from outside its programs
    _known: Saddles = field(default_factory=Saddles)
    _kept: OrderedDict[bytes, LevelAnswer] = field(default_factory=OrderedDict)
    _families: OrderedDict[bytes, FamilyAnswers] = field(default_factory=OrderedDict)

    @on_one_thread
    def answer(self, thetas: Thetas, of_upper: Thetas = ()) -> LevelAnswer:  # type: ignore[assignment]
        """y at theta; ``of_upper`` is theta of the upper objective, where it chooses."""
        key = _key([*thetas, *of_upper])
        answer = self._kept.get(key)
        if answer is None:
            before = next(reversed(self._kept.values()), None)
            answer = self._kept[key] = self._answer(thetas, of_upper)
            while len(self._kept) > _capacity(answer.program, None if before is None else before.program):
                self._kept.popitem(last=False)
        return answer

    @cached_property
    def unselected(self) -> LevelSolver:
        return LevelSolver(self.form, self.strict, mapping=self.mapping)

    @cached_property
    def has_families(self) -> bool:
        return treats_together(self.form, self.together) and not self.mapping

    @property
    def has_quadratic_families(self) -> bool:
        """Whether they are, and quadratic programs over rows."""
        return ManyPrograms.treats(self.form, self.together) and not self.mapping

    @property
    def follows(self) -> bool:
        """Whether a solution is followed along a direction in less time than many are solved together."""
        return self.form.polyhedral and not (self.mapping or self.has_families)

    def answers(self, thetas: Thetas, of_upper: Thetas) -> tuple[FamilyAnswers, Iterator[tuple[int, LevelAnswer]]]:
        """At thetas with a leading axis: (those beyond doubt together, the number and the answer of each of the others)."""
        family = self._family(thetas)
        others = np.flatnonzero(~family.taken)
        return family, (
            (int(k), self.answer([part[k] for part in thetas], [part[k] for part in of_upper])) for k in others
        )

    @on_one_thread
    def _family(self, thetas: Thetas) -> FamilyAnswers:
        key = _key(thetas)
        family = self._families.get(key)
        if family is None:
            latest = next(reversed(list(self._families.values())), None)
            family = self._families[key] = solved_together(self.form, thetas, latest, self.side_by_side)
            while len(self._families) > FAMILIES:
                self._families.popitem(last=False)
        return family

    @on_one_thread
    def _pulled_together(self, thetas: Thetas, seeds: np.ndarray) -> tuple[np.ndarray, Thetas]:
        return pulled_together(self.form, thetas, self._family(thetas), seeds, self.side_by_side)

    def pulls(
        self, thetas: Thetas, of_upper: Thetas, seeds: np.ndarray, tangents: list[Thetas]
    ) -> Iterator[tuple[np.ndarray, Thetas | None]]:
        """(numbers, gradients of seed'y in both thetas, one below another) for thetas and seeds with a leading axis; None where there is none."""
        sure, found = self._pulled_together(thetas, seeds)
        yield np.flatnonzero(sure), [*found, *(np.zeros_like(part[sure]) for part in of_upper)]
        for k in np.flatnonzero(~sure):
            below, above, *moves = ([part[k] for part in each] for each in (thetas, of_upper, *tangents))
            pulled = self.pull(below, above, seeds[k], moves)
            yield np.array([k]), None if pulled is None else [part[None] for part in pulled]

    def error_bound(self, thetas: Thetas, of_upper: Thetas, modulus: float) -> float:
        """A bound on ||y - y(x)||; infinite where none is proved."""
        answer = self.answer(thetas, of_upper)
        program, (u, z) = answer.program, (answer.chosen.u, answer.chosen.z)
        if not answer.chosen.solved or program.width > BOUNDED or len(program.b) > 2 * BOUNDED or not modulus > 0:
            return np.inf
        return distance_bound(program, u, z, modulus, np.abs([program.constant, program.cost(u) + program.constant]))

    def _answer(self, thetas: Thetas, of_upper: Thetas) -> LevelAnswer:
        program = self.form.program(thetas)
        first = self.form.solution(thetas, program, self._known)
        if type(self.form) is LevelForm and not program.is_map:
            program, first = seen_beside_penalties(program, first, partial(solve_program, known=self._known))
        first = carried_on(program, first) if first.solved else looked_into(program, first)
        if first.solved and self.mapping and not self.form.is_monotone(program):
            return LevelAnswer(program, first, first, TWISTED)
        if not first.solved or self.strict or self.form.asks_for_map:
            return LevelAnswer(program, first, first, ONE if self.strict else UNKNOWN)
        if self._is_isolated(program, first):
            return LevelAnswer(program, first, first, ONE)
        several = self._all_solutions(program, first)
        if several.is_one is not False:
            return LevelAnswer(program, first, first, ONE if several.is_one else UNKNOWN)
        if self.selection is not None and isinstance(self.form, PricedForm) and AllSolutions(*self.form.of_level(thetas)).is_one is False:
            raise NotConvexError(  # prices are chosen at the y that there is
                f"selection={self.selection!r} chooses among several prices where y is one: here the level has several y as well. Add a strongly "
                f"convex term to it."
            )
        chosen, ends = self._least(several) if self.selection is None else self._selected(several, of_upper), several.ends
        if program.is_map:
            chosen, *ends = (solution_of_gap(program, one) for one in (chosen, *ends))
        if isinstance(self.form, PricedForm):
            chosen, *ends = (self.form.within_signs(one) for one in (chosen, *ends))
        return LevelAnswer(program, first, chosen, SEVERAL, tuple(ends))

    def _is_isolated(self, program: ConvexProgram, answer: ProgramSolution) -> bool:
        """Whether a regular system of rows that all hold with multipliers leaves no other pair nearby: then there is none, as all solutions are a convex set."""
        if not program.polyhedral or program.smooth is not None or not (program.units == 1.0).all():
            return False
        there = AllSolutions(program, answer)
        return not there.weak.any() and self._known.at(program.p, program.a, there.strong, not program.is_map).is_regular

    @staticmethod
    def _all_solutions(program: ConvexProgram, answer: ProgramSolution) -> AllSolutions:
        """The solutions of a program; of a map those of the program of its gap."""
        if not program.is_map:
            return AllSolutions(program, answer)
        if program.smooth is not None:  # whose arguments all solutions share
            program = program.linear_at(answer.u)
        gap = gap_program(program)
        return AllSolutions(gap, gap_solution(gap, program, answer))

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
            if chosen.status == UNBOUNDED and isinstance(self.form, PricedForm):
                raise LowerLevelError(
                    f"selection={self.selection!r}: among the prices of the lower level the upper objective finds none that is best, they go on without "
                    f"end. Rows that hold with equality depend on each other: write what they say once."
                )
            good = chosen.solved or (not several.program.polyhedral and chosen.error <= AMONG)
            return chosen if good else several.program.none(chosen.status)
        try:
            return self._extreme(several, cost)
        except ValueError as reason:
            raise NotConvexError(_not_convex(str(self.selection), f"of the solutions' set {reason}")) from None

    def _choice(self, several: AllSolutions, cost: ConvexProgram) -> ConvexProgram:
        """The cost over the solution set: of (u, the cost's own bounds)."""
        width = several.program.width
        wide = widened(cost, width, width + cost.width - cost.size)
        return replace(several.restricted(wide.p, wide.q, wide.a, wide.b, tuple(wide.cones)), smooth=wide.smooth)

    def _extreme(self, several: AllSolutions, cost: ConvexProgram) -> ProgramSolution:
        """The vertex at which a convex cost is largest."""
        vertices = list(several.vertices())
        if not vertices:
            raise ValueError("no vertex was found")
        values = [value_at(cost, vertex[: several.program.size]) for vertex in vertices]
        return several.program.judged(vertices[int(np.argmax(values))], several.answer.z)

    def _is_alone(self, several: AllSolutions, cost: ConvexProgram, chosen: ProgramSolution) -> bool:
        """Whether a vertex is better than all others."""
        size = several.program.size
        best = value_at(cost, chosen.u[:size])
        apart = [vertex[:size] for vertex in several.vertices() if np.abs(vertex - chosen.u)[:size].max() > AMONG]
        return all(value_at(cost, y) < best - AMONG * (1.0 + abs(best)) for y in apart)

    # --- derivatives ---------------------------------------------------------------------------------------------

    @on_one_thread
    def pull(self, thetas: Thetas, of_upper: Thetas, seed: np.ndarray, tangents: list[Thetas]) -> Thetas | None:
        """The gradient of seed'y in (theta, theta of the upper objective); None where there is none.

        ``tangents`` are directions of both, in which it has to be one.
        """
        answer = self.answer(thetas, of_upper)
        if not answer.chosen.solved:
            return None
        below = [tangent[: len(thetas)] for tangent in tangents]
        if answer.unique != SEVERAL:
            alone = settled(answer.program, answer.chosen)
            return self._told(answer.program, self._response(answer, thetas, alone).adjoint(seed, below), alone, thetas, of_upper)
        if isinstance(self.form, PricedForm) and self.selection is not None:
            return self._pull_of_prices(self.form, answer, thetas, of_upper, seed, below)
        if not answer.program.polyhedral:
            near = self._near(answer, thetas, of_upper)
            return None if near is None else near.pull(thetas, of_upper, seed, tangents)
        middle = self._middle(answer)  # where the fewest rows hold: what differs may not concern the seed
        pair = self._response(answer, thetas, middle).adjoint(seed, below, True)
        stays = self.selection is None or bool(seed.any())  # else what is chosen may leap between equals
        if pair is not None and stays:
            return self._told(answer.program, pair, middle, thetas, of_upper)
        if answer.program.smooth is not None:
            return None
        if answer.program.is_map:  # here all that counts has to hold with a multiplier
            several = AllSolutions(answer.program, middle)
            if several.weak.any() or not middle.solved:
                return None
            shortest = ChosenResponse(self.form, None, several, len(thetas))
            return shortest.pull(answer.chosen, thetas, of_upper, seed, tangents)
        return self._pull_of_chosen(answer, thetas, of_upper, seed, tangents)

    def _pull_of_prices(
        self, form: PricedForm, answer: LevelAnswer, thetas: Thetas, of_upper: Thetas, seed: np.ndarray, below: list[Thetas]
    ) -> Thetas | None:
        """The same of prices that were chosen, where nothing else is as good: those that are none stay so."""
        assert self.upper is not None
        if self.upper.form is None or self.upper.sign != self._wanted:
            return None
        choice = self._choice(self._all_solutions(answer.program, answer.first), self.upper.form.program(of_upper))
        best = solve_program(choice)
        if not best.solved or AllSolutions(choice, best).is_one is not True:
            return None
        response = self._response(answer, thetas, answer.chosen)
        held = response.solutions.strong | (response.solutions.weak & form.of_signs(answer.program))
        return self._told(answer.program, response.of_basis(seed, below, held), answer.chosen, thetas, of_upper)

    @property
    def kept_at_once(self) -> int:
        """How many answers and systems of the conditions are surely kept, so that what is asked next of some of them finds them."""
        program = self.form.latest
        if program is None or not self.form.is_still:  # systems are kept of one P and A
            return 1
        return int(np.clip(SYSTEMS // Saddle.numbers_of(program.p, program.a), 1, _capacity(program, None)))

    @on_one_thread
    def branch(self, thetas: Thetas, of_upper: Thetas, tangent: Thetas) -> Branch | None:
        """How the solution moves along a direction of theta while the same rows hold; None where that is not told."""
        answer = self.answer(thetas, of_upper)
        if not answer.chosen.solved or answer.unique in (SEVERAL, TWISTED):
            return None
        return self._response(answer, thetas, settled(answer.program, answer.chosen)).branch(tangent)

    def rate(self, thetas: Thetas, of_upper: Thetas, tangent: Thetas) -> np.ndarray | None:
        """By what the solution moves ahead along a direction of theta; None where that is not told. Along zero it stays, whatever it is."""
        if not any(np.any(part) for part in tangent):  # as where a batch asks about some of its points only
            return np.zeros(self.form.size)
        answer = self.answer(thetas, of_upper)
        if not answer.chosen.solved or answer.unique in (SEVERAL, TWISTED):
            return None
        return self._response(answer, thetas, settled(answer.program, answer.chosen)).rate(tangent)

    def _response(self, answer: LevelAnswer, thetas: Thetas, at: ProgramSolution) -> ProgramResponse:
        program = answer.program
        known = self._known if (program.units == 1.0).all() else Saddles()  # else those are in other units
        return ProgramResponse(self.form.program, thetas, program, at, self.form.push, self.has_edges, known)

    def _told(self, program: ConvexProgram, pair: Adjoint | None, at: ProgramSolution, thetas: Thetas, of_upper: Thetas) -> Thetas | None:
        """The gradient in both thetas that an adjoint at a solution tells; None without one."""
        if pair is None:
            return None
        pair = pair._replace(a=np.where(program.free, 0.0, pair.a))
        return [*self.form.pull(thetas, pair, at.u), *map(np.zeros_like, of_upper)]

    def _near(self, answer: LevelAnswer, thetas: Thetas, of_upper: Thetas) -> LevelSolver | None:
        """The same without curved cones, which hold nothing near what was chosen; None where some do."""
        form = WithoutCones.at(self.form, answer.program, answer.chosen.u[: answer.program.width])
        if form is None:
            return None
        near = LevelSolver(form, self.strict, self.selection, self.upper, self.mapping, self.has_edges, self.together)
        y = near.answer(thetas, of_upper).y
        return near if np.abs(y - answer.y).max(initial=0.0) <= AMONG * (1.0 + np.abs(y).max(initial=0.0)) else None

    @staticmethod
    def _middle(answer: LevelAnswer) -> ProgramSolution:
        """A solution between all that are known; multipliers of one are those of all, but of a map."""
        program, known = answer.program, [answer.first, answer.chosen, *answer.ends]
        z = np.mean([one.z for one in known], axis=0) if program.is_map else answer.first.z
        return program.judged(np.mean([one.u[: program.width] for one in known], axis=0), z)

    def _pull_of_chosen(
        self, answer: LevelAnswer, thetas: Thetas, of_upper: Thetas, seed: np.ndarray, tangents: list[Thetas]
    ) -> Thetas | None:
        several = AllSolutions(answer.program, answer.first)
        chosen_by = self.upper.form if self.selection is not None and self.upper is not None else None
        if chosen_by is not None and self.upper is not None and self.upper.sign != self._wanted:
            if not self._is_alone(several, chosen_by.program(of_upper), answer.chosen):
                return None
            below = [tangent[: len(thetas)] for tangent in tangents]
            pair = self._response(answer, thetas, answer.chosen).of_vertex(seed, below)
            return self._told(answer.program, pair, answer.chosen, thetas, of_upper)
        if self.selection is None and answer.program.width + len(answer.program.b) > FOLLOWED:
            return None
        response = ChosenResponse(self.form, chosen_by, several, len(thetas))
        return response.pull(answer.chosen, thetas, of_upper, seed, tangents)


def _capacity(program: ConvexProgram, before: ConvexProgram | None) -> int:
    """How many answers with such programs are kept; each also has the absolute values of matrices that it does not share."""
    shared = () if before is None else (before.p, before.a)
    own = [part for part in (program.p, program.a) if not any(part is other for other in shared)]
    numbers = sum(part.size if is_dense(part) else part.nnz for part in own) + 2 * (program.width + len(program.b))
    return int(np.clip(SCALARS // (1 + 2 * numbers), 4, KEPT))


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


SHORT = 1e-5  # of the level's size, a weight of y's length beside its forces: with more, what these barely decide is lost to rounding
FAINT = 1e-9  # of the forces, from which a row has a multiplier


@dataclass(frozen=True, eq=False)
class ChosenResponse:
    """Of one of ``several`` solutions of ``form``, whose theta has ``count`` parts, by a cost ``chosen_by`` or by the length of y."""

    form: LevelForm
    chosen_by: LevelForm | None
    several: AllSolutions
    count: int

    @cached_property
    def short(self) -> float:
        """A weight of the length of y that suits the level."""
        return SHORT * (largest(self.several.program.p) or largest(self.several.program.a) or 1.0)

    def pull(
        self, chosen: ProgramSolution, thetas: Thetas, of_upper: Thetas, seed: np.ndarray, tangents: list[Thetas]
    ) -> Thetas | None:
        """The gradient of seed'y in theta and in theta of the upper objective; None where there is none."""
        both = [*thetas, *of_upper]
        program = self.conditions(both)
        guess = self._guess(program, chosen)
        if guess is None:
            return None
        response = ProgramResponse(self.conditions, both, program, guess, has_edges=False)  # rows may get multipliers
        pair = response.adjoint(seed, tangents, True)
        return None if pair is None else self._shared(pair, guess, thetas, of_upper)

    def conditions(self, both: Thetas) -> ConvexProgram:
        """The program of (u, t, z_J) in the head of this file."""
        strong, level = self.several.strong, self.form.program(both[: self.count])
        cost = self.chosen_by.program(both[self.count :]) if self.chosen_by is not None else None
        width, held, extra = level.width, int(strong.sum()), 0 if cost is None else cost.width - cost.size
        total = width + extra + held
        rows = level.a
        if cost is None:
            p = diagonal(np.where(np.arange(total) < level.size, self.short, 0.0), level.p)
            wide = ConvexProgram.of(p, np.zeros(total), zeros(0, total, rows), np.zeros(0), [])
        else:
            wide = widened(cost, width, total)
        force = hstack([level.p, zeros(width, extra, rows), -rows[strong].T])
        others = [hstack([rows[some], zeros(int(some.sum()), extra + held, rows)]) for some in (strong, ~strong)]
        a = vstack([force, *others, wide.a])
        b = np.concatenate([level.q, level.b[strong], level.b[~strong], wide.b])
        return replace(wide, a=a, b=b, cones=rows_of(width + held, len(level.b) - held, wide.cones), size=level.size)

    def _guess(self, program: ConvexProgram, chosen: ProgramSolution) -> ProgramSolution | None:
        """What is chosen as a solution of those conditions, with multipliers."""
        several, level, strong = self.several, self.several.program, self.several.strong
        width, held = level.width, int(strong.sum())
        pinned = several.pinned[0].shape[0]
        z = np.zeros(len(program.b))
        if level.is_map:  # what is chosen has its own multipliers
            found = polished(program, np.concatenate([chosen.u, chosen.z[strong]]), z)
            own = found.u[len(chosen.u) :] * level.sizes[strong]
            kept = own[level.loose[strong]] > FAINT * level.force_size(chosen.u, chosen.z)
            return found if found.solved and kept.all() else None
        own = chosen.z * (self.short if self.chosen_by is None else 1.0)
        loose = len(level.b) - held
        z[width + held : width + held + loose] = own[pinned : pinned + loose]
        z[width + held + loose :] = own[pinned + loose :]
        u = np.concatenate([chosen.u, several.answer.z[strong]])
        found = polished(program, u, z)
        return found if found.solved else None

    def _shared(self, pair: Adjoint, guess: ProgramSolution, thetas: Thetas, of_upper: Thetas) -> Thetas:
        """What a pair of those conditions says, in theta of the level and of the cost.

        Its b multiplies the level's conditions; its a moves u and z_J, in which these are linear, beside multipliers in z.
        """
        strong, chosen_by = self.several.strong, self.chosen_by
        width, ends = self.several.program.width, self.several.program.width + len(strong)
        cost = None if chosen_by is None else chosen_by.program(of_upper)
        first = width if cost is None else width + cost.width - cost.size

        def of_rows(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            out = np.zeros(len(strong))
            out[np.append(np.flatnonzero(strong), np.flatnonzero(~strong))] = part[width:ends]
            return part[:width], out

        def multipliers(part: np.ndarray) -> np.ndarray:
            out = np.zeros(len(strong))
            out[strong] = part[first:]
            return out

        u, a = guess.u, pair.a
        of_z, still = of_rows(-pair.z), np.zeros(len(u))
        said = [
            self.form.pull(thetas, Adjoint(*seeds, multipliers(at)), at[:width])
            for seeds, at in ((of_rows(pair.b), u), (of_z, a), (of_z, still))
        ]
        found = [one + other - less for one, other, less in zip(*said)]
        if chosen_by is None or cost is None:
            return [*found, *map(np.zeros_like, of_upper)]
        place = places(cost, width)
        return [*found, *chosen_by.pull(of_upper, Adjoint(a[place], pair.b[ends:], pair.z[ends:]), u[place])]


def widened(cost: ConvexProgram, width: int, total: int) -> ConvexProgram:
    """A cost of y as one of a longer u, of ``total`` entries, where its own bounds come after ``width`` others."""
    place = places(cost, width)
    p, q = placed(cost.p, place, place, (total, total)), np.zeros(total)
    q[place] = cost.q
    a = placed(cost.a, np.arange(len(cost.b)), place, (len(cost.b), total))
    smooth = None if cost.smooth is None else cost.smooth.placed(place, total)
    return ConvexProgram(p, q, a, cost.b, cost.cones, cost.size, p, smooth)


def places(cost: ConvexProgram, width: int) -> np.ndarray:
    """Where a cost's (y, bounds) are beside u."""
    return np.concatenate([np.arange(cost.size), width + np.arange(cost.width - cost.size)])
