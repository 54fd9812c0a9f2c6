"""A box with several bands, by a semismooth Newton method on their multipliers."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.blocks.block import checked
from hierfl.compiler.sets.members import Bands, Bounds, limits, names
from hierfl.compiler.sets.rows import Values
from hierfl.projections import box, polyhedron

ROW_LIMIT = 100


@dataclass(frozen=True, eq=False)
class PolyhedronBlock:
    """``low <= A y <= high`` with bounds on the entries, at most ``ROW_LIMIT`` rows."""

    entries: np.ndarray
    bands: Bands
    bounds: tuple[Bounds, ...]
    matrix: np.ndarray | None  # None where it moves
    kind: str = "polyhedron"
    exact: bool = True

    @property
    def cost(self) -> str:
        """Some factorisations of the rows' Gram matrix."""
        rows = len(self.bands.members)
        return f"O({rows}^2 n) a Newton step, few steps"

    def _set(self, values: Values) -> tuple[Array, ...]:
        matrix = jnp.asarray(self.matrix, float) if self.matrix is not None else self.bands.dense(values, self.entries)
        lower, upper, _ = limits(self.bounds, self.entries, values)
        return matrix, *self.bands.interval(values), lower, upper

    def project(self, z: Array, values: Values) -> Array:
        """NaN where the method stopped short."""
        return checked(*polyhedron.project(z, *self._set(values)))

    def gap(self, values: Values) -> Array:
        """Positive when the bands and the box do not meet."""
        _, low, high, lower, upper = found = self._set(values)
        trivially = jnp.maximum(box.gap(lower, upper), box.gap(low, high))
        _, _, broken = limits(self.bounds, self.entries, values)
        return jnp.maximum(polyhedron.gap(*found), jnp.maximum(trivially, broken))

    def explain(self) -> str:
        """The rows and the bounds."""
        constraints = names([*self.bands.origins, *(b.origin for b in self.bounds)])
        return (
            f"polyhedron of {len(self.bands.members)} bands over a box, by semismooth Newton on the dual: {constraints}"
        )
