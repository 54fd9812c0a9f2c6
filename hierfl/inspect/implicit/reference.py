"""``problem.reference()``: a trustworthy optimum of a small implicit function, to compare algorithms with.

f is evaluated with the lower level solved exactly at every point. In one or two dimensions of a bounded X a fine grid comes
first, else scrambled Sobol points; the best of them, spread out, are polished by the bundle method of ``hierfl.descent`` on exact values
and implicit gradients, or on differences of values where there are none.

Where upper constraints mention y it is the best point whose answers satisfy them.
It is a reference of f with the exact penalty, which is raised until the best point is feasible. As the search looks all over X, a best
point of the violations alone that is not feasible says that nothing is, as far as such a search sees. Where f falls faster than any
multiple of what is violated grows, as -x^3 does beside x - 1, it looks around a feasible point only, ever farther, until the best is within.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np

from hierfl.analysis.variable_bounds import require_continuous
from hierfl.compiler.compiled_problem import CompiledProblem, compile_problem, penalised_problem
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.oracles import public_response
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.starting_points import box_around, on_upper_set, sobol_points
from hierfl.compiler.violations import Violations
from hierfl.descent.convex_best import convex_optimum
from hierfl.descent.decision_rows import DecisionRows
from hierfl.descent.implicit_oracle import DifferenceOracle, ImplicitOracle
from hierfl.descent.limited_search import LimitedDescent
from hierfl.descent.search import BOTTOM, Descent
from hierfl.errors import DivergedError, InfeasibleError, LowerLevelError, SettingError
from hierfl.inspect.argument_checks import require_whole
from hierfl.inspect.implicit.beside import jump_beside
from hierfl.inspect.implicit.points import Points
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import Card, Shown, brief
from hierfl.progress import RunProgress
from hierfl.runtime.penalised_run import GUESS, RAISE, slopes_of
from hierfl.value_certificate import Certificate

ACCURACY, MOST = 1e-9, 300  # of a local search, as of ``Descent``, and its evaluations
SAME, DISTINCT = 1e-4, 1e-3  # relative: how close to where another search ended one is taken to end there too, and from where minima are two
UNBOUNDED = BOTTOM  # of f, oriented for minimisation: no least value is called that
FURTHEST = 1e15  # times as far as all candidates, from which a search has met no end: f may fall as slowly as -log does


class LocalMinimum(NamedTuple):
    """Where a local search ended: a point of X (n,) and its value, oriented for minimisation."""

    x: np.ndarray
    value: float


class LocalSearch:
    """Searches f on X from given starts.

    ``count`` counts its evaluations, ``joined`` the searches that were ended since they came to where another one had; the starts are ``width`` apart.
    """

    def __init__(self, compiled: CompiledProblem) -> None:
        self.compiled, self.count, self.joined, self.width = compiled, 0, 0, np.inf
        self.points, self.differentiable = Points(compiled), Points(compiled).differentiable
        self.rows: DecisionRows | None = None
        with suppress(NoStandardFormError):
            self.rows = DecisionRows.of(compiled)
        self.how = f"local searches by a bundle method on {'implicit gradients' if self.differentiable else 'differences of values'}"

    def values(self, points: np.ndarray) -> np.ndarray:
        """Evaluate f at points (k, n) of X, oriented for minimisation; infinity where it cannot be evaluated."""
        self.count += len(points)
        values = self.compiled.sign * self.points.values(points).value
        return np.where(np.isnan(values), np.inf, values)

    def polish(self, start: np.ndarray, accuracy: float = ACCURACY, ends: Sequence[LocalMinimum] = ()) -> LocalMinimum:
        """Search from a start, by gradients where there are any, else by differences; a search that comes to one of the ``ends`` ends with it."""
        oracle = ImplicitOracle(self.compiled, seed=0)
        first = oracle(start) if self.differentiable else None
        if first is None and (oracle.without_gradient or not self.differentiable):
            oracle = DifferenceOracle(self.compiled, 0, start=start)
            first = oracle(start)
        if first is None:
            return LocalMinimum(start, np.inf)
        descent = LimitedDescent(oracle, first, accuracy) if self.rows is None else Descent(oracle, self.rows, first, accuracy)
        asks, point, counted = descent.asks(), None, self.count
        with suppress(StopIteration):
            for _ in range(MOST):
                best = descent.best
                near = SAME * self.unit(best.x)
                if there := [end for end in ends if end.value <= best.value and np.linalg.norm(end.x - best.x) <= near]:
                    self.joined += 1
                    return there[0]
                point = oracle(asks.send(point))
                self.count = counted + oracle.asked
        return LocalMinimum(descent.best.x, descent.best.value)

    def unit(self, x: np.ndarray) -> float:
        """Beside which x is near another point: 1 + |x|, or in a small X its width."""
        return min(1.0 + float(np.linalg.norm(x)), self.width)


GRID = {1: 2001, 2: 61}  # points along each axis
SOBOL = 1024
SMALLEST, SOLVES = 64, 2_000_000  # least number of points; values of f without a lower level to spend on all of them


def candidates_on(compiled: CompiledProblem, seed: int, given: list[np.ndarray]) -> tuple[np.ndarray, str]:
    """Choose (points of X to start from, in words how)."""
    size = compiled.upper.size
    box = box_around(compiled, given[0] if given else np.zeros(size))
    method = compiled.exact.method
    solves = SOLVES if method is None else method.solutions_in_a_second
    afford = max(SMALLEST, solves // compiled.owners)  # points, where each asks for many lower-level solutions
    if box.bounded and size in GRID:
        count = min(GRID[size], round(afford ** (1 / size)))
        axes = [np.linspace(a, b, count) for a, b in zip(box.low, box.high)]
        points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
        how = f"a grid of {len(points):,} points on the bounds of X"
    else:
        points = sobol_points(box, min(SOBOL, 2 ** int(np.log2(afford))), seed)
        where = "the bounds of X" if box.bounded else "a box, X being unbounded,"
        how = f"{len(points):,} scrambled Sobol points on {where}"
    return on_upper_set(compiled, np.concatenate([points, *[p[None] for p in given]])), how


def spread_out(points: np.ndarray, values: np.ndarray, count: int, width: float) -> list[np.ndarray]:
    """Pick the best points that are not close to a better one, of some that are ``width`` apart."""
    order = np.argsort(values, kind="stable")
    chosen: list[np.ndarray] = []
    for point in points[order[np.isfinite(values[order])]]:
        if len(chosen) < count and all(np.linalg.norm(point - other) > 0.1 * width for other in chosen):
            chosen.append(point)
    return chosen


RESTARTS, SEED = 8, 0  # unless others are asked for
SIZE_LIMIT = 100
PROVED, GAP = "proved", 1e-6  # what a reference with a bound is, that is as near to f, relative to 1 and to |f|
FINAL = 1e-13  # accuracy of the last search, from the best point


@dataclass(frozen=True, repr=False)
class Reference(Shown):
    """The best point that was found.

    Attributes
    ----------
    x, y, value
        As in a ``Result``: the point, its exact response, and f there (as declared, sign included).
    certificate
        How the lower level is solved at x, and how accurately.
    local_minima
        Values of the distinct points at which polishing ended, best first; x of each in ``points``.
    evaluations
        Number of evaluations of f.
    guarantee
        What is known of the point, in words.
    bound
        With ``certificate="global"``, and of convex problems of x alone: no x of X has a better value of f; ``guarantee`` says how that is known.
        None without, infinite where nothing is known.
    gap
        |value - bound|, relative to 1 and to |value|; None without a bound.
    multipliers
        With ``certificate="global"``: those of the lower level's constraints at x, by constraint, for every owner of a y.
    status
        ``"searched"``; with a bound ``"proved"``, ``"time limit reached"``, ``"interrupted"``, or ``"not proved"`` with the reason.

    Examples
    --------
    >>> best = problem.reference(progress=False)
    >>> abs(round(best.value, 6))
    0.0
    """

    x: Any
    y: Any
    value: float
    certificate: Certificate
    guarantee: str
    local_minima: tuple[float, ...] = ()
    points: tuple[Any, ...] = ()
    evaluations: int = 0
    bound: float | None = None
    gap: float | None = None
    multipliers: Any = None
    status: str = "searched"

    @classmethod
    def at(cls, compiled: CompiledProblem, x: np.ndarray, evaluation: Evaluation, guarantee: str, **known: Any) -> Reference:
        """A point (n,) where f is evaluated; ``known`` are further attributes."""
        solution = evaluation.solution
        y = None if solution is None else public_response(compiled, solution.y)
        value, certificate = compiled.sign * float(evaluation.value), Certificate.of(compiled, x, evaluation)
        return cls(compiled.upper.unflatten(x), y, value, certificate, guarantee, **known)

    def _card(self) -> Card:
        rows = [("x", brief(self.x)), *([] if self.y is None else [("y(x)", brief(self.y))]), ("how sure", str(self.certificate))]
        if self.bound is None:
            others = ", ".join(f"{value:.6g}" for value in self.local_minima[1:4]) or "none met"
            rows += [("found by", self.guarantee), ("other minima", others), ("evaluations", f"{self.evaluations:,} of f")]
            return Card(f"f = {self.value:.10g}, the best point found", rows, [("in words", str(self))])
        gap = 0.0 if (self.gap or 0.0) <= 1e-12 else self.gap
        bound = f"{self.bound:.10g}, a gap of {gap:.2g}" if np.isfinite(self.bound) else "none"
        rows = [("status", self.status), ("bound", bound), *rows, ("bound known", self.guarantee)]
        what = "the optimum" if self.status == "proved" else "the best point found"
        return Card(f"f = {self.value:.10g}, {what}", rows, [("multipliers", repr(self.multipliers or ""))])

    def __str__(self) -> str:
        if self.bound is None:
            return f"f = {self.value:.10g}\n{self.certificate}\n{self.guarantee}"
        return f"f = {self.value:.10g}, bound {self.bound:.10g} ({self.status})\n{self.certificate}\nbound known {self.guarantee}"


def reference(compiled: CompiledProblem, *, restarts: int, seed: int, x0: Any, progress: bool) -> Reference:
    """Look for the reference, which is kept unless a start of one's own is given; arguments and errors as for ``Problem.reference``."""
    if x0 is not None:
        return _searched(compiled, restarts, seed, x0, progress)
    return compiled.programs.keep(_key(compiled, restarts, seed), lambda: _searched(compiled, restarts, seed, None, progress))


