"""Sets that only CVXPY can project on: built once on hoisted parameters, called from compiled code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.host import call_on_host
from hierfl.compiler.program import Array

if TYPE_CHECKING:
    from hierfl.compiler.pieces import Piece
    from hierfl.compiler.sets import CompiledSet

_TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}


@dataclass(frozen=True, eq=False)
class CvxpyBlock:
    """Projection by a parametrised CVXPY problem on the host; NaN where the set is empty."""

    entries: np.ndarray
    problem: cp.Problem
    feasibility: cp.Problem
    target: cp.Parameter
    twins: tuple[cp.Variable, ...]
    parameters: tuple[cp.Parameter, ...]
    reasons: tuple[str, ...]
    kind: str = "cvxpy"

    @classmethod
    def of(
        cls,
        entries: np.ndarray,
        pieces: Sequence[Piece],
        twins: Sequence[cp.Variable],
        parameters: Sequence[cp.Parameter],
    ) -> CvxpyBlock:
        """Build min ||y - z||^2 over these pieces' constraints."""
        from hierfl.compiler.recognise import Other

        constraints = list({id(p.constraint): p.constraint for p in pieces}.values())
        used = {leaf.id for c in constraints for leaf in c.parameters()}
        flat = (
            cp.hstack([cp.reshape(t, (t.size,), order="C") for t in twins])
            if len(twins) > 1
            else cp.reshape(twins[0], (twins[0].size,), order="C")
        )
        target = cp.Parameter(len(entries), name="z")
        distance = cp.sum_squares(flat[entries] - target)
        reasons = tuple(dict.fromkeys(p.found.reason for p in pieces if isinstance(p.found, Other))) or (
            "coupled constraints without a closed form",
        )
        return cls(
            entries,
            cp.Problem(cp.Minimize(distance), constraints),
            cp.Problem(cp.Minimize(0), constraints),
            target,
            tuple(twins),
            tuple(p for p in parameters if p.id in used),
            reasons,
        )

    def project(self, z: Array, values: Mapping[int, Any]) -> Array:
        """Through a callback; accurate to the solver's tolerance (about 1e-8)."""

        def on_host(point: np.ndarray, *given: np.ndarray) -> np.ndarray:
            if not all(np.isfinite(array).all() for array in (point, *given)):
                return np.full(len(self.entries), np.nan)  # an earlier failure passes through
            self._set(given)
            self.target.save_value(np.asarray(point, dtype=float))
            _solve(self.problem)
            solution = [twin.value for twin in self.twins]
            if self.problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE) or any(v is None for v in solution):
                return np.full(len(self.entries), np.nan)
            return np.concatenate([np.ravel(v) for v in solution])[self.entries]

        return call_on_host(on_host, z.shape, z.dtype, z, *self._given(values))

    def gap(self, values: Mapping[int, Any]) -> Array:
        """+inf when CVXPY finds the constraints infeasible, else -inf."""

        def on_host(*given: np.ndarray) -> np.ndarray:
            self._set(given)
            _solve(self.feasibility)
            feasible = self.feasibility.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
            return np.asarray(-np.inf if feasible else np.inf)

        return call_on_host(on_host, (), jnp.zeros(()).dtype, *self._given(values))

    def explain(self) -> str:
        """Why there is no closed form, and how often CVXPY canonicalises."""
        how = "canonicalised once" if self.problem.is_dpp() else "canonicalised at every projection (not DPP)"
        return f"CVXPY, {how}: {'; '.join(self.reasons)}"

    def _given(self, values: Mapping[int, Any]) -> list[Any]:
        return [jnp.asarray(values[p.id], float) for p in self.parameters]

    def _set(self, given: Sequence[np.ndarray]) -> None:
        for parameter, value in zip(self.parameters, given):
            parameter.save_value(np.asarray(value, dtype=float))


def _solve(problem: cp.Problem) -> None:
    try:
        problem.solve(solver=cp.CLARABEL, **_TIGHT)
    except cp.SolverError:
        problem.solve(solver=cp.CLARABEL)


def reference_projection(compiled: CompiledSet, z: np.ndarray, environment: Mapping[int, Any]) -> np.ndarray | None:
    """The projection by CVXPY on freshly instantiated constraints; None where it does not solve."""
    problem, flat = _instantiated(compiled, environment)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(flat - z)), problem.constraints)
    try:
        problem.solve(solver=cp.CLARABEL)
    except cp.SolverError:
        return None
    return None if problem.status != cp.OPTIMAL else np.asarray(flat.value)


def violation(compiled: CompiledSet, point: np.ndarray, environment: Mapping[int, Any]) -> float:
    """The largest violation of the constraints at a point, by CVXPY's own evaluation."""
    problem, flat = _instantiated(compiled, environment)
    start = 0
    for variable in flat.variables_in_order:
        variable.save_value(point[start : start + variable.size].reshape(variable.shape))
        start += variable.size
    return max((float(np.max(c.violation())) for c in problem.constraints), default=0.0)


def _instantiated(compiled: CompiledSet, environment: Mapping[int, Any]) -> tuple[cp.Problem, Any]:
    from hierfl.analysis.hoist import hoist, instantiate

    variables = list(compiled.variables)
    hoisted = hoist(compiled.constraints, variables)
    values = compiled.values(environment)
    given = {p: np.asarray(values[q.id]) for p, q in zip(hoisted.parameters, compiled.parameters)}
    constraints = instantiate(hoisted.expressions, given)
    twins = [hoisted.twins[v] for v in variables]
    flat = cp.hstack([cp.reshape(t, (t.size,), order="C") for t in twins])
    flat.variables_in_order = twins
    return cp.Problem(cp.Minimize(0), [c for c in constraints if c.variables()]), flat
