"""``problem.reference(certificate="global")``: an optimum with a bound, and the lower level solved again where it is.

Branch and bound goes over the single-level program, where it does not end at once from a point that a short local search has found. What it ends with is no answer yet: what
holds there is met to rounding, the problem's own exact solver is asked for y at that x, and f computed from it. Where the lower level is tied, y
is the solution next to the program's. Only if that f is the program's, and no violation of its rows within SCIP's tolerance could undo the bound, is
this called proved: where only complementarity is not linear the rows are opened by it from the start, elsewhere they are searched once more.
Optimality conditions need a constraint qualification where the lower level is curved. Wherever it fails another search bounds f, from below.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from hierfl.compiler.compiled_problem import CompiledProblem, penalised_problem
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.parametric.level_solver import LevelAnswer
from hierfl.compiler.programs.all_solutions import AllSolutions
from hierfl.compiler.programs.convex_program import SEVERAL
from hierfl.compiler.programs.saddle import Saddle
from hierfl.compiler.programs.small_and_sparse import diagonal
from hierfl.compiler.programs.solve_program import polished, solve_program
from hierfl.compiler.starting_points import box_around, on_upper_set, sobol_points, start_point
from hierfl.compiler.violations import Violations
from hierfl.errors import (
    HierflError,
    IncompatibleSolverError,
    InfeasibleError,
    LowerLevelError,
    MissingPackageError,
    SettingError,
)
from hierfl.inspect.argument_checks import is_number
from hierfl.inspect.implicit.multipliers import answers_of, multipliers_at
from hierfl.inspect.implicit.reference import FINAL, GAP, PROVED, LocalSearch, Reference, convex_reference
from hierfl.inspect.proved import scip
from hierfl.inspect.proved.single_level import SingleLevel
from hierfl.jaxtools.interruption import CutShort, heed, heeded, impatient, over, present_wishes, reason, rest
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import brief
from hierfl.progress import RunProgress, Waiting
from hierfl.result import Result
from hierfl.runtime.penalised_run import slopes_of

NEAR = 1e-7  # of 1 + its size: how near to a bound, or to equality, what holds is
FAR = 1e-5  # of 1 + |value|: a step that leads so far is not taken
STEPS, MOST = 4, 30_000  # of Newton's method, and unknowns that it is tried for
AGREES = 1e-6  # relative to 1 + |f|: how far f with the lower level solved again may be from the program's value
SHARE = 0.5  # of the gap that is asked for, that the search itself is asked for
DIGITS = 1e-13  # relative: a value that is proved is polished, if it may be off by more
INSIDE = 1e-8  # relative: how far a point of the search may be outside X, onto which it is put
EDGES = tuple(10.0**k for k in range(-9, -3))  # of the way to the point that searches start from
FIRST, POLISHED = 16, 6  # points that the local search looks at, and how many of them it begins from
SECONDS, OF_ALL, LONGEST = 2.0, 0.1, 10.0  # how long it may take at least, of the time that there is, and at most
QUICK, AT_ONCE = 8.0, 1.0  # seconds of a search from nowhere, where only complementarity and f are curved, and elsewhere
BOUNDING = 60.0  # seconds that these may take at most
COMBINATIONS = 1_000  # of whole numbers, up to which they are looked through
NOT_PROVED = "not proved"
AT_END = 10 * scip.FEASIBILITY  # from where it is infinite, a function's argument is as good as there
FEW, MOMENT = 40, 1.0  # scalars of x, and of all y, up to which a proof is tried when a result is printed; seconds that it may take


class Found(NamedTuple):
    """A point with f there, the lower level solved exactly; oriented for minimisation."""

    x: np.ndarray
    evaluation: Evaluation
    tied: bool

    @classmethod
    def at(cls, compiled: CompiledProblem, x: np.ndarray) -> Found | None:
        """f at x; None where it has no value."""
        evaluation = evaluated(compiled, x)
        return None if evaluation is None else cls(x, evaluation, False)

    @property
    def value(self) -> float:
        return float(self.evaluation.value)

    def satisfies(self, compiled: CompiledProblem) -> bool:
        """Whether y is as the upper constraints that mention it ask."""
        solution = self.evaluation.solution
        return solution is None or Violations.at(compiled, self.x, solution.y).feasible


@double_precision
def proved_reference(compiled: CompiledProblem, *, gap: float, time_limit: float | None, seed: int, x0: Any, progress: bool) -> Reference:
    """The best point with a bound; arguments and errors as for ``Problem.reference``."""
    if not is_number(gap) or not 0 < gap < 1:
        raise SettingError(f"gap={gap!r}: a number between 0 and 1, relative to 1 and to |f|.")
    if time_limit is not None and not (is_number(time_limit) and time_limit > 0):
        raise SettingError(f"time_limit={time_limit!r}: seconds, or None for no limit.")
    limits = [wish.until for wish in present_wishes()]
    until = min([math.inf if time_limit is None else time.perf_counter() + time_limit, *limits])
    given = None if x0 is None else compiled.upper.flatten(x0, "x0")
    with heeded(until):
        if (convex := convex_reference(compiled, gap)) is not None:
            return convex
        try:
            return _Proof(compiled, gap, until, seed, given, progress).reference()
        except (IncompatibleSolverError, MissingPackageError) as why:
            choices = choices_of(compiled)
            if choices is None:
                raise
            return _looked_through(compiled, choices, progress, str(why))


@double_precision
def proof_line(compiled: CompiledProblem, result: Result) -> list[str]:
    """Whether the end of a default run is the best on X, where branch and bound tells that in a moment; in a line, or none."""
    small = 0 < compiled.lower.size * compiled.owners <= FEW and compiled.upper.size <= FEW and not compiled.elsewhere
    if not small or "chosen" not in result.settings or result.status == PROVED or find_spec("pyscipopt") is None or not math.isfinite(result.value):
        return []
    x = compiled.upper.flatten(result.x, "x")
    best = compiled.programs.keep(("proof line", x.tobytes()), lambda: _told_in_a_moment(compiled, x))
    if best is None:
        return []
    gained = compiled.sign * (result.value - best.value)
    if gained > AGREES * (1.0 + abs(best.value)):
        proved = ", the best there is" if best.status == PROVED else ""
        return [f'not the best: f = {best.value:.8g} at x = {brief(best.x)}{proved}, by problem.reference(certificate="global")']
    return [f"no x is better, to {GAP:.0e}: proved by branch and bound"] if best.status == PROVED else []


def _told_in_a_moment(compiled: CompiledProblem, x: np.ndarray) -> Reference | None:
    with suppress(HierflError, CutShort):
        until = time.perf_counter() + MOMENT
        with heeded(until):
            return _Proof(compiled, GAP, until, 0, x, False, from_there=True).reference()
    return None


@dataclass
class _Proof:
    compiled: CompiledProblem
    gap: float
    until: float
    seed: int
    given: np.ndarray | None
    show: bool
    from_there: bool = False  # begin at what is given, without a search of its own
    program: SingleLevel = field(init=False)

    @property
    def _begin(self) -> np.ndarray:
        return start_point(self.compiled, None) if self.given is None else self.given

    def reference(self) -> Reference:
        compiled = self.compiled
        compiled.require_all_here("an optimum that is proved")
        with Waiting("the problem as one program", self.show), scip.launched():
            self.program = SingleLevel.of(compiled)
        search, first = self._searched()
        degenerate = self.program.degenerate  # where no constraint qualification of the lower level holds
        edge = None if degenerate is None else scip.searched(degenerate, None, SHARE * self.gap, self.until, self.show, compiled.sign)
        rest()  # what is left to do ends by itself
        if edge is not None:
            first = _better(first, None if edge.values is None else self._again(edge, degenerate))
            search = _together(search, edge)
        if search.values is None and first is None and search.ended not in (scip.NO_POINT, scip.UNBOUNDED):
            first = self._feasible_at(self._begin)
        if search.ended == scip.UNBOUNDED:
            raise scip.unbounded(-compiled.sign, box_around(compiled, self._begin).bounded)
        if search.ended == scip.NO_POINT and first is None:
            proved = f"proved by SCIP's branch and bound, to its feasibility tolerance {scip.FEASIBILITY:.0e}"
            if compiled.coupled.conditions:
                texts = ", ".join(one.text for one in compiled.coupled.conditions)
                raise InfeasibleError(f"no x of X has an answer that satisfies the upper constraints on y: {texts} ({proved}). Relax them, or the constraints on x.")
            nowhere = "f has a value at no point of X: wherever x is, Y(x) is empty or the lower level has no solution"
            raise LowerLevelError(f"{nowhere} ({proved}). Relax the constraints on x or those of the lower level.")
        return self._judged(search, first, math.inf if edge is None else edge.bound)

    def _searched(self) -> tuple[scip.Search, Found | None]:
        """(the search, a point that is known besides): from what is given, or from nowhere; where it does not end at once, or a local search contradicts it, from the end
        of that, with bounds of slacks and multipliers if more than complementarity is curved.
        """
        program, gap, sign = self.program, SHARE * self.gap, self.compiled.sign
        first, start = (None, None) if self.given is None else self._with_values(self._feasible_at, self.given)
        linear, opened = program.is_linear, scip.FEASIBILITY if program.is_linear else 0.0
        curved = any(row.degree > 1 for row in (*program.equations, *program.inequalities))  # products with multipliers that nothing bounds
        of_choices = not (curved or program.unknowns.definitions or any(row.degree > 1 for row in program.forces))
        quick = min(self.until, time.perf_counter() + (QUICK if of_choices else AT_ONCE))
        search = scip.searched(program, start, gap, quick, self.show, sign, opened, plain=linear)
        if (search.ended == scip.BOUNDED and not curved) or over() or self.from_there:
            return search, first
        found, values = self._with_values(self._first)
        if found is not None and _better(first, found) is found:
            first, start = found, values
        better = first is not None and first.value < search.value - AGREES * (1.0 + abs(search.value))
        answered = {scip.BOUNDED: not better, scip.UNBOUNDED: True, scip.NO_POINT: first is None}.get(search.ended, False)
        if answered or over() or time.perf_counter() >= self.until:
            return search, first
        if first is None or search.value < first.value:
            start = search.values
        if not (linear or search.failed):
            with Waiting("bounds of multipliers", self.show):
                scip.bound_pairs(program, time.perf_counter() + min(BOUNDING, 0.3 * (self.until - time.perf_counter())))
        refuted = search.ended == scip.NO_POINT  # there is one: by presolving, most often
        again = scip.searched(program, start, gap, self.until, self.show, sign, opened, plain=linear, presolved=not refuted)
        best = search if again.values is None else again
        again = again._replace(values=best.values, value=best.value, nodes=search.nodes + again.nodes)
        return (again if search.ended in (scip.NO_POINT, scip.BOUNDED) else again._replace(bound=max(search.bound, again.bound))), first

    def _with_values(self, find: Callable[..., Found | None], *given: np.ndarray) -> tuple[Found | None, np.ndarray | None]:
        """(a point, the values of all unknowns there), None where none is found, or there is no time; the search then tells that."""
        with Waiting("a first point", self.show), suppress(CutShort):
            found = find(*given)
            return found, None if found is None or self.program.pessimistic else self._all_values(found)
        return None, None

    # --- before ------------------------------------------------------------------------------------------------------

    def _first(self) -> Found | None:
        """The best point of a short local search; None where f has no value at any that was tried."""
        compiled, now = self.compiled, time.perf_counter()
        limit = min(self.until, now + min(max(SECONDS, OF_ALL * (self.until - now)), LONGEST))
        best: list[np.ndarray] = []
        with suppress(CutShort, HierflError), heeded(limit), impatient():
            begin = self._begin
            points = np.concatenate([begin[None], sobol_points(box_around(compiled, begin), FIRST, self.seed)])
            whole = compiled.upper.whole
            points = on_upper_set(compiled, np.where(whole, np.round(points), points))
            points = points[(np.abs(points - np.round(points)) <= INSIDE)[:, whole].all(axis=1)]
            search = LocalSearch(self._searched_for)
            values = search.values(points)
            order = [k for k in np.argsort(values, kind="stable") if np.isfinite(values[k])]
            best += [points[k] for k in order[:1]]
            for k in () if whole.any() else order[:POLISHED]:
                best.append(search.polish(points[k]).x)
        return _better(*map(self._feasible_at, best))

    @cached_property
    def _searched_for(self) -> CompiledProblem:
        """The objective of the local search: that of the problem, or with a penalty for what upper constraints on y ask."""
        if not self.compiled.coupled.conditions:
            return self.compiled
        return penalised_problem(self.compiled, 10.0 * slopes_of(self.compiled, None, self.seed).penalty)

    def _polished(self, x: np.ndarray) -> Found | None:
        """The end of a local search from x: the digits that a gap does not ask for."""
        with suppress(HierflError):
            return None if self.compiled.upper.whole.any() else self._feasible_at(LocalSearch(self._searched_for).polish(x, FINAL).x)
        return None

    def _feasible_at(self, x: np.ndarray) -> Found | None:
        """f at x where the answer is as upper constraints ask; None elsewhere."""
        found = Found.at(self.compiled, x)
        return found if found is not None and found.satisfies(self.compiled) else None

    def _all_values(self, found: Found) -> np.ndarray:
        pairs = []
        for answer in answers_of(self.compiled, found.x) if self.compiled.exact.method is not None else ():
            program, z = answer.program, answer.chosen.z if answer.program.is_map else answer.first.z
            u = answer.chosen.u[: program.width]
            pairs.append((u, z) if program.error(u, z) <= INSIDE else (answer.first.u, answer.first.z))
        return refined(self.program, self.program.completed(found.x, pairs))

    # --- afterwards ------------------------------------------------------------------------------------------------

    def _judged(self, search: scip.Search, first: Found | None, edge: float) -> Reference:
        """What a search has found, with the lower level solved again; ``edge`` bounds f where no constraint qualification holds."""
        again = None if search.values is None else self._again(search)
        agrees = again is not None and abs(again.value - search.value) <= AGREES * (1.0 + abs(search.value))
        if search.values is not None and not agrees and first is None:
            first, _ = self._with_values(self._first)
        found = _better(again, first)
        if found is None:
            if search.values is None:
                raise LowerLevelError(f"no x was found at which f has a value ({search.ended}). Give x0, or a longer time_limit.")
            hidden = f"its tolerances ({scip.FEASIBILITY:.0e}) hide that Y(x) is empty. Write the problem in other units, or bound X away from there"
            raise LowerLevelError(f"at the x that branch and bound ended with the lower level has no solution by hierfl's own solver: {hidden}.")
        curved = not self.program.is_linear  # what is linear but for choices is refined already
        if curved and agrees and search.ended == scip.BOUNDED and found.value - search.bound > DIGITS * max(1.0, abs(found.value)):
            found = _better(found, self._polished(found.x)) or found
        below = found.value < search.bound - AGREES * (1.0 + abs(found.value))
        bound = -math.inf if below or search.ended == scip.NO_POINT else min(search.bound, found.value)
        gap = (found.value - bound) / max(1.0, abs(found.value))
        if search.values is not None and not agrees:
            value = "no value" if again is None else f"the value {self.compiled.sign * again.value:.10g}"
            status = f"{NOT_PROVED}: f has {value} where the program has {self.compiled.sign * search.value:.10g}"
        elif bound == -math.inf:
            status = NOT_PROVED if search.ended == scip.BOUNDED or below else search.ended
        elif gap > self.gap and bound == edge:
            status = f"{NOT_PROVED}: where no constraint qualification of the lower level holds f is bounded by {self.compiled.sign * edge:.10g} only"
        else:
            status = PROVED if gap <= self.gap else search.ended if search.ended != scip.BOUNDED else NOT_PROVED
        ends = [one for one in self.program.unknowns.definitions if one.kind == "log" or (one.kind == "power" and one.exponent < 0)]
        if status == PROVED and search.values is not None and any(abs(one.argument.at(search.values)) <= AT_END for one in ends):
            status, bound, gap = f"{NOT_PROVED}: within SCIP's tolerance of where it ended a logarithm or a negative power is infinite, and f may fall on", -math.inf, math.inf
        if status == PROVED and curved:
            found, bound, status = self._confirmed(found, bound)
            gap = (found.value - bound) / max(1.0, abs(found.value))
        how = f"by SCIP's branch and bound over the lower level's optimality conditions ({search.nodes:,} nodes), to its feasibility tolerance"
        how += f" {scip.FEASIBILITY:.0e}; the lower level was solved again at x"
        if status == PROVED:
            holds = "the bound holds" if not curved else f"a second search finds nothing better by more than {self.gap:.0e}"
            how += f"; {holds} even where every row may be violated by that tolerance"
        if self.program.pessimistic:
            how += "; of several lower solutions y is the worst for f"
        if found.tied:
            how += "; of several lower solutions y is the best for f, as optimality conditions mean it: problem.implicit(x), which takes one without regard to f, may differ"
        return described(self.compiled, found, bound, gap, status, how)

    def _confirmed(self, found: Found, bound: float) -> tuple[Found, float, str]:
        """(the best point, its bound, the status), after another search that no violation of rows within SCIP's tolerance can mislead."""
        sign = self.compiled.sign
        for program in (one for one in (self.program, self.program.degenerate) if one is not None):
            other = scip.nothing_below(program, found.value, self.gap, self.until, self.show, sign)
            if other.values is None and other.ended != scip.NO_POINT:
                return found, bound, f"{other.ended}, in the second search, which says that no violation of rows within SCIP's tolerance undoes the bound"
            if other.values is not None:
                break
        else:
            return found, bound, PROVED
        again = self._again(other, program)
        if again is not None and again.value < found.value - SHARE * self.gap * max(1.0, abs(found.value)):
            return again, -math.inf, f"{NOT_PROVED}: f is {sign * again.value:.10g} where SCIP's branch and bound says that it is no better than {sign * bound:.10g}"
        loose = scip.searched(program, other.values, SHARE * self.gap, self.until, self.show, sign, scip.FEASIBILITY)
        why = f"where rows are violated by {scip.FEASIBILITY:.0e}, SCIP's tolerance, the program's value is {sign * min(loose.value, other.value):.10g}"
        return found, min(bound, loose.bound), f"{NOT_PROVED}: {why}"

    def _again(self, search: scip.Search, program: SingleLevel | None = None) -> Found | None:
        """The end of a search, of another program than the main one where it is given, with the lower level solved exactly; None where f has no value there."""
        assert search.values is not None
        best: Found | None = None
        for values in (refined(program or self.program, search.values), search.values):
            x = self._inside(values[self.program.upper])
            plain = None if x is None else Found.at(self.compiled, x)
            for found in (plain, None if plain is None else self._as_told(plain, values)):
                best = _better(best, found if found is not None and found.satisfies(self.compiled) else None)
            if best is not None and best.value <= search.value + AGREES * (1.0 + abs(search.value)):
                break
        return self._next_to(search.values[self.program.upper]) if best is None else best

    def _next_to(self, x: np.ndarray) -> Found | None:
        """The best of some points next to one at which f has no value: x may be on the edge of where it has any."""
        if self.compiled.upper.whole.any():
            return None
        inner = self._begin
        points = on_upper_set(self.compiled, np.stack([x + share * (inner - x) for share in EDGES]))
        return _better(*map(self._feasible_at, points))

    def _inside(self, x: np.ndarray) -> np.ndarray | None:
        """The point of X, with whole numbers where they are wanted, that was meant; None where there is none next to it."""
        compiled, whole = self.compiled, self.compiled.upper.whole
        x = np.where(whole, np.round(x), x)
        nearest = on_upper_set(compiled, x[None])[0]
        away = float(np.linalg.norm(nearest - x))
        if away > INSIDE * (1.0 + float(np.linalg.norm(x))):
            return None
        return np.where(whole | (np.abs(nearest - x) <= 1e-15 * (1.0 + np.abs(x))), x, nearest)

    def _as_told(self, plain: Found, values: np.ndarray) -> Found | None:
        """The same x with the y that the program has, where the lower level has it among several."""
        solution = plain.evaluation.solution
        if solution is None or self.program.pessimistic:
            return None
        said: list[np.ndarray] = []

        def meant(k: int, answer: LevelAnswer) -> np.ndarray:
            """Of what lower levels say the y that the program has."""
            follower = self.program.followers[k]
            found = _solution_next_to(answer, values[follower.u], np.array([one.at(values) for one in follower.z]))
            said.append(answer.y if found is None else found)
            return said[-1]

        answers_of(self.compiled, plain.x, instead=meant)
        y = np.concatenate(said).reshape(np.shape(solution.y))
        if (np.abs(y - solution.y) <= INSIDE * (1.0 + np.abs(solution.y).max(axis=1, initial=0.0, keepdims=True))).all():
            return None
        compiled, data = self.compiled, self.compiled.data()
        server, clients = compiled.exact.compiled_value_at(plain.x, y, data)
        value = server + data.clients.weights @ clients
        told = Evaluation(value, server, clients, solution._replace(y=jnp.asarray(y)), plain.evaluation.gap)
        return Found(plain.x, jax.tree.map(np.asarray, told), True) if np.isfinite(told.value) else None


