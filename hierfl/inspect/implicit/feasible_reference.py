"""``problem.reference()`` where upper constraints mention y: the best point whose answers satisfy them.

It is a reference of f with the exact penalty, which is raised until the best point is feasible. As the search looks all over X, a best
point of the violations alone that is not feasible says that nothing is, as far as such a search sees.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem, penalised_problem
from hierfl.compiler.violations import Violations
from hierfl.errors import DivergedError, InfeasibleError
from hierfl.inspect.implicit.reference import Reference, reference
from hierfl.runtime.penalised_run import RAISE, slopes_of
from hierfl.value_certificate import Certificate

MOST = 6  # by what powers of ten the penalty is raised


def feasible_reference(compiled: CompiledProblem, *, restarts: int, seed: int, x0: Any, progress: bool) -> Reference:
    """Look for the reference; arguments and errors as for ``Problem.reference``."""
    settings: dict[str, Any] = {"restarts": restarts, "seed": seed, "x0": x0, "progress": progress}
    if not compiled.coupled.conditions:
        return reference(compiled, **settings)
    goal = penalised_problem(compiled)
    penalty = goal.declaration.penalty
    assert penalty is not None
    rho = slopes_of(compiled, x0, seed).penalty
    for tried in range(MOST + 1):
        penalty.weigh(rho)
        try:
            found = reference(goal, **settings)
        except DivergedError:
            if tried == MOST:
                raise
        else:
            if _violations(compiled, found.x).feasible:
                return _of_f(compiled, found, rho)
        if tried == 1:  # whether it is worth while
            penalty.weigh(1.0, 0.0)
            _require_feasible(compiled, reference(goal, **settings))
        rho *= RAISE
    penalty.weigh(1.0, 0.0)
    least = reference(goal, **settings)
    _require_feasible(compiled, least)
    raise InfeasibleError(
        f"penalties up to {rho / RAISE:.3g} did not make the best point feasible, though there are feasible ones: f may fall without end where the "
        f"upper constraints on y are violated. Bound X, or rescale f."
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
