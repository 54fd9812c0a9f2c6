"""Sets of which no rule knows the projection: their nearest point by a program on the host, canonicalised once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.parametric.nearest_point import NearestPoint
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.memberships import Opaque
from hierfl.compiler.sets.members.origin import Origin, constraints_text
from hierfl.errors import NotConvexError, UnsupportedAtomError
from hierfl.language.function import user_code_in


@dataclass(frozen=True, eq=False)
class ProgramBlock:
    """Projection by a parametric program on the host; NaN where the set is empty."""

    entries: Int[np.ndarray, " n"]
    nearest: NearestPoint
    parameters: tuple[cp.Parameter, ...]
    origins: tuple[Origin, ...]
    reasons: tuple[str, ...]
    kind: str = "program"
    exact: bool = False
    cost: str = "a conic program on the host"
    advice: str = (
        "a projection without a program needs bounds, norms (1, 2, inf) of expressions with constant orthogonal rows, "
        "simplices, affine rows over a box, second-order cones or semidefinite matrices, none of which share entries of y"
    )

    @classmethod
    def of(
        cls, parts: Sequence[Component], twins: Sequence[cp.Variable], parameters: Sequence[cp.Parameter]
    ) -> ProgramBlock:
        """Min ||y - z||^2 over the constraints of these components.

        Raises
        ------
        NotConvexError, UnsupportedAtomError
            Where a constraint has user code, or something else of which no cone is known.
        """
        entries = np.unique(np.concatenate([part.entries for part in parts]))
        origins = tuple(dict.fromkeys(origin for part in parts for origin in part.origins))
        constraints = list({id(origin.hoisted): origin.hoisted for origin in origins}.values())
        used = {leaf.id for c in constraints for leaf in c.parameters()}
        reasons = dict.fromkeys(m.reason for part in parts for m in part.members if isinstance(m, Opaque))
        try:
            nearest = NearestPoint.on(constraints, twins)
        except NoStandardFormError as reason:
            refusal = NotConvexError if any(map(user_code_in, constraints)) else UnsupportedAtomError
            raise refusal(f"there is no projection on {constraints_text(origins)}: {reason}.") from None
        return cls(
            entries,
            nearest,
            tuple(p for p in parameters if p.id in used),
            origins,
            tuple(reasons) or ("coupled constraints without a closed form",),
        )

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """The nearest point, to about 1e-9 of its size."""
        fine = jnp.isfinite(z).all()  # an earlier failure passes through
        whole = jnp.zeros(self.nearest.size, z.dtype).at[self.entries].set(jnp.where(fine, z, 0.0))
        return jnp.where(fine, self.nearest.project(whole, self._given(values))[self.entries], jnp.nan)

    def gap(self, values: Values) -> Float[Array, ""]:
        """Positive where the set is empty, else negative."""
        return self.nearest.gap(self._given(values))

    def explain(self) -> str:
        """Say why there is no closed form."""
        return f"a program for the nearest point: {constraints_text(self.origins)} ({'; '.join(self.reasons)})"

    def _given(self, values: Values) -> dict[int, Array]:
        return {p.id: jnp.asarray(values[p.id], float) for p in self.parameters}