def _better(*some: Found | None) -> Found | None:
    """The best of those that were found, the first of equals; None where none was."""
    return min((one for one in some if one is not None), key=lambda one: one.value, default=None)


def _together(search: scip.Search, edge: scip.Search) -> scip.Search:
    """A search, with the bound of another one, and its end where that says less."""
    ended = edge.ended if search.ended == scip.NO_POINT or (search.ended == scip.BOUNDED and edge.ended != scip.NO_POINT) else search.ended
    return search._replace(bound=min(search.bound, edge.bound), ended=NOT_PROVED if ended == scip.UNBOUNDED == edge.ended else ended, nodes=search.nodes + edge.nodes)


def _solution_next_to(answer: LevelAnswer, u: np.ndarray, z: np.ndarray) -> np.ndarray | None:
    """The y of the level's solution next to (u, z), where there are several; None where there are not, or none is found."""
    program = answer.program
    if not answer.first.solved:
        return None
    near = polished(program, u, z)
    if near.solved:
        return near.u[: program.size]
    if answer.unique != SEVERAL or program.is_map:
        return None
    own = np.where(np.arange(program.width) < program.size, 1.0, 0.0)
    near = solve_program(AllSolutions(program, answer.first).restricted(diagonal(own, program.p), -own * u))
    return near.u[: program.size] if near.solved else None


