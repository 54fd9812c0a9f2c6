"""Affine sets A y + b = 0."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import DENSE_ENTRIES, Values
from hierfl.compiler.sets.members.bands import Bands
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections import affine, box


@dataclass(frozen=True, eq=False)
class AffineBlock:
    """Equations, factorised once if their matrix is constant."""

    entries: Int[np.ndarray, " n"]
    bands: Bands
    factor: affine.Factor | None
    kind: str = "affine"
    exact: bool = True

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """A component of equations alone is like no other."""
        equations = len(part.bands) == len(part.members) and all(band.equality for band in part.bands)
        if part.bounds or not equations or len(part.bands) * len(part.entries) > DENSE_ENTRIES:
            return None
        return id(part)

    @classmethod
    def of(cls, parts: Sequence[Component]) -> AffineBlock:
        """The block of a component, factorised now if it can be."""
        (part,) = parts
        bands = Bands(part.bands)
        factor = affine.factorise(bands.constant_matrix(part.entries)) if bands.constant else None
        return cls(part.entries, bands, factor)

    @property
    def cost(self) -> str:
        """A product with the factor, or a factorisation."""
        rows = len(self.bands.members)
        return f"O({rows} n), factorised once" if self.factor is not None else f"O({rows}^2 n), factorised for each x"

    @property
    def advice(self) -> str:
        """Ask for a constant matrix."""
        if self.factor is not None:
            return ""
        return (
            "keep the matrix of the equations constant and let x enter their right-hand sides only: it is then factorised "
            "once"
        )

    def _system(self, values: Values) -> tuple[affine.Factor, Float[Array, " k"]]:
        low, _ = self.bands.interval(values)  # low = high = -b
        return self.factor or affine.factorise_traced(self.bands.dense(values, self.entries)), -low

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Project orthogonally on the solutions."""
        return affine.project(z, *self._system(values))

    def condition(self, values: Values) -> Float[Array, ""]:
        """The condition of the matrix: rounding errors grow by it."""
        return jnp.asarray(self._system(values)[0].condition)

    def gap(self, values: Values) -> Float[Array, ""]:
        """Positive when the equations contradict each other."""
        low, high = self.bands.interval(values)
        return jnp.maximum(affine.gap(*self._system(values)), box.gap(low, high))

    def explain(self) -> str:
        """Name the equations."""
        how = "factorised once" if self.factor is not None else "factorised for each environment"
        return f"affine set, {how}: {constraints_text(self.bands.origins)}"
