"""``problem.reference()`` where upper constraints mention y: the best point whose answers satisfy them.

It is a reference of f with the exact penalty, which is raised until the best point is feasible. As the search looks all over X, a best
point of the violations alone that is not feasible says that nothing is, as far as such a search sees. Where f falls faster than any
multiple of what is violated grows, as -x^3 does beside x - 1, it looks around a feasible point only, ever farther, until the best is within.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem, compile_problem, penalised_problem
from hierfl.compiler.violations import Violations
from hierfl.errors import DivergedError, InfeasibleError
from hierfl.inspect.implicit.reference import Reference, reference
from hierfl.runtime.penalised_run import GUESS, RAISE, slopes_of
from hierfl.value_certificate import Certificate

MOST = 6  # by what powers of ten the penalty is raised
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
    goal = penalised_problem(compiled)
    penalty = goal.declaration.penalty
    assert penalty is not None
    rho, feasible = slopes_of(compiled, settings["x0"], settings["seed"]).penalty, float("inf")
    for tried in range(MOST + 1):
        penalty.weigh(rho)
        enough = 0.0
        with suppress(DivergedError):
            found = reference(goal, **settings)
            if _violations(compiled, found.x).feasible:
                return _of_f(compiled, found, rho)
            value = _value(compiled, found.x)
            violated = (goal.sign * found.value - value) / rho
            if violated > 0 and np.isfinite(feasible):
                enough = GUESS * (feasible - value) / violated  # for a feasible point that is known to be better
        if tried == 1:  # whether it is worth while
            feasible = _value(compiled, _least(compiled, settings).x)
        rho = max(RAISE * rho, enough)
    return None


def _value(compiled: CompiledProblem, x: Any) -> float:
    """f at x, oriented for minimisation."""
    return float(compiled.exact.at(compiled.upper.flatten(x, "x")).value)


def _least(compiled: CompiledProblem, settings: dict[str, Any]) -> Reference:
    """Where the upper constraints are violated least; raises ``InfeasibleError`` where they are."""
    goal = penalised_problem(compiled)
    assert goal.declaration.penalty is not None
    goal.declaration.penalty.weigh(1.0, 0.0)
    least = reference(goal, **settings)
    _require_feasible(compiled, least)
    return least


def _near_feasible(compiled: CompiledProblem, settings: dict[str, Any]) -> Reference:
    """The best point around a feasible one; raises ``DivergedError`` where it is always at the end of what was looked at."""
    centre = compiled.upper.flatten(_least(compiled, settings).x, "x")
    given = compiled.upper.unflatten(centre)
    at = given if isinstance(given, dict) else dict.fromkeys(compiled.upper.variables, given)
    for times in AROUND:
        radius = times * (1.0 + float(np.abs(centre).max()))
        box = [cp.abs(variable - at[variable]) <= radius for variable in compiled.upper.variables]
        declaration = replace(compiled.declaration, constraints=(*compiled.declaration.constraints, *box))
        found = _raised(compile_problem(declaration), settings)
        if found is not None and np.abs(compiled.upper.flatten(found.x, "x") - centre).max() < 0.99 * radius:
            said = f" X was searched within {radius:.3g} of a feasible x: beyond what is feasible f falls faster than a penalty grows."
            return replace(found, guarantee=found.guarantee + said)
    raise DivergedError(
        f"f seems unbounded {'below' if compiled.sign > 0 else 'above'} where the upper constraints on y hold, or next to where they do: within {radius:.3g} of "
        f"a feasible x the best point is at the edge, or none was found. Bound X."
    )


def _violations(compiled: CompiledProblem, x: Any) -> Violations:
    flat = compiled.upper.flatten(x, "x")
    solution = compiled.exact.at(flat).solution
    assert solution is not None
    return Violations.at(compiled, flat, solution.y)


def _require_feasible(compiled: CompiledProblem, least: Reference) -> None:
    violations = _violations(compiled, least.x)
    if not violations.feasible:
        violated = "; ".join(map(str, violations.violated))
        x = np.array2string(compiled.upper.flatten(least.x, "x"), threshold=6, precision=6)
        raise InfeasibleError(
            f"no x was found whose answers satisfy the upper constraints: where they are violated least, at x = {x}, {violated} "
            f"({least.guarantee.partition(';')[0]})."
        )


def _of_f(compiled: CompiledProblem, found: Reference, rho: float) -> Reference:
    """The same point with f there, and those of the other minima that are feasible."""
    flat = compiled.upper.flatten(found.x, "x")
    evaluation = compiled.exact.at(flat)
    kept = [place for place, x in enumerate(found.points) if _violations(compiled, x).feasible]
    values = [compiled.sign * float(compiled.exact.at(compiled.upper.flatten(found.points[k], "x")).value) for k in kept]
    return replace(
        found,
        value=compiled.sign * float(evaluation.value),
        certificate=Certificate.of(compiled, flat, evaluation),
        local_minima=tuple(values),
        points=tuple(found.points[k] for k in kept),
        guarantee=f"{found.guarantee} Upper constraints on y: {'; '.join(map(str, _violations(compiled, found.x).values()))}, with penalty {rho:.3g}.",
    )