def evaluated(compiled: CompiledProblem, x: np.ndarray) -> Evaluation | None:
    """f at x with the lower level solved exactly, and no word on ties; None where it has no value."""
    evaluation: Evaluation = jax.tree.map(np.asarray, compiled.exact.compiled_evaluation(np.asarray(x, float), compiled.data()))
    solved = evaluation.solution is None or bool(np.all(evaluation.solution.converged))
    return evaluation if solved and bool(np.all(evaluation.gap <= 0)) and bool(np.isfinite(evaluation.value)) else None


def described(compiled: CompiledProblem, found: Found, bound: float, gap: float, status: str, how: str) -> Reference:
    """A point with what is known of it."""
    x, evaluation, sign, multipliers = found.x, found.evaluation, compiled.sign, None
    if compiled.lower.size:
        with suppress(IncompatibleSolverError):
            multipliers = multipliers_at(compiled, x, evaluation)
    return Reference.at(compiled, x, evaluation, how, bound=sign * bound, gap=gap, multipliers=multipliers, status=status)


# --- whole numbers, one combination after another --------------------------------------------------------------------


def choices_of(compiled: CompiledProblem) -> list[Sequence[float]] | None:
    """What each entry of x may be, where all are whole and few; None elsewhere."""
    if not compiled.upper.whole.all() or not compiled.upper.size:
        return None
    box = box_around(compiled, np.zeros(compiled.upper.size))
    first, last = np.ceil(box.low - INSIDE), np.floor(box.high + INSIDE)
    if not box.bounded or np.prod(np.maximum(last - first + 1.0, 1.0)) > COMBINATIONS:
        return None
    return [np.arange(low, high + 1.0).tolist() for low, high in zip(first, last)]


