"""A lower level on the host: what DAQP, Clarabel and Newton's method need of it at (x, owner), and what they answer.

An owner is told by an index (a client's, for averages over its data) and by its own constants. The cost is split into what is
smooth in y, of which values and derivatives are taken as they are, and what goes into the standard form.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from hierfl.analysis.enclosure import Enclosure
from hierfl.analysis.hoist import hoist
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.compiler.expressions.program import Program
from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cone_solution import ALIKE, FAILED, ONE, SEVERAL, SOLVED, TWISTED, UNKNOWN, ConeSolution
from hierfl.compiler.host.newton import NewtonMethod
from hierfl.compiler.host.program_family import ProgramFamily
from hierfl.compiler.host.sensitivity import Sensitivity
from hierfl.compiler.host.solution_set import SolutionSet
from hierfl.compiler.host.standard_form import NONNEGATIVE, SEMIDEFINITE, ZERO, Cone, StandardForm
from hierfl.compiler.lower_level.on_host.cost_split import split_cost
from hierfl.compiler.lower_level.on_host.owner_terms import OwnerTerms
from hierfl.compiler.lower_level.on_host.place import Place, stacked
from hierfl.compiler.lower_level.on_host.traced_model import TracedModel
from hierfl.compiler.lower_level.quadratic_part import QuadraticPart
from hierfl.compiler.lower_level.smoothness import nonsmooth_atom
from hierfl.compiler.oracles import Oracles
from hierfl.errors import NotConvexError
from hierfl.jaxtools.by_numpy.numpy_program import NumpyProgram
from hierfl.language.levels import LowerLevel, averages_of

ROUGH, FAR = 1e-13, 1e3  # an error, and a size beside that of x, from which an infimum may not be attained
KEPT = 4096  # solutions, so that a derivative does not solve again
TOGETHER = (8, 64, 512)  # how many models are evaluated at once


@dataclass(frozen=True, eq=False)
class HostProblem:
    """One problem's lower level: its standard form, and what is evaluated as it is."""

    traced: TracedModel
    affine: bool
    selection: str | None = None
    convex: bool = True  # declared so, by CVXPY's rules; a variational inequality is not
    _programs: dict[Any, NumpyProgram] = field(default_factory=dict)
    _kept: dict[Any, tuple[ConeProgram, ConeSolution]] = field(default_factory=dict)

    @classmethod
    def of(cls, oracles: Oracles, level: LowerLevel) -> HostProblem:
        """Split the cost, and reduce what is not smooth, with the constraints, to a standard form.

        Raises
        ------
        NoStandardFormError
            Where a cone is needed that is not among the standard form's.
        """
        known, selection = oracles.declaration.known_bounds, getattr(level, "selection", None)
        constraints = [*level.constraints, *attribute_constraints(level.variables)]
        if level.kind == "equilibrium":
            form = StandardForm.of(None, constraints, level.variables, known)
            affine = all(e.is_affine() for e in hoist(level.expressions, level.variables, known).expressions)
            from_data = any(True for e in level.expressions for _ in averages_of(e))
            part = QuadraticPart(Program(level.expressions), None, affine, from_data)
            return cls(TracedModel(form, OwnerTerms(oracles, part)), affine, convex=False)
        quadratic, smooth, other = split_cost(level, known)
        cost = None if not other else level.sign * sum(other[1:], start=other[0])
        form = StandardForm.of(cost, constraints, level.variables, known)
        taken = [*quadratic, *smooth]
        program = Program([sum(taken[1:], start=taken[0])]) if taken else None
        part = QuadraticPart(program, level.sign, not smooth, any(True for t in taken for _ in averages_of(t)))
        steep = any(
            nonsmooth_atom([term], {v.id for v in level.variables}, Enclosure(known)) is not None for term in smooth
        )
        return cls(TracedModel(form, OwnerTerms(oracles, part, steep)), not smooth, selection)

    @property
    def form(self) -> StandardForm:
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

    def solved(self, place: Place, start: np.ndarray | None = None) -> tuple[ConeProgram, ConeSolution]:
        """(the quadratic model at the solution, the solution); the last few are kept."""
        key = place.key
        if key not in self._kept:
            program, answer = self._affine(place) if self.affine else self._smooth(place, start)
            self._keep(place, program, answer)
        return self._kept[key]

    def solve_each(self, asked: Sequence[Place], starts: Sequence[np.ndarray]) -> list[ConeSolution]:
        """The solutions at many places: neighbours that hold the same rows are solved together."""
        if not self.affine or len(asked) < 2:
            return [self.solve(place, start) for place, start in zip(asked, starts)]
        keys = [place.key for place in asked]
        answers = {key: self._kept[key][1] for key in keys if key in self._kept}
        new = [(key, place) for key, place in dict(zip(keys, asked)).items() if key not in answers]
        for first in range(0, len(new), TOGETHER[-1]):
            some = new[first : first + TOGETHER[-1]]
            answers |= zip((key for key, _ in some), self._solved_together([place for _, place in some]))
        return [answers[key] for key in keys]

    def _solved_together(self, asked: Sequence[Place]) -> list[ConeSolution]:
        """The solutions of up to as many as are evaluated at once; they are kept."""
        count = next(size for size in TOGETHER if size >= len(asked))
        together, axes = stacked([*asked, *[asked[-1]] * (count - len(asked))])
        program = self._program(
            ("models", count, *axes.own.items()), jax.vmap(self.traced.model, tuple(axes)), together
        )
        models = [model[: len(asked)] for model in program(*together)]
        family = ProgramFamily.of(models, self.form.cones, self.form.bounds, self.form.size)
        return [self._keep(place, family[k], answer) for k, (place, answer) in enumerate(zip(asked, family.solve()))]

    def _keep(self, place: Place, program: ConeProgram, answer: ConeSolution) -> ConeSolution:
        """The answer that is meant, kept."""
        while len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        if self._drifts(place, program, answer):
            answer = replace(answer, status=FAILED)
        chosen = self._chosen(place, program, answer) if answer.status == SOLVED else answer
        self._kept[place.key] = program, chosen
        return chosen

    # --- ties --------------------------------------------------------------------------------------------------------

    def _chosen(self, place: Place, program: ConeProgram, answer: ConeSolution) -> ConeSolution:
        """The answer, or of several the one that is meant: the shortest y where nothing else is declared."""
        several = SolutionSet(program, answer, self.form.size)
        if not (self.convex or several.is_monotone):
            return replace(answer, unique=TWISTED)
        if not (self.convex or self.affine):  # what is monotone here need not be so elsewhere
            return replace(answer, unique=UNKNOWN)
        if answer.unique == ONE or several.is_one:
            return replace(answer, unique=ONE)
        if not (self.affine and program.polyhedral):
            return answer
        shortest = several.least_norm()
        if shortest.status != SOLVED:
            return shortest
        gradients = [self._upper_at(place, end.u)[0] for end in (answer, shortest)]
        unique = SEVERAL if several.tells_apart(gradients) else ALIKE
        if unique == SEVERAL and self.selection is not None:
            shortest = several.chosen(self._selected(place, several, shortest.u))
        return replace(shortest, unique=unique)

    def _selected(self, place: Place, several: SolutionSet, start: np.ndarray) -> ConeSolution:
        """The best, or the worst, solution for the upper objective."""
        width, size = self.form.width, self.form.size
        sign = 1.0 if self.selection == "optimistic" else -1.0

        def force(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            gradient, hessian = self._upper_at(place, u)
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

    def _upper_at(self, place: Place, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(gradient, Hessian) in y of the upper objective at u."""
        zero = np.zeros(self.form.size)
        program = self._program("upper", self.traced.upper_slopes, place, zero)
        gradient, hessian = program(*place, u[: self.form.size])
        return gradient, hessian

    def _affine(self, place: Place) -> tuple[ConeProgram, ConeSolution]:
        h, g, a, b = self._program("model", self.traced.model, place)(*place)
        program = ConeProgram(h, g, a, b, self.form.cones, self.form.bounds)
        return program, program.solve()

    def _drifts(self, place: Place, program: ConeProgram, answer: ConeSolution) -> bool:
        """Whether a far y without curvature solves the conditions roughly only: interior points stop on the way to infinity."""
        if not self.affine or answer.status != SOLVED or program.polyhedral or answer.error <= ROUGH:
            return False
        size = self.form.size
        far = np.abs(answer.u[:size]).max(initial=0.0) > FAR * (1.0 + np.abs(place.x).max(initial=0.0))
        return bool(far and np.linalg.eigvalsh(program.h[:size, :size]).min(initial=0.0) <= 0.0)

    def _smooth(self, place: Place, start: np.ndarray | None) -> tuple[ConeProgram, ConeSolution]:
        curved, linear, a, b = self._program("cone model", self.traced.cone_model, place)(*place)
        force = self._program("force", self.traced.force, place, np.zeros(self.form.size))
        size = self.form.size

        def whole(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value, slope = force(*place, u[:size])
            h = np.array(curved)
            h[:size, :size] += slope
            g = curved @ u + linear
            g[:size] += value
            return g, h

        answer = ConeSolution(np.full(self.form.width, np.nan), np.full(len(b), np.nan), np.inf, FAILED)
        for first in self._starts(start, a, b):
            if first.status != SOLVED:
                return self._empty_model(a, b), first
            answer = NewtonMethod(whole, a, b, self.form.cones, size, self.terms.interior).solve(first.u)
            if answer.status == SOLVED:
                break
        if answer.status != SOLVED:
            return self._empty_model(a, b), answer
        force_there, slope_there = whole(answer.u)
        return ConeProgram(slope_there, force_there - slope_there @ answer.u, a, b, self.form.cones), answer

    def _empty_model(self, a: np.ndarray, b: np.ndarray) -> ConeProgram:
        width = self.form.width
        return ConeProgram(np.eye(width), np.zeros(width), a, b, self.form.cones, self.form.bounds)

    def _starts(self, start: np.ndarray | None, a: np.ndarray, b: np.ndarray) -> Any:
        """Feasible points: the nearest to where one starts, then others, of which one may be where F is finite."""
        size, width = self.form.size, self.form.width
        weights = np.diag(np.concatenate([np.ones(size), np.full(width - size, 1e-6)]))
        wanted = [np.zeros(size) if start is None else start, np.ones(size), np.full(size, 0.1), -np.ones(size)]
        for point in wanted:
            g = -weights @ np.concatenate([point, np.zeros(width - size)])
            yield ConeProgram(weights, g, a, b, self.form.cones, self.form.bounds).solve()
        if self.form.polyhedral and len(b) > self.form.equations:
            yield self._inside(a, b)
        for far in (
            10.0,
            1e2,
            1e3,
            -10.0,
            -1e2,
            -1e3,
        ):  # where the objective is defined, but for constraints, is not known
            g = -weights @ np.concatenate([np.full(size, far), np.zeros(width - size)])
            yield ConeProgram(weights, g, a, b, self.form.cones, self.form.bounds).solve()

    def _inside(self, a: np.ndarray, b: np.ndarray) -> ConeSolution:
        """A point at which all rows are slack, by as much as 1 in their own lengths, where there is one."""
        sizes = np.linalg.norm(a, axis=1) * (np.arange(len(b)) >= self.form.equations)
        width = a.shape[1]
        rows = np.block([[a, -sizes[:, None]], [np.zeros((1, width)), -np.ones((1, 1))]])
        weights = np.diag(np.append(np.full(width, 1e-6), 0.0))
        cones = [*self.form.cones, Cone(NONNEGATIVE, 1)]
        found = ConeProgram(weights, np.append(np.zeros(width), -1.0), rows, np.append(b, 1.0), cones).solve()
        return replace(found, u=found.u[:width], z=found.z[:-1])

    # --- derivatives ---------------------------------------------------------------------------------------------------

    def pull(self, place: Place, seed: np.ndarray) -> Float[np.ndarray, " n"]:
        """The gradient in x of seed'y(x); NaN where it does not exist."""
        program, answer = self.solved(place)
        if answer.status != SOLVED:
            return np.full(len(place.x), np.nan)
        if answer.unique == SEVERAL:
            return self._pull_of_selected(place, program, answer, seed)
        width, height, size = self.form.width, self.form.height, len(place.x)
        u, z = answer.u, answer.z
        n, m = np.zeros(width), np.zeros(height)
        push = self._program("push", self.traced.push, place, n, m, np.zeros(size))
        pull = self._program("pull", self.traced.pull, place, n, m, n, m)
        units = program.units

        def pushed(z: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            force, moved = push(*place, u, z, r)
            return units * force, moved

        look = Sensitivity(
            program.in_units(units), u / units, z, pushed, lambda z, v, w: pull(*place, u, z, units * v, w), size
        )
        return look.gradient(units * np.concatenate([seed, np.zeros(width - len(seed))]))

    def pull_each(self, asked: Sequence[Place], seeds: Sequence[np.ndarray]) -> list[Float[np.ndarray, " n"]]:
        """The gradients at many places: those beyond doubt together, each of the others by itself."""
        keys = [(place.key, seed.tobytes()) for place, seed in zip(asked, seeds)]
        new = dict(zip(keys, zip(asked, seeds)))
        self.solve_each([place for place, _ in new.values()], [np.zeros(self.form.size)] * len(new))
        told = list(new.items())
        gradients: dict[Hashable, np.ndarray] = {}
        for first in range(0, len(told), TOGETHER[-1]):
            some = told[first : first + TOGETHER[-1]]
            pulled = self._pulled_together([seeded for _, seeded in some])
            gradients |= {some[k][0]: gradient for k, gradient in pulled.items()}
        for key, (place, seed) in told:
            if key not in gradients:
                gradients[key] = self.pull(place, seed)
        return [gradients[key] for key in keys]

    def _pulled_together(self, asked: Sequence[tuple[Place, np.ndarray]]) -> dict[int, np.ndarray]:
        """The gradients, by place in the sequence, of those whose derivative is beyond doubt."""
        solved = [self.solved(place) for place, _ in asked]
        good = [k for k, (_, answer) in enumerate(solved) if answer.status == SOLVED and answer.unique != SEVERAL]
        if len(good) < 2 or any(cone.kind == SEMIDEFINITE for cone in self.form.cones):
            return {}
        programs, answers = zip(*(solved[k] for k in good))
        if any((program.units != 1.0).any() for program in programs):
            return {}
        stacks = map(np.stack, zip(*((p.h, p.g, p.a, p.b) for p in programs)))
        family = ProgramFamily.of(stacks, self.form.cones, self.form.bounds, self.form.size)
        u, z = np.stack([answer.u for answer in answers]), np.stack([answer.z for answer in answers])
        seeds = np.zeros_like(u)
        seeds[:, : self.form.size] = [asked[k][1] for k in good]
        sure, v, w = family.adjoints(u, z, seeds)
        taken = np.flatnonzero(sure)
        if not len(taken):
            return {}
        count = next(size for size in TOGETHER if size >= len(taken))
        padded = np.concatenate([taken, np.repeat(taken[-1:], count - len(taken))])
        place, axes = stacked([asked[good[k]][0] for k in padded])
        there = (u[padded], z[padded], v[padded], w[padded])
        pull = jax.vmap(self.traced.pull, (*axes, 0, 0, 0, 0))
        pulled = self._program(("pulls", count, *axes.own.items()), pull, place, *there)(*place, *there)
        return {good[k]: -pulled[at] for at, k in enumerate(taken)}

    def _pull_of_selected(
        self, place: Place, program: ConeProgram, answer: ConeSolution, seed: np.ndarray
    ) -> Float[np.ndarray, " n"]:
        """The gradient where y is chosen among the solutions of a linear program; NaN elsewhere."""
        size, n = self.form.size, len(place.x)
        if self.selection is None or program.h.any():
            return np.full(n, np.nan)
        sign = 1.0 if self.selection == "optimistic" else -1.0
        several = SolutionSet(program, answer, size)
        order = np.concatenate([np.flatnonzero(several.strong), np.flatnonzero(~several.strong)])
        count = int(several.strong.sum())
        cones = [Cone(ZERO, count), Cone(NONNEGATIVE, len(order) - count)]
        gradient, hessian = self._upper_at(place, answer.u)
        h, g = np.zeros_like(program.h), np.zeros_like(program.g)
        h[:size, :size], g[:size] = sign * hessian, sign * gradient
        among = ConeProgram(h, g - h @ answer.u, program.a[order], program.b[order], cones)
        chosen = among.solve()
        if chosen.status != SOLVED:
            return np.full(n, np.nan)
        width, height = self.form.width, self.form.height
        zero, rows, signed = np.zeros(width), np.zeros(height), np.asarray(sign)
        push = self._program("push selected", self.traced.push_selected, place, zero, rows, np.zeros(n), signed)
        pull = self._program("pull selected", self.traced.pull_selected, place, zero, rows, zero, rows, signed)

        def full(part: np.ndarray) -> np.ndarray:
            out = np.zeros(height)
            out[order] = part
            return out

        def pushed(z: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            force, moved = push(*place, chosen.u, full(z), r, signed)
            return force, moved[order]

        look = Sensitivity(
            among, chosen.u, chosen.z, pushed, lambda z, v, w: pull(*place, chosen.u, full(z), v, full(w), signed), n
        )
        return look.gradient(np.concatenate([seed, np.zeros(width - len(seed))]))

    def _program(self, name: Hashable, function: Callable[..., Any], place: Place, *more: np.ndarray) -> NumpyProgram:
        """The function as a program of NumPy's, made once."""
        if name not in self._programs:
            with jax.enable_x64(True):
                self._programs[name] = NumpyProgram(function, *place, *more)
        return self._programs[name]


def _not_convex(selection: str) -> str:
    bends = "convex" if selection == "optimistic" else "concave"
    return (
        f"selection={selection!r} chooses among several lower solutions by a convex program, for which the upper objective has to be "
        f"{bends} in y: here it is not. Write an upper objective that is, or a lower level with one solution."
    )