def known_reference(compiled: CompiledProblem) -> Reference | None:
    """The reference by default settings where it was asked for already."""
    return compiled.programs.get(_key(compiled, RESTARTS, SEED))


def _key(compiled: CompiledProblem, restarts: int, seed: int) -> tuple[Any, ...]:
    return "reference", restarts, seed, compiled.parameter_values


def convex_reference(compiled: CompiledProblem, gap: float) -> Reference | None:
    """The optimum of a convex problem of x alone, whose bound is as near as ``gap``, relative to 1 and to |f|; None of others."""
    optimum = convex_optimum(compiled)
    if optimum is None:
        return None
    evaluation = compiled.exact.at(optimum.x)
    value = float(evaluation.value)
    left = (value - optimum.bound) / max(1.0, abs(value))
    if left > gap:
        return None
    how = "by the multipliers of one convex program, which f and X are; they meet its conditions to rounding"
    known = {"bound": compiled.sign * optimum.bound, "gap": left, "status": PROVED, "evaluations": 1}
    known |= {"local_minima": (compiled.sign * value,), "points": (compiled.upper.unflatten(optimum.x),)}
    return Reference.at(compiled, optimum.x, evaluation, how, **known)


@double_precision
def _searched(compiled: CompiledProblem, restarts: int, seed: int, x0: Any, progress: bool) -> Reference:
    size = compiled.upper.size
    require_continuous(compiled.upper.variables, "reference() without certificate='global'")
    require_whole("restarts", restarts, 1)
    if (proved := convex_reference(compiled, GAP)) is not None:
        return proved
    if size > SIZE_LIMIT:
        raise SettingError(f"reference() is for small problems: x has {size} scalars, at most {SIZE_LIMIT} are treated.")
    search, given = LocalSearch(compiled), [] if x0 is None else [compiled.upper.flatten(x0, "x0")]
    candidates, how = candidates_on(compiled, seed, given)
    search.width = float(max(np.linalg.norm(np.ptp(candidates, axis=0)), 1e-9 * (1.0 + np.linalg.norm(candidates[0]))))  # or of one point's rounding
    with RunProgress(2 + restarts, "reference", progress, "searches") as bar:
        values = search.values(candidates)
        bar.update(1, how)
        starts = spread_out(candidates, values, restarts, search.width)
        starts += list(candidates[-1:]) if given and np.isfinite(values[-1]) else []
        ends = _ends(search, starts, restarts, bar)
    if not np.isfinite(values).any():
        why = f"f could not be evaluated at any of {len(candidates)} points of X: Y(x) is empty there, or the lower level was not solved"
        raise LowerLevelError(f"{why}. Give x0, or constraints on x that keep the lower level solvable.")
    reach = float(np.linalg.norm(ends[0].x))
    if not ends[0].value > UNBOUNDED or reach > FURTHEST * (1.0 + float(np.linalg.norm(candidates, axis=1).max())):
        where = "below" if compiled.sign > 0 else "above"
        met = f"the search met the value {compiled.sign * ends[0].value:.3g} at |x| = {reach:.1g}, and no end"
        raise DivergedError(f"f seems unbounded {where} on X, or least at infinity: {met}. Bound X.")
    skipped = int(np.sum(~np.isfinite(values)))
    gaps = f" ({skipped:,} of them left out: f has no value there)" if skipped else ""
    joined = f", {search.joined} of which came to where another had ended" if search.joined else ""
    guarantee = f"the best of {how}{gaps} and of {len(starts)} local searches from the best of them{joined}; {search.how}."
    guarantee += " A local minimum up to the searches' accuracy; global unless a basin lies between the points."
    distinct = _distinct(ends, search)
    if jump := jump_beside(compiled, distinct[0].x, distinct[0].value):
        guarantee += f" But {jump}."
    minima = tuple(compiled.sign * end.value for end in distinct)
    points = tuple(compiled.upper.unflatten(end.x) for end in distinct)
    best, known = distinct[0].x, {"local_minima": minima, "points": points, "evaluations": search.count}
    return Reference.at(compiled, best, compiled.exact.at(best), guarantee, **known)