def _looked_through(compiled: CompiledProblem, choices: list[Sequence[float]], show: bool, why: str) -> Reference:
    """The best of all combinations, f computed exactly at each."""
    points = np.array(list(product(*choices)), float)
    inside = np.linalg.norm(on_upper_set(compiled, points) - points, axis=1) <= INSIDE * (1.0 + np.linalg.norm(points, axis=1))
    best, count, unsolved = None, 0, 0
    with RunProgress(len(points), "reference, all combinations", show, "combinations") as bar, suppress(CutShort):
        for x, is_inside in zip(points, inside):
            found = Found.at(compiled, x) if is_inside else None
            count, unsolved = count + 1, unsolved + (is_inside and found is None and _is_unsolved(compiled, x))
            bar.advance(1)
            best = _better(best, found if found is not None and found.satisfies(compiled) else None)
            heed()
    why_ended, done = reason(), count == len(points)
    rest()
    if best is None:
        if compiled.coupled.conditions and not unsolved:
            texts = ", ".join(one.text for one in compiled.coupled.conditions)
            raise InfeasibleError(f"no answer at any of the {count:,} combinations of whole numbers satisfies the upper constraints on y: {texts}.")
        why = f"they are outside X, or the lower level has no solution there, or was not solved, as at {unsolved} of them"
        raise LowerLevelError(f"f has a value at none of the {count:,} combinations of whole numbers that were looked at: {why}.")
    how = f"by {'all' if done else count} of {len(points):,} combinations of whole numbers, the lower level solved exactly at each, y as implicit(x) has it; no branch and bound: {why}"
    status = f"{NOT_PROVED}: the lower level was not solved at {unsolved} of the combinations" if done else str(why_ended)
    known = (best.value, 0.0, PROVED) if done and not unsolved else (-math.inf, math.inf, status)
    return described(compiled, best, *known, how)


