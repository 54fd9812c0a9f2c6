"""Which solver ``problem.solve()`` takes when none is named, and why."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem, penalised_problem
from hierfl.compiler.starting_points import box_around, on_upper_set, sobol_points, start_point
from hierfl.descent.basin_hopping import BETTER
from hierfl.descent.convex_best import convex_optimum, shared_best
from hierfl.descent.implicit_oracle import ImplicitOracle
from hierfl.errors import HierflError, IncompatibleSolverError, NoGradientError, SettingError
from hierfl.jaxtools.interruption import CutShort, impatient
from hierfl.jaxtools.precision import double_precision
from hierfl.progress import Waiting
from hierfl.run_settings import RunSettings
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers.branch_and_bound import BranchAndBound
from hierfl.solvers.fedrzo import FedRZO
from hierfl.solvers.implicit_bundle import MANY, ImplicitBundle
from hierfl.solvers.lower.lower_solver import batch_by_default
from hierfl.solvers.newton import Newton
from hierfl.solvers.zohfl import ZOHFL

STARTS = 32  # points that are looked at where f has no value at the first
HOPS = 1000  # within a budget


@double_precision
def choose_solver(compiled: CompiledProblem, settings: RunSettings) -> tuple[Any, str, Any]:
    """(a solver, the reason for it in a line, another x to begin at where there is one).

    It is Newton's where a smooth convex loss is fitted to rows, wherever they are. Else it is the bundle method where all data are here: by gradients whatever its size, and where f has none by differences, in variables
    that are not many; within a budget it begins again as long as there is some left. Else it is the papers' algorithm, with a step that it finds: ZO-HFL for client scope, FedRZO for others and private X_i. Whole
    numbers among x are branched on.
    """
    if compiled.upper.whole.any():
        return BranchAndBound(), "x has whole numbers, and its optimum is proved", None
    if _fits_newton(compiled, settings):
        return Newton(), "f is convex and smooth in free variables, and averages rows, of which each client sends sums of derivatives", None
    if compiled.coupled.conditions and compiled.declaration.penalty is None:
        compiled = penalised_problem(compiled)  # whose objective the run descends on
    try:
        with impatient():
            against = _against_values(compiled, settings)
            without = None if against else _against_gradients(compiled, settings)
    except CutShort:  # no round will be made
        against, without = "whether f has exact gradients was not found out in time", None
    hops = 0 if settings.budget is None else HOPS
    again = ", which begins again as long as the budget lasts" if hops else ""
    if against is None and without is None:
        free = settings.x0 is None and settings.restarts is None
        optimum, start, elsewhere = None, None, ""
        with suppress(CutShort), impatient(), Waiting("where to begin", settings.progress):
            optimum = convex_optimum(compiled) if free else None
            start, elsewhere = _another_start(compiled, settings.seed, free) if optimum is None else (None, "")
        if optimum is not None:
            bound = compiled.sign * optimum.bound if np.isfinite(optimum.bound) else None
            why = "f and X are one convex program, at whose solution it begins" + ", and whose multipliers bound f" * (bound is not None)
            return ImplicitBundle(bound=bound), why, compiled.upper.unflatten(optimum.x)
        again = again or "; restarts=... begins it at other points as well"
        why = f"f has exact gradients and all data are in this process; it is a local method{again}{elsewhere}"
        return ImplicitBundle(hops=hops), why, start
    if against is None and compiled.upper.size <= MANY:
        why = f"{without}, and n + 1 values a point stand for one; it is a local method{again}"
        return ImplicitBundle(gradients="differences", hops=hops), why, None
    against = against or without
    rows = batch_by_default(compiled)
    if compiled.scope == "client" and compiled.private_set is None:
        return ZOHFL(step_size="auto", **rows), f"it is the papers' algorithm for client scope, and {against}", None
    return FedRZO(step_size="auto", **rows), f"it is the papers' algorithm, and {against}", None


def _fits_newton(compiled: CompiledProblem, settings: RunSettings) -> bool:
    """Whether f is a smooth convex loss of rows, in few variables, by the rules of the calculus."""
    objective = compiled.declaration.objective
    convex = all(term.is_convex() if objective.sign > 0 else term.is_concave() for term in objective.terms)
    if not convex or not (compiled.upper_samples or compiled.server_samples) or getattr(settings.runtime, "noise", None) is not None:
        return False
    try:
        Newton().bind(compiled, settings.most_rounds, settings.queries)
    except (IncompatibleSolverError, SettingError):
        return False
    return True


def _another_start(compiled: CompiledProblem, seed: int, free: bool) -> tuple[Any, str]:
    """Where to begin better than at the projection of 0 on X, and why; None where there is no such place, or the start is not free but asked for."""
    oracle = ImplicitOracle(compiled, seed)
    first = oracle(start_point(compiled, None)) if free else None
    if first is None and not oracle.outside:
        return None, ""
    prices = None if first is None else shared_best(compiled, first.x)
    others, why = [] if prices is None else [oracle.inside(prices)], "prices at which those below do what is best above"
    if first is None:
        around = sobol_points(box_around(compiled, start_point(compiled, None)), STARTS, seed)
        others, why = list(on_upper_set(compiled, around)), f"the best of {STARTS} points of X, as f has no value at the projection of 0"
    points = [point for point in map(oracle, others) if point is not None]
    best = min(points, key=lambda point: point.value, default=first)
    if best is not None and (first is None or best.value < first.value - BETTER * (1.0 + abs(first.value))):
        return compiled.upper.unflatten(best.x), f", and begins at {why}"
    return None, ""


def _against_values(compiled: CompiledProblem, settings: RunSettings) -> str | None:
    """What speaks against asking for f at points of X; None where nothing does."""
    runtime = settings.runtime or InProcess()
    if not isinstance(runtime, InProcess) or runtime != InProcess():
        return f"{runtime} asks for another way of running than exact values have"
    if compiled.elsewhere:
        return "clients hold their data elsewhere"
    if settings.queries != "projected":
        return f"queries={settings.queries!r} asks for points outside X"
    return None


def _against_gradients(compiled: CompiledProblem, settings: RunSettings) -> str | None:
    """What speaks against asking for gradients as well; None where nothing does."""
    try:
        ImplicitBundle().bind(compiled, settings.most_rounds)
        ImplicitOracle(compiled, settings.seed).require(start_point(compiled, settings.x0))
    except (IncompatibleSolverError, NoGradientError) as error:
        return f"f has no gradients: {str(error).partition(': use ')[0]}"
    except HierflError:
        pass  # f has no value at the start: the run says so
    return None