def _ends(search: LocalSearch, starts: list[np.ndarray], restarts: int, bar: RunProgress) -> list[LocalMinimum]:
    """Polish every start, and the best once more; best first."""
    ends: list[LocalMinimum] = []
    for done, start in enumerate(starts):
        ends.append(search.polish(start, ends=ends))
        bar.update(min(done + 2, restarts + 1), f"f {search.compiled.sign * min(end.value for end in ends):.6g}")
    best = min(ends, key=lambda end: end.value, default=None)
    if best is not None and UNBOUNDED < best.value < np.inf:
        ends = [search.polish(best.x, FINAL), *ends]
    bar.update(restarts + 2, "done")
    return sorted(ends, key=lambda end: end.value)


def _distinct(ends: list[LocalMinimum], search: LocalSearch) -> list[LocalMinimum]:
    """Leave out, of ends in order, those close to a better one."""
    distinct: list[LocalMinimum] = []
    for end in ends:
        if all(np.linalg.norm(end.x - other.x) > DISTINCT * search.unit(end.x) for other in distinct):
            distinct.append(end)
    return distinct


RAISES = 6  # by what powers of ten the penalty is raised
AROUND = (10.0, 1e3, 1e5)  # how far around a feasible x, in 1 + |x|, where f falls without end beyond what is feasible


