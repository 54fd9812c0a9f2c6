"""Sets that only CVXPY can project on: built once on hoisted parameters, called from compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.analysis.conic_solving import tight_status_of
from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.memberships import Opaque
from hierfl.compiler.sets.members.origin import Origin, constraints_text
from hierfl.errors import IncompatibleSolverError
from hierfl.jaxtools.host_callback import call_on_host


@dataclass(frozen=True, eq=False)
class CvxpyBlock:
    """Projection by a parametrised CVXPY problem on the host; NaN where the set is empty."""

    entries: Int[np.ndarray, " n"]
    problem: cp.Problem
    feasibility: cp.Problem
    target: cp.Parameter
    twins: tuple[cp.Variable, ...]
    parameters: tuple[cp.Parameter, ...]
    origins: tuple[Origin, ...]
    reasons: tuple[str, ...]
    kind: str = "cvxpy"
    exact: bool = False
    cost: str = "a conic program on the host"
    advice: str = (
        "a projection without CVXPY needs bounds, norms (1, 2, inf, nuclear, spectral) of expressions with orthogonal rows, "
        "simplices, a few affine rows over a box, cones, or one of these cut by one ball or one band"
    )

    @classmethod
    def of(
        cls, parts: Sequence[Component], twins: Sequence[cp.Variable], parameters: Sequence[cp.Parameter]
    ) -> CvxpyBlock:
        """Build min ||y - z||^2 over the constraints of these components."""
        entries = np.unique(np.concatenate([part.entries for part in parts]))
        origins = tuple(dict.fromkeys(origin for part in parts for origin in part.origins))
        constraints = list({id(origin.hoisted): origin.hoisted for origin in origins}.values())
        used = {leaf.id for c in constraints for leaf in c.parameters()}
        flat = cp.hstack([cp.reshape(t, (t.size,), order="C") for t in twins])
        target = cp.Parameter(len(entries), name="z")
        reasons = dict.fromkeys(m.reason for part in parts for m in part.members if isinstance(m, Opaque))
        return cls(
            entries,
            cp.Problem(cp.Minimize(cp.sum_squares(flat[entries] - target)), constraints),
            cp.Problem(cp.Minimize(0), constraints),
            target,
            tuple(twins),
            tuple(p for p in parameters if p.id in used),
            origins,
            tuple(reasons) or ("coupled constraints without a closed form",),
        )

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Call CVXPY on the host; accurate to the solver's tolerance (about 1e-8)."""

        def on_host(point: np.ndarray, *given: np.ndarray) -> np.ndarray:
            if not all(np.isfinite(array).all() for array in (point, *given)):
                return np.full(len(self.entries), np.nan)  # an earlier failure passes through
            self._set(given)
            self.target.save_value(np.asarray(point, dtype=float))
            status = tight_status_of(self.problem)
            solution = [twin.value for twin in self.twins]
            if status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE) or any(v is None for v in solution):
                return np.full(len(self.entries), np.nan)
            return np.concatenate([np.ravel(v) for v in solution])[self.entries]

        refusal = IncompatibleSolverError(
            f"the projection on {constraints_text(self.origins)} is a conic program and has values only, but its derivative was asked for: "
            f"use FedRZO or ZOHFL, which ask for values only."
        )
        return call_on_host(on_host, z.shape, z.dtype, z, *self._given(values), refusal=refusal)

    def gap(self, values: Values) -> Float[Array, ""]:
        """+inf when CVXPY finds the constraints infeasible, else -inf."""

        def on_host(*given: np.ndarray) -> np.ndarray:
            self._set(given)
            feasible = tight_status_of(self.feasibility) in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
            return np.asarray(-np.inf if feasible else np.inf)

        return call_on_host(on_host, (), jnp.zeros(()).dtype, *self._given(values))

    def explain(self) -> str:
        """Say why there is no closed form, and how often CVXPY canonicalises."""
        how = "canonicalised once" if self.problem.is_dpp() else "canonicalised at every projection (not DPP)"
        return f"CVXPY, {how}: {constraints_text(self.origins)} ({'; '.join(self.reasons)})"

    def _given(self, values: Values) -> list[Array]:
        return [jnp.asarray(values[p.id], float) for p in self.parameters]

    def _set(self, given: Sequence[np.ndarray]) -> None:
        for parameter, value in zip(self.parameters, given):
            parameter.save_value(np.asarray(value, dtype=float))
