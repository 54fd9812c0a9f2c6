"""Conditions without y: they can only make the set empty."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.members.affine_map import CompiledRows, Values
from hierfl.compiler.sets.members.origin import Origin, constraints_text
from hierfl.projections.emptiness import beyond


@dataclass(frozen=True, eq=False)
class ConditionBlock:
    """``b <= 0`` (or ``== 0``) for rows whose coefficients vanish everywhere."""

    origin: Origin
    rows: CompiledRows
    equality: bool
    entries: Int[np.ndarray, 0] = field(default_factory=lambda: np.zeros(0, int))
    kind: str = "condition"
    exact: bool = True
    cost: str = "O(1)"
    advice: str = ""

    def project(self, z: Float[Array, 0], values: Values) -> Float[Array, 0]:
        """Leave the point where it is."""
        return z

    def gap(self, values: Values) -> Float[Array, ""]:
        """The violation of the condition."""
        b = self.rows.offsets(values)
        return beyond(jnp.max(jnp.abs(b) if self.equality else b))

    def explain(self) -> str:
        """Name the condition."""
        return f"condition on x: {constraints_text([self.origin])}"