def feasible_reference(compiled: CompiledProblem, *, restarts: int, seed: int, x0: Any, progress: bool) -> Reference:
    """Look for the reference; arguments and errors as for ``Problem.reference``."""
    settings: dict[str, Any] = {"restarts": restarts, "seed": seed, "x0": x0, "progress": progress}
    if not compiled.coupled.conditions:
        return reference(compiled, **settings)
    found = _raised(compiled, settings)
    return _near_feasible(compiled, settings) if found is None else found


def _raised(compiled: CompiledProblem, settings: dict[str, Any]) -> Reference | None:
    """The best point with a penalty that makes it feasible; None where none does, though there are feasible points."""
    rho, feasible = slopes_of(compiled, settings["x0"], settings["seed"]).penalty, float("inf")
    for tried in range(RAISES + 1):
        goal, enough = penalised_problem(compiled, rho), 0.0
        with suppress(DivergedError):
            found = reference(goal, **settings)
            evaluation, violations = _told(compiled, found.x)
            if violations.feasible:
                return _of_f(compiled, found, rho)
            value = float(evaluation.value)
            violated = (goal.sign * found.value - value) / rho
            if violated > 0 and np.isfinite(feasible):
                enough = GUESS * (feasible - value) / violated  # for a feasible point that is known to be better
        if tried == 1:  # whether it is worth while
            feasible = float(_told(compiled, _least(compiled, settings).x)[0].value)
        rho = max(RAISE * rho, enough)
    return None


