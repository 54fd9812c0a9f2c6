"""``problem.reference()``: a trustworthy optimum of a small implicit function, to compare algorithms with.

f is evaluated with the lower level solved exactly at every point. In one or two dimensions of a bounded X a fine grid comes
first, else scrambled Sobol points; the best of them, spread out, are polished by the bundle method of ``hierfl.descent`` on exact values
and implicit gradients, and where there are none by Nelder and Mead's method, which needs values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.public_response import public_response
from hierfl.compiler.starting_points import box_around, on_upper_set, sobol_points
from hierfl.errors import DivergedError, LowerLevelError, SettingError
from hierfl.inspect.implicit.local_search import UNBOUNDED, LocalMinimum, LocalSearch
from hierfl.inspect.implicit.points import owners
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import Card, Shown, brief
from hierfl.progress import RunProgress
from hierfl.value_certificate import Certificate

GRID = {1: 2001, 2: 61}  # points along each axis
SOBOL = 1024
SMALLEST, SOLVES = 64, 2_000_000  # least number of points; values of f without a lower level to spend on all of them


def candidates_on(compiled: CompiledProblem, seed: int, given: list[np.ndarray]) -> tuple[np.ndarray, str]:
    """Choose (points of X to start from, in words how)."""
    size = compiled.upper.size
    box = box_around(compiled, given[0] if given else np.zeros(size))
    method = compiled.exact.method
    solves = SOLVES if method is None else method.solutions_in_a_second
    afford = max(SMALLEST, solves // owners(compiled))  # points, where each asks for many lower-level solutions
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


def spread_out(points: np.ndarray, values: np.ndarray, count: int) -> list[np.ndarray]:
    """Pick the best points that are not close to a better one."""
    order = np.argsort(values, kind="stable")
    width = np.linalg.norm(np.ptp(points, axis=0))
    chosen: list[np.ndarray] = []
    for place in order[np.isfinite(values[order])]:
        if all(np.linalg.norm(points[place] - other) > 0.1 * width for other in chosen):
            chosen.append(points[place])
        if len(chosen) == count:
            break
    return chosen


RESTARTS, SEED = 8, 0  # unless others are asked for
SIZE_LIMIT = 100
NELDER_MEAD_LIMIT = 10  # variables
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
    """

    x: Any
    y: Any
    value: float
    certificate: Certificate
    local_minima: tuple[float, ...]
    points: tuple[Any, ...]
    evaluations: int
    guarantee: str

    def _card(self) -> Card:
        rows = [
            ("x", brief(self.x)),
            *([] if self.y is None else [("y(x)", brief(self.y))]),
            ("how sure", str(self.certificate)),
            ("found by", self.guarantee),
            ("other minima", ", ".join(f"{value:.6g}" for value in self.local_minima[1:4]) or "none met"),
            ("evaluations", f"{self.evaluations:,} of f"),
        ]
        return Card(f"f = {self.value:.10g}, the best point found", rows, [("in words", str(self))])

    def __str__(self) -> str:
        return f"f = {self.value:.10g}\n{self.certificate}\n{self.guarantee}"


def reference(compiled: CompiledProblem, *, restarts: int, seed: int, x0: Any, progress: bool) -> Reference:
    """Look for the reference, which is kept unless a start of one's own is given; arguments and errors as for ``Problem.reference``."""
    if x0 is not None:
        return _searched(compiled, restarts, seed, x0, progress)
    key = _key(compiled, restarts, seed)
    return compiled.programs.keep(key, lambda: _searched(compiled, restarts, seed, None, progress))


def known_reference(compiled: CompiledProblem) -> Reference | None:
    """The reference by default settings where it was asked for already."""
    known: Reference | None = compiled.programs.kept(_key(compiled, RESTARTS, SEED))
    return known


def _key(compiled: CompiledProblem, restarts: int, seed: int) -> tuple[Any, ...]:
    return "reference", restarts, seed, compiled.parameter_values


