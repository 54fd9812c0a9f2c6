"""Boxes whose bounds may move."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.members import Bounds, limits, names
from hierfl.compiler.sets.rows import Values
from hierfl.projections import box


@dataclass(frozen=True, eq=False)
class BoxBlock:
    """Entries with bounds only."""

    entries: np.ndarray
    bounds: tuple[Bounds, ...]
    kind: str = "box"
    exact: bool = True
    cost: str = "O(n)"

    def limits(self, values: Values) -> tuple[Array, Array]:
        """(lower, upper) of the entries."""
        lower, upper, _ = limits(self.bounds, self.entries, values)
        return lower, upper

    def project(self, z: Array, values: Values) -> Array:
        """Clip."""
        lower, upper, _ = limits(self.bounds, self.entries, values)
        return box.project(z, lower, upper)

    def gap(self, values: Values) -> Array:
        """max(lower - upper)."""
        lower, upper, broken = limits(self.bounds, self.entries, values)
        return jnp.maximum(box.gap(lower, upper), broken)

    def explain(self) -> str:
        """The constraints behind the bounds."""
        return f"box, by clipping: {names(b.origin for b in self.bounds)}"
