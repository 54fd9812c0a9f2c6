"""An exactly projectable set cut by one band: a one-dimensional root search over its projections."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.blocks.block import Product, checked
from hierfl.compiler.sets.blocks.nested import Nested
from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.bands import Bands
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections import box, intersection
from hierfl.projections.emptiness import beyond


@dataclass(frozen=True, eq=False)
class CutByBand:
    """The inner set with ``low <= a'y <= high``."""

    entries: Int[np.ndarray, " n"]
    inner: Product
    band: Bands
    exact: bool = True
    advice: str = ""

    @classmethod
    def of(cls, part: Component, nested: Nested) -> CutByBand | None:
        """The block of a component with one band, if there is an exact projection on the rest."""
        if not nested.allows_search or len(part.bands) != 1:
            return None
        rest = [member for member in part.members if member is not part.bands[0]]
        inner = nested.inside_search(rest, part.bounds, part.entries)
        return None if inner is None else cls(part.entries, inner, Bands(part.bands))

    @property
    def kind(self) -> str:
        """The inner kinds and a band."""
        return f"{' and '.join(self.inner.kinds) or 'whole space'} with a band"

    @property
    def cost(self) -> str:
        """Some tens of inner projections."""
        return f"some tens of projections of {', '.join(self.inner.costs) or 'O(n)'}"

    def _solve(self, z: Float[Array, " n"], values: Values) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        a = self.band.dense(values, self.entries)[0]
        low, high = self.band.interval(values)
        return intersection.with_strip(lambda p: self.inner.project(p, values), z, a, low[0], high[0])

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """NaN where the root was not found."""
        return checked(*self._solve(z, values))

    def gap(self, values: Values) -> Float[Array, ""]:
        """The inner gap, or how far the band is out of the inner set's reach."""
        low, high = self.band.interval(values)
        _, residual = self._solve(jnp.zeros(len(self.entries)), values)
        return jnp.maximum(jnp.maximum(self.inner.gap(values), box.gap(low, high)), beyond(residual))

    def explain(self) -> str:
        """Name the inner blocks and the band."""
        band = constraints_text(self.band.origins)
        return f"{self.inner.explain()}; cut by a band, by a root search for its multiplier: {band}"