def _is_unsolved(compiled: CompiledProblem, x: np.ndarray) -> bool:
    """Whether the lower level has no answer at x though it is not known to be empty there."""
    try:
        compiled.exact.at(x)
    except HierflError as why:
        return isinstance(why, LowerLevelError)
    return False


# --- the end of a search, with what holds there holding to rounding: a tie of the lower level, met to 1e-9 only, would be none ----


def refined(program: SingleLevel, values: np.ndarray) -> np.ndarray:
    """The nearest values at which all holds that nearly holds; the same ones where there are none so near."""
    unknowns = program.unknowns
    if len(values) > MOST:
        return values
    low, high = np.array(unknowns.low), np.array(unknowns.high)
    found = np.where(unknowns.whole, np.round(values), values)
    for end in (low, high):
        with np.errstate(invalid="ignore"):
            found = np.where(np.isfinite(end) & (np.abs(found - end) <= NEAR * (1.0 + np.abs(end))), end, found)
    fixed = np.array(unknowns.whole, bool) | (found == low) | (found == high)
    free = np.flatnonzero(~fixed)
    tight = [one for one in program.inequalities if abs(one.at(found)) <= NEAR * (1.0 + abs(one.terms.get((), 0.0)))]
    equations = [*program.all_equations, *tight]
    for _ in range(STEPS):
        with np.errstate(all="ignore"):
            rows = [(one.at(found), one.slopes(found)) for one in equations]
            rows += [one.misses(found) for one in unknowns.definitions]
            left = np.array([value for value, _ in rows])
        entries = [(k, place, slope) for k, (_, slopes) in enumerate(rows) for place, slope in slopes.items() if not fixed[place]]
        if not (np.isfinite(left).all() and np.isfinite([slope for _, _, slope in entries]).all()):
            return values
        if not entries or np.abs(left).max() == 0.0:
            break
        k, place, slope = (np.array(each) for each in zip(*entries))
        matrix = sp.csr_array((slope, (k, place)), (len(rows), len(found)))[:, free]
        shortest = Saddle(diagonal(np.ones(len(free)), matrix), matrix)
        found[free] -= shortest.solve(np.zeros(len(free)), left)[0]
    return found if (np.abs(found - values) <= FAR * (1.0 + np.abs(values))).all() else values
