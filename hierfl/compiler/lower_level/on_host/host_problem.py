"""A lower level on the host: what DAQP, Clarabel and Newton's method need of it at (x, owner), and what they answer.

What an owner holds is handed over with every question, and what is kept is kept by its content. The cost is split into what is
smooth in y, of which values and derivatives are taken as they are, and what goes into the standard form.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from hierfl.analysis.enclosure import Enclosure
from hierfl.analysis.hoist import hoist
from hierfl.analysis.variable_bounds import bounds_of
from hierfl.compiler.expressions.program import Program
from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cone_solution import ALIKE, FAILED, ONE, SEVERAL, SOLVED, TWISTED, UNKNOWN, ConeSolution
from hierfl.compiler.host.distance_bound import distance_bound
from hierfl.compiler.host.families.held_systems import HeldSystems
from hierfl.compiler.host.families.program_family import ProgramFamily
from hierfl.compiler.host.smooth.newton import NewtonMethod
from hierfl.compiler.host.solution_set import SolutionSet
from hierfl.compiler.host.standard_form import StandardForm
from hierfl.compiler.lower_level.on_host.averaged_form import AveragedForm
from hierfl.compiler.lower_level.on_host.cost_split import CostSplit
from hierfl.compiler.lower_level.on_host.host_gradients import HostGradients
from hierfl.compiler.lower_level.on_host.owner_terms import OwnerTerms
from hierfl.compiler.lower_level.on_host.place import Place, Places
from hierfl.compiler.lower_level.on_host.place_programs import TOGETHER, PlacePrograms
from hierfl.compiler.lower_level.on_host.size_power import has_roots
from hierfl.compiler.lower_level.on_host.smooth_level import SmoothLevel, Solved
from hierfl.compiler.lower_level.on_host.traced_model import TracedModel
from hierfl.compiler.lower_level.quadratic_part import QuadraticPart
from hierfl.compiler.lower_level.smoothness import has_pieces, nonsmooth_atom
from hierfl.compiler.oracles import Oracles
from hierfl.compiler.party_constraints import lower_constraints
from hierfl.errors import NotConvexError
from hierfl.language.levels import LowerLevel, averages_of

ROUGH, FAR = 1e-13, 1e3  # an error, and a size beside that of x, from which an infimum may not be attained
KEPT = 512, 16_384  # solutions, least and most, so that a derivative does not solve again
SCALARS = 20_000_000  # that are kept with them, or looked at at once


@dataclass(frozen=True, eq=False)
class HostProblem:
    """One problem's lower level: its standard form, and what is evaluated as it is."""

    traced: TracedModel
    affine: bool
    selection: str | None = None
    convex: bool = True  # declared so, by CVXPY's rules; a variational inequality is not
    bends: bool = False  # the cost has second derivatives that jump: definite at y, it may be flat beside it
    programs: PlacePrograms = field(default_factory=PlacePrograms)
    _kept: OrderedDict[bytes, Solved] = field(default_factory=OrderedDict)
    _latest: list[HeldSystems] = field(default_factory=list)  # of the last places' programs; one at most

    @classmethod
    def of(cls, oracles: Oracles, level: LowerLevel) -> HostProblem:
        """Split the cost, and reduce what is not smooth, with the constraints, to a standard form.

        Raises
        ------
        NoStandardFormError
            Where a cone is needed that is not among the standard form's.
        """
        known, selection = oracles.declaration.known_bounds, getattr(level, "selection", None)
        constraints = lower_constraints(oracles.declaration)
        if level.kind == "equilibrium":
            rows = StandardForm.of(None, constraints, level.variables, known)
            affine = all(e.is_affine() for e in hoist(level.expressions, level.variables, known).expressions)
            from_data = any(True for e in level.expressions for _ in averages_of(e))
            part = QuadraticPart(Program(level.expressions), None, affine, from_data)
            return cls(TracedModel(rows, OwnerTerms(oracles, part)), affine, convex=False)
        on_y = {**known, **bounds_of(constraints, level.variables, known)}  # some terms are smooth there alone
        clients = oracles.static_data.clients
        split = CostSplit.of(level, clients, known, on_y)
        weight = level.sign * (oracles.total_weight if level.scope == "federation" else 1.0)
        base = split.base_form(level, constraints, weight, known)
        form = base if not split.averaged else AveragedForm(base, split.row_terms(oracles, level))
        smooth = split.smooth
        taken = [*split.quadratic, *smooth]
        program = Program([sum(taken[1:], start=taken[0])]) if taken else None
        part = QuadraticPart(program, level.sign, not smooth, any(True for t in taken for _ in averages_of(t)))
        steep = any(
            nonsmooth_atom([term], {v.id for v in level.variables}, Enclosure(on_y), clients.scalar_laws) is not None
            for term in smooth
        )
        bends = any(has_pieces(term, clients.scalar_laws) for term in (*smooth, *(one.cost for one in split.raised)))
        interior = steep or any(one.interior for one in split.raised)
        roots = any(map(has_roots, smooth)) or any(one.roots for one in split.raised)
        traced = TracedModel(form, OwnerTerms(oracles, part, steep), interior, roots)
        return cls(traced, not (smooth or split.raised), selection, bends=bends)

    @property
    def form(self) -> StandardForm | AveragedForm:
        """What of the lower level is rows and cones."""
        return self.traced.form

    @property
    def terms(self) -> OwnerTerms:
        """What of it is evaluated as it is."""
        return self.traced.terms

    # --- the solution ------------------------------------------------------------------------------------------------

    def solve(self, place: Place, start: np.ndarray | None = None) -> ConeSolution:
        """u and its multipliers; see ``ConeSolution``."""
        return self.solved(place, start)[1]

    def solved(self, place: Place, start: np.ndarray | None = None) -> Solved:
        """(the quadratic model at the solution, the solution); the last few are kept."""
        key = place.key
        known = self._kept.get(key)
        if known is not None:
            return known
        program, answer = self._affine(place) if self.affine else self._smooth.solve(place, start)
        return program, self._keep(key, place, program, answer)

    def error_bound(self, place: Place, modulus: float) -> float:
        """A bound on ||y - y(x)||; infinite where none is proved."""
        program, answer = self.solved(place)
        if answer.status != SOLVED:
            return np.inf
        u = answer.u[: self.traced.reach]
        costs = self.programs.of("cost sizes", self.traced.cost_sizes, place, u)(*place.parts, u)
        return distance_bound(program, answer.u, answer.z, modulus, self.form.size, np.asarray(costs))

    def solve_each(self, asked: Places, starts: np.ndarray) -> list[ConeSolution]:
        """The solutions at many places, from starts (k, size): neighbours that hold the same rows are solved together."""
        keys = asked.keys
        answers = {key: known[1] for key in keys if (known := self._kept.get(key)) is not None}
        new = list({key: k for k, key in enumerate(keys) if key not in answers}.values())
        if len(new) == len(asked) <= self.together:
            return self._solved_together(asked, starts)
        for first in range(0, len(new), self.together):
            some = new[first : first + self.together]
            answers |= zip((keys[k] for k in some), self._solved_together(asked.among(some), starts[some]))
        return [answers[key] for key in keys]

    def _solved_together(self, asked: Places, starts: np.ndarray) -> list[ConeSolution]:
        """The solutions of up to as many as are evaluated at once; they are kept."""
        if len(asked) == 1:
            return [self.solve(asked[0], starts[0])]
        if self.affine:
            models = self.programs.at_each("models", self.traced.model, asked)
            family = self.family(models)
            solved = [(family[k], answer) for k, answer in enumerate(family.solve())]
        else:
            solved = self._smooth.solve_each(asked, starts)
        return [
            self._store(key, program, answer)
            if self._proves_one and answer.unique == ONE and answer.error <= ROUGH
            else self._keep(key, asked[k], program, answer)
            for k, (key, (program, answer)) in enumerate(zip(asked.keys, solved))
        ]

    def family(self, models: Iterable[np.ndarray]) -> ProgramFamily:
        """The programs of stacks (H, g, A, b); where H and A are those of the last ones, with what is known of these."""
        form = self.form
        known = next(iter(self._latest), None)
        family = ProgramFamily.of(models, form.cones, form.bounds, form.size, known)
        self._latest[:] = [family.systems]
        return family

    @cached_property
    def _capacity(self) -> int:
        """How many solutions are kept, with the matrices of their models."""
        return int(np.clip(SCALARS // self._model_size, *KEPT))

    @cached_property
    def together(self) -> int:
        """How many places are looked at at once: their models have to fit in memory, with what is computed on the way."""
        return max((count for count in TOGETHER if count * self._model_size <= SCALARS), default=1)

    @property
    def _model_size(self) -> int:
        """The scalars of a model's matrices."""
        return 1 + self.form.width * (self.form.width + self.form.height)

    @cached_property
    def gradients(self) -> HostGradients:
        """How the solutions move with x."""
        return HostGradients(self)

    @cached_property
    def _smooth(self) -> SmoothLevel:
        return SmoothLevel(self.traced, self.programs)

    def known(self, key: bytes) -> Solved | None:
        """What is kept of a place's key."""
        return self._kept.get(key)

    def _keep(self, key: bytes, place: Place, program: ConeProgram, answer: ConeSolution) -> ConeSolution:
        """The answer that is meant, kept."""
        if self._drifts(place, program, answer):
            answer = replace(answer, status=FAILED)
        chosen = self._chosen(place, program, answer) if answer.status == SOLVED else answer
        return self._store(key, program, chosen)

    def _store(self, key: bytes, program: ConeProgram, answer: ConeSolution) -> ConeSolution:
        """The answer, kept as it is."""
        self._kept[key] = program, answer
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)  # in one piece, whatever other threads do
        return answer

    # --- ties --------------------------------------------------------------------------------------------------------

    def _chosen(self, place: Place, program: ConeProgram, answer: ConeSolution) -> ConeSolution:
        """The answer, or of several the one that is meant: the shortest y where nothing else is declared."""
        if self._proves_one and answer.unique == ONE:
            return answer
        several = SolutionSet(program, answer, self.form.size)
        if not (self.convex or several.is_monotone):
            return replace(answer, unique=TWISTED)
        if not (self.convex or self.affine):  # what is monotone here need not be so elsewhere
            return replace(answer, unique=UNKNOWN)
        if self.bends:
            return replace(answer, unique=UNKNOWN)
        if answer.unique == ONE or several.is_one:
            return replace(answer, unique=ONE)
        if several.is_one is None or not self.affine:
            return replace(answer, unique=UNKNOWN)
        if self.selection is not None and several.tells_apart([self.upper_at(place, answer.u)[0]]):
            return replace(several.chosen(self._selected(place, several, answer.u)), unique=SEVERAL)
        shortest = several.least_norm()
        if shortest.status != SOLVED:
            return shortest
        if not place.held.tells_upper:  # whether the choice matters is not known
            return replace(shortest, unique=UNKNOWN)
        gradients = [self.upper_at(place, end.u)[0] for end in (answer, shortest)]
        unique = SEVERAL if several.tells_apart(gradients) else ALIKE
        if unique == SEVERAL and self.selection is not None:
            shortest = several.chosen(self._selected(place, several, shortest.u))
        return replace(shortest, unique=unique)

    @property
    def _proves_one(self) -> bool:
        """Whether curvature at an answer proves that there is no other."""
        return self.convex and not self.bends

    def _selected(self, place: Place, several: SolutionSet, start: np.ndarray) -> ConeSolution:
        """The best, or the worst, solution for the upper objective."""
        width, size = self.form.width, self.form.size
        sign = 1.0 if self.selection == "optimistic" else -1.0

        def force(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            gradient, hessian = self.upper_at(place, u)
            g, h = np.zeros(width), np.zeros((width, width))
            g[:size], h[:size, :size] = sign * gradient, sign * hessian
            if hessian.any() and np.linalg.eigvalsh(h[:size, :size]).min() < -1e-9 * np.abs(h).max():
                raise NotConvexError(_not_convex(str(self.selection)))
            return g, h

        g, h = force(start)
        among = several.restricted(h, g - h @ start)
        if not h.any():
            return among.solve()
        return NewtonMethod(force, among.a, among.b, among.cones, size).solve(start)

    def upper_at(self, place: Place, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(gradient, Hessian) in y of the upper objective at u."""
        zero = np.zeros(self.form.size)
        program = self.programs.of("upper", self.traced.upper_slopes, place, zero)
        gradient, hessian = program(*place.parts, u[: self.form.size])
        return gradient, hessian

    def _affine(self, place: Place) -> tuple[ConeProgram, ConeSolution]:
        h, g, a, b = self.programs.of("model", self.traced.model, place)(*place.parts)
        program = ConeProgram(h, g, a, b, self.form.cones, self.form.bounds)
        return program, program.solve()

    def _drifts(self, place: Place, program: ConeProgram, answer: ConeSolution) -> bool:
        """Whether a far y without curvature solves the conditions roughly only: interior points stop on the way to infinity."""
        if not self.affine or answer.status != SOLVED or answer.error <= ROUGH or program.polyhedral:
            return False
        size = self.form.size
        far = np.abs(answer.u[:size]).max(initial=0.0) > FAR * (1.0 + np.abs(place.x).max(initial=0.0))
        return bool(far and np.linalg.eigvalsh(program.h[:size, :size]).min(initial=0.0) <= 0.0)


def _not_convex(selection: str) -> str:
    bends = "convex" if selection == "optimistic" else "concave"
    return (
        f"selection={selection!r} chooses among several lower solutions by a convex program, for which the upper objective has to be "
        f"{bends} in y: here it is not. Write an upper objective that is, or a lower level with one solution."
    )
