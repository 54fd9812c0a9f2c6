"""Conditions without y: they can only make the set empty."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.members import Origin, names
from hierfl.compiler.sets.rows import Rows, Values
from hierfl.projections.emptiness import beyond


@dataclass(frozen=True, eq=False)
class ConditionBlock:
    """``b <= 0`` (or ``== 0``) for rows whose coefficients vanish everywhere."""

    origin: Origin
    rows: Rows
    equality: bool
    entries: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    kind: str = "condition"
    exact: bool = True
    cost: str = "O(1)"

    def project(self, z: Array, values: Values) -> Array:
        """Nothing to do."""
        return z

    def gap(self, values: Values) -> Array:
        """The violation of the condition."""
        b = self.rows.offsets(values)
        return beyond(jnp.max(jnp.abs(b) if self.equality else b))

    def explain(self) -> str:
        """The condition."""
        return f"condition on x: {names([self.origin])}"
