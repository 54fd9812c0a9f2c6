"""A box with several bands, by a semismooth Newton method on their multipliers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import DENSE_ENTRIES, Values
from hierfl.compiler.sets.members.bands import Bands
from hierfl.compiler.sets.members.entry_bounds import EntryBounds, limits
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections import polyhedron

ROW_LIMIT = 100
FOUND = 1e-6  # the relative residual from which on a point was not found


@dataclass(frozen=True, eq=False)
class PolyhedronBlock:
    """``low <= A y <= high`` with bounds on the entries, at most ``ROW_LIMIT`` rows."""

    entries: Int[np.ndarray, " n"]
    bands: Bands
    bounds: tuple[EntryBounds, ...]
    matrix: Float[np.ndarray, "k n"] | None  # None where it moves
    kind: str = "polyhedron"
    exact: bool = True

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """A component of bands and bounds is like no other."""
        rows = len(part.bands)
        if rows < len(part.members) or rows > ROW_LIMIT or rows * len(part.entries) > DENSE_ENTRIES:
            return None
        return id(part)

    @classmethod
    def of(cls, parts: Sequence[Component]) -> PolyhedronBlock:
        """The block of a component."""
        (part,) = parts
        bands = Bands(part.bands)
        return cls(part.entries, bands, part.bounds, bands.constant_matrix(part.entries) if bands.constant else None)

    @property
    def cost(self) -> str:
        """Some factorisations of the rows' Gram matrix."""
        rows = len(self.bands.members)
        return f"O({rows}^2 n) a Newton step, few steps"

    @property
    def advice(self) -> str:
        """Ask for constant rows."""
        if self.matrix is not None:
            return ""
        return "keep the rows constant and let x enter their right-hand sides only"

    def _set(self, values: Values) -> tuple[Array, ...]:
        """(matrix, low, high, lower, upper)."""
        matrix = jnp.asarray(self.matrix, float) if self.matrix is not None else self.bands.dense(values, self.entries)
        lower, upper, _ = limits(self.bounds, self.entries, values)
        return matrix, *self.bands.interval(values), lower, upper

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """NaN where the method stopped short."""
        p, residual = polyhedron.project(z, *self._set(values))
        return jnp.where(residual <= FOUND, p, jnp.nan)

    def gap(self, values: Values) -> Float[Array, ""]:
        """Positive when the bands and the box do not meet, or a bound whose coefficient vanishes does not hold."""
        return jnp.maximum(polyhedron.gap(*self._set(values)), limits(self.bounds, self.entries, values)[2])

    def explain(self) -> str:
        """Name the rows and the bounds."""
        constraints = constraints_text([*self.bands.origins, *(b.origin for b in self.bounds)])
        return (
            f"polyhedron of {len(self.bands.members)} bands over a box, by semismooth Newton on the dual: {constraints}"
        )
