"""Where a run ended, for its result to print: how steep f^eta is there, if that costs next to nothing, and f beside its reference."""

from __future__ import annotations

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.starting_points import on_upper_set
from hierfl.errors import DivergedError, EmptyLowerSetError, ForkedProcessError, LowerLevelError
from hierfl.inspect.implicit.points import owners
from hierfl.inspect.implicit.reference import known_reference
from hierfl.inspect.implicit.smoothing import gradient_norm, sphere_points
from hierfl.jaxtools.precision import double_precision
from hierfl.result import Result

EQUAL = 1e-9  # relative: what f(x) and the reference may differ by to be called one
PAIRS = 32  # of values; one pair where x is a number, since it says all
SHARE = 0.1  # of a second for the lower level, at most
SCALARS = 5_000  # of answers and data at one point, at most


def where_it_ended(compiled: CompiledProblem, result: Result) -> list[str]:
    """What is known of a result's x beside its run's own records, in lines."""
    return [*_slope_line(compiled, result), *_reference_line(compiled, result)]


def _slope_line(compiled: CompiledProblem, result: Result) -> list[str]:
    """The slope of (f o P_X)^eta, of a run that descends on it; nothing in a forked process, which cannot compute."""
    eta, settings = result.settings.get("smoothing"), result.settings
    if result.status == "diverged" or not isinstance(eta, float) or settings["queries"] != "projected":
        return []
    try:
        slope = slope_where_cheap(compiled, compiled.upper.flatten(result.x, "x"), eta, settings["seed"])
    except ForkedProcessError:
        return []
    if slope is None:
        return []
    norm, low, high, pairs = slope
    seen = f"from {pairs} pairs of points" if pairs > 1 else "to rounding"
    return [f"slope of f^eta at x {norm:.2g}, 95% interval [{low:.2g}, {high:.2g}] {seen}, eta = {eta:g}"]


def _reference_line(compiled: CompiledProblem, result: Result) -> list[str]:
    """How far f(x) is from the reference, where that was asked for before."""
    known = known_reference(compiled)
    if known is None:
        return []
    gap = compiled.sign * (result.value - known.value)
    if abs(gap) <= EQUAL * abs(known.value):
        return ["f(x) is that of reference()"]
    return [f"f(x) is {abs(gap):.2g} {'worse' if gap > 0 else 'better'} than reference()"]


@double_precision
def slope_where_cheap(
    compiled: CompiledProblem, x: np.ndarray, eta: float, seed: int
) -> tuple[float, float, float, int] | None:
    """||grad (f o P_X)^eta(x)|| for x (n,), the ends of its 95% interval and the pairs of points around x whose exact values tell it.

    The interval knows nothing of pieces of f that no pair met and that are steeper than all that were. None for large data and for
    lower levels that take iterations, which would be noticed, and where f has no value at one of the points. ``problem.implicit.stationarity`` answers at any cost, and more exactly.
    """
    count = PAIRS if x.size > 1 else 1
    if not is_cheap(compiled, 2 * count):
        return None
    directions = sphere_points(np.random.default_rng(seed), count, x.size) if x.size > 1 else np.ones((1, 1))
    at = on_upper_set(compiled, x + eta * np.concatenate([directions, -directions]))
    try:
        values = np.array([float(evaluation.value) for evaluation in compiled.exact.at_each(at)])
    except (EmptyLowerSetError, LowerLevelError, DivergedError):
        return None
    norm, (low, high) = gradient_norm(compiled, at, values, eta, directions, np.zeros(x.size), 0.0)
    return norm, low, high, count


def is_cheap(compiled: CompiledProblem, points: int) -> bool:
    """Whether f has values here, and at so many points takes next to no time, by its size, which does not change from run to run."""
    if compiled.elsewhere:
        return False
    method, answers = compiled.exact.method, owners(compiled)
    rows = sum(int(np.sum(table.counts)) for table in compiled.static_data.clients.tables)
    if rows + answers * compiled.lower.size > SCALARS:
        return False
    return method is None or (not method.iterative and points * answers <= SHARE * method.solutions_in_a_second)
