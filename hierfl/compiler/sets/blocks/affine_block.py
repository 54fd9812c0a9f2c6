"""Affine sets A y + b = 0."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.members import Bands, names
from hierfl.compiler.sets.rows import Values
from hierfl.projections import affine, box


@dataclass(frozen=True, eq=False)
class AffineBlock:
    """Equations, factorised once if their matrix is constant."""

    entries: np.ndarray
    bands: Bands
    factor: affine.Factor | None
    kind: str = "affine"
    exact: bool = True

    @classmethod
    def of(cls, entries: np.ndarray, bands: Bands) -> AffineBlock:
        """The block, factorised now if it can be."""
        return cls(entries, bands, affine.factorise(bands.constant_matrix(entries)) if bands.constant else None)

    @property
    def cost(self) -> str:
        """A product with the factor, or a factorisation."""
        rows = len(self.bands.members)
        return f"O({rows} n), factorised once" if self.factor is not None else f"O({rows}^2 n), factorised for each x"

    def _system(self, values: Values) -> tuple[affine.Factor, Array]:
        low, _ = self.bands.interval(values)  # low = high = -b
        return self.factor or affine.factorise_traced(self.bands.dense(values, self.entries)), -low

    def project(self, z: Array, values: Values) -> Array:
        """Orthogonal projection on the solutions."""
        return affine.project(z, *self._system(values))

    def condition(self, values: Values) -> Array:
        """Of the matrix."""
        return jnp.asarray(self._system(values)[0].condition)

    def gap(self, values: Values) -> Array:
        """Positive when the equations contradict each other."""
        low, high = self.bands.interval(values)
        return jnp.maximum(affine.gap(*self._system(values)), box.gap(low, high))

    def explain(self) -> str:
        """The equations."""
        how = "factorised once" if self.factor is not None else "factorised for each environment"
        return f"affine set, {how}: {names(self.bands.origins)}"