def _least(compiled: CompiledProblem, settings: dict[str, Any]) -> Reference:
    """Where the upper constraints are violated least; raises ``InfeasibleError`` where they are."""
    least = reference(penalised_problem(compiled, 1.0, 0.0), **settings)
    _, violations = _told(compiled, least.x)
    if not violations.feasible:
        violated = "; ".join(map(str, violations.violated))
        x = np.array2string(compiled.upper.flatten(least.x, "x"), threshold=6, precision=6)
        where = f"where they are violated least, at x = {x}, {violated} ({least.guarantee.partition(';')[0]})"
        raise InfeasibleError(f"no x was found whose answers satisfy the upper constraints: {where}.")
    return least


def _near_feasible(compiled: CompiledProblem, settings: dict[str, Any]) -> Reference:
    """The best point around a feasible one; raises ``DivergedError`` where it is always at the end of what was looked at."""
    centre = compiled.upper.flatten(_least(compiled, settings).x, "x")
    at = compiled.upper.unflatten(centre)
    for times in AROUND:
        radius = times * (1.0 + float(np.abs(centre).max()))
        box = [cp.abs(variable - at[variable]) <= radius for variable in compiled.upper.variables]
        declaration = replace(compiled.declaration, constraints=(*compiled.declaration.constraints, *box))
        found = _raised(compile_problem(declaration), settings)
        if found is not None and np.abs(compiled.upper.flatten(found.x, "x") - centre).max() < 0.99 * radius:
            said = f" X was searched within {radius:.3g} of a feasible x: beyond what is feasible f falls faster than a penalty grows."
            return replace(found, guarantee=found.guarantee + said)
    where = f"{'below' if compiled.sign > 0 else 'above'} where the upper constraints on y hold, or next to where they do"
    raise DivergedError(f"f seems unbounded {where}: within {radius:.3g} of a feasible x the best point is at the edge, or none was found. Bound X.")


def _told(compiled: CompiledProblem, x: Any) -> tuple[Evaluation, Violations]:
    """(f at x, what the answer there violates)."""
    flat = compiled.upper.flatten(x, "x")
    evaluation = compiled.exact.at(flat)
    assert evaluation.solution is not None
    return evaluation, Violations.at(compiled, flat, evaluation.solution.y)


def _of_f(compiled: CompiledProblem, found: Reference, rho: float) -> Reference:
    """The same point with f there, and those of the other minima that are feasible."""
    evaluation, violations = _told(compiled, found.x)
    others = [(x, *_told(compiled, x)) for x in found.points]
    kept = [(x, compiled.sign * float(there.value)) for x, there, violated in others if violated.feasible]
    return replace(
        found,
        value=compiled.sign * float(evaluation.value),
        certificate=Certificate.of(compiled, compiled.upper.flatten(found.x, "x"), evaluation),
        local_minima=tuple(value for _, value in kept),
        points=tuple(x for x, _ in kept),
        guarantee=f"{found.guarantee} Upper constraints on y: {'; '.join(map(str, violations.values()))}, with penalty {rho:.3g}.",
    )
