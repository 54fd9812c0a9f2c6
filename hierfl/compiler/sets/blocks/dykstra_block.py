"""Other intersections of exactly projectable sets: Dykstra's algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.blocks.block import Product, checked, largest_gap
from hierfl.compiler.sets.rows import Values
from hierfl.projections import dykstra

TOLERANCE = 1e-11
LIMIT = 20_000


@dataclass(frozen=True, eq=False)
class DykstraBlock:
    """The intersection of some sets, each with an exact projection; accurate to the iteration's residual."""

    entries: np.ndarray
    parts: tuple[Product, ...]
    exact: bool = False

    @property
    def kind(self) -> str:
        """What is intersected."""
        kinds = [kind for part in self.parts for kind in dict.fromkeys(block.kind for block in part.blocks)]
        return f"intersection of {', '.join(kinds)}"

    @property
    def cost(self) -> str:
        """Many projections."""
        return "many projections on each set"

    def _solve(self, z: Array, values: Values) -> tuple[Array, Array]:
        projections = [lambda p, part=part: part.project(p, values) for part in self.parts]
        return dykstra.project(z, projections, TOLERANCE, LIMIT)

    def project(self, z: Array, values: Values) -> Array:
        """NaN where the iteration stopped with a relative residual above 1e-6."""
        return checked(*self._solve(z, values))

    def gap(self, values: Values) -> Array:
        """The gaps of the sets, or their distance as Dykstra's algorithm shows it (above 1e-6 only)."""
        _, residual = self._solve(jnp.zeros(len(self.entries)), values)
        apart = jnp.where(residual > 1e-6, residual, -jnp.inf)
        return jnp.maximum(largest_gap([part.gap(values) for part in self.parts]), apart)

    def explain(self) -> str:
        """The sets."""
        sets = "; ".join(block.explain() for part in self.parts for block in part.blocks)
        return f"intersection by Dykstra's algorithm, to a residual of {TOLERANCE:g}: {sets}"
