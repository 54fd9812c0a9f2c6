"""A compiled set against CVXPY: its own evaluation of the constraints, and its own projection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints.constraint import Constraint
from jaxtyping import Float

from hierfl.analysis.conic_solving import status_of
from hierfl.analysis.hoist import hoist, instantiate
from hierfl.compiler.sets.compiled_set import CompiledSet
from hierfl.errors import HierflError
from hierfl.jaxtools.by_numpy.numpy_program import NumpyProgram
from hierfl.language.printing.text import expression_text

_COMPARE_LIMIT = 100
_POINTS = 2
_CONDITION_LIMIT = 1e6  # beyond it the reference, feasible to 1e-8, may be far from the set


def verify(compiled: CompiledSet, environment: Mapping[int, Any], seed: int = 0) -> None:
    """Compare with CVXPY at random points of this environment (small sets) or check the constraints there.

    Raises
    ------
    HierflError
        If they disagree: a defect of hierfl, named with the constraints.
    """
    if not compiled.blocks or not compiled.is_exact:
        return
    if not float(NumpyProgram(compiled.traced_gap, environment)(environment)) <= 0:
        return
    comparable = compiled.size <= _COMPARE_LIMIT
    comparable = comparable and float(NumpyProgram(compiled.condition, environment)(environment)) <= _CONDITION_LIMIT
    project = NumpyProgram(compiled.traced_projection, np.zeros(compiled.size), environment)
    rng = np.random.default_rng(seed)
    for _ in range(_POINTS):
        z = 3 * rng.standard_normal(compiled.size)
        p = np.asarray(project(z, environment))
        error = violation(compiled, p, environment) if np.isfinite(p).all() else np.inf
        if comparable:
            other = reference_projection(compiled, z, environment)
            if other is not None:
                error = max(error, float(np.linalg.norm(z - p) - np.linalg.norm(z - other)))
        if not error <= 1e-5 * (1.0 + float(np.linalg.norm(z)) + float(np.linalg.norm(p))):
            raise HierflError(
                f"internal error: the {compiled.kind} projection on {compiled.label} "
                f"({', '.join(map(expression_text, compiled.constraints))}) is off by {error:.1e}. Please report it."
            )


def reference_projection(
    compiled: CompiledSet, z: Float[np.ndarray, " size"], environment: Mapping[int, Any]
) -> Float[np.ndarray, " size"] | None:
    """The projection by CVXPY on freshly instantiated constraints; None where it does not solve."""
    constraints, twins = _instantiated(compiled, environment)
    flat = cp.hstack([cp.reshape(t, (t.size,), order="C") for t in twins])
    problem = cp.Problem(cp.Minimize(cp.sum_squares(flat - z)), constraints)
    return None if status_of(problem) != cp.OPTIMAL else np.asarray(flat.value)


def violation(compiled: CompiledSet, point: Float[np.ndarray, " size"], environment: Mapping[int, Any]) -> float:
    """The largest violation of the constraints at a point, by CVXPY's own evaluation."""
    constraints, twins = _instantiated(compiled, environment)
    start = 0
    for twin in twins:
        twin.save_value(point[start : start + twin.size].reshape(twin.shape))
        start += twin.size
    with np.errstate(all="ignore"):  # outside a domain the violation is NaN, which counts as infinite
        violations = [float(np.max(c.violation())) for c in constraints]
    return max((np.inf if np.isnan(v) else v for v in violations), default=0.0)


def _instantiated(compiled: CompiledSet, environment: Mapping[int, Any]) -> tuple[list[Constraint], list[cp.Variable]]:
    """The constraints without x or data, and their variables."""
    variables = list(compiled.variables)
    hoisted = hoist(compiled.constraints, variables)
    values = NumpyProgram(compiled.values, environment)(environment)  # JAX would compile each of its operations
    given = {p: np.asarray(values[q.id]) for p, q in zip(hoisted.parameters, compiled.parameters)}
    constraints = instantiate(hoisted.expressions, given)
    return [c for c in constraints if c.variables()], [hoisted.twins[v] for v in variables]