@double_precision
def _searched(compiled: CompiledProblem, restarts: int, seed: int, x0: Any, progress: bool) -> Reference:
    """Search for the best point; errors as for ``Problem.reference``."""
    size = compiled.upper.size
    if size > SIZE_LIMIT:
        raise SettingError(
            f"reference() is for small problems: x has {size} scalars, at most {SIZE_LIMIT} are treated."
        )
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 1:
        raise SettingError(f"restarts={restarts!r}: a whole number of at least 1.")
    search = LocalSearch(compiled)
    given = [] if x0 is None else [compiled.upper.flatten(x0, "x0")]
    candidates, how = candidates_on(compiled, seed, given)
    with RunProgress(2 + restarts, "reference", progress, "searches") as bar:
        values = search.values(candidates)
        bar.update(1, how)
        starts = spread_out(candidates, values, restarts)
        starts += [point for point in given if np.isfinite(search.values(point[None])[0])]
        ends = _ends(search, starts, restarts, bar)
    if not np.isfinite(values).any():
        raise LowerLevelError(
            f"f could not be evaluated at any of {len(candidates)} points of X: Y(x) is empty there, or the lower level was not solved. "
            f"Give x0, or constraints on x that keep the lower level solvable."
        )
    if not ends[0].value > UNBOUNDED:
        raise DivergedError(
            f"f seems unbounded below on X: the search met the value {compiled.sign * ends[0].value:.3g}. Bound X."
        )
    skipped = int(np.sum(~np.isfinite(values)))
    gaps = f" ({skipped:,} of them left out: f has no value there)" if skipped else ""
    joined = f", {search.joined} of which came to where another had ended" if search.joined else ""
    guarantee = (
        f"the best of {how}{gaps} and of {len(starts)} local searches from the best of them{joined}; {search.how}. "
        f"A local minimum up to the searches' accuracy; global unless a basin lies between the points."
    )
    return _described(compiled, _distinct(ends), search.count, guarantee)


def _ends(search: LocalSearch, starts: list[np.ndarray], restarts: int, bar: RunProgress) -> list[LocalMinimum]:
    """Polish every start, and the best once more; without gradients the best three, in few dimensions; best first."""
    compiled = search.compiled
    ends: list[LocalMinimum] = []
    for done, start in enumerate(starts):
        ends.append(search.polish(start, ends=ends))
        bar.update(min(done + 2, restarts + 1), f"f {compiled.sign * min(end.value for end in ends):.6g}")
    best = min(ends, key=lambda end: end.value, default=None)
    if search.rows is not None and best is not None and UNBOUNDED < best.value < np.inf:
        ends = [search.polish(best.x, FINAL), *ends]
    elif search.rows is None and compiled.upper.size <= NELDER_MEAD_LIMIT:
        ends = [search.simplex(end) for end in sorted(ends, key=lambda end: end.value)[:3]] + ends
    bar.update(restarts + 2, "done")
    return sorted(ends, key=lambda end: end.value)


def _distinct(ends: list[LocalMinimum]) -> list[LocalMinimum]:
    """Leave out, of ends in order, those close to a better one."""
    distinct: list[LocalMinimum] = []
    for end in ends:
        if all(np.linalg.norm(end.x - other.x) > 1e-3 * (1 + np.linalg.norm(end.x)) for other in distinct):
            distinct.append(end)
    return distinct


def _described(compiled: CompiledProblem, distinct: list[LocalMinimum], evaluations: int, guarantee: str) -> Reference:
    """Evaluate f at the best of the distinct ends, and describe it."""
    best = distinct[0].x
    evaluation = compiled.exact.at(best)
    solution = evaluation.solution
    return Reference(
        x=compiled.upper.unflatten(best),
        y=None if solution is None else public_response(compiled, solution.y),
        value=compiled.sign * float(evaluation.value),
        certificate=Certificate.of(compiled, best, evaluation),
        local_minima=tuple(compiled.sign * end.value for end in distinct),
        points=tuple(compiled.upper.unflatten(end.x) for end in distinct),
        evaluations=evaluations,
        guarantee=guarantee,
    )
