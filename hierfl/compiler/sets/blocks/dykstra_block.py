"""Other intersections of exactly projectable sets: Dykstra's algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.blocks.block import Product, checked, largest_gap
from hierfl.compiler.sets.blocks.nested import Nested
from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.projections import dykstra

TOLERANCE = 1e-11
LIMIT = 20_000


@dataclass(frozen=True, eq=False)
class DykstraBlock:
    """The intersection of some sets, each with an exact projection; accurate to the iteration's residual."""

    entries: Int[np.ndarray, " n"]
    parts: tuple[Product, ...]
    exact: bool = False
    cost: str = "many projections on each set"
    advice: str = (
        "one ball or one band beside a single family has an exact projection; several families are iterated on"
    )

    @classmethod
    def of(cls, part: Component, nested: Nested) -> DykstraBlock | None:
        """The block of a component that no other is around, if each of its parts has a projection without a root search."""
        if nested.depth > 0:
            return None
        affine = nested.without_search(part.bands, part.bounds, part.entries)
        if affine is None or len(part.bands) + len(part.memberships) < len(part.members):
            return None
        images = [nested.without_search([membership], (), part.entries) for membership in part.memberships]
        if any(image is None for image in images):
            return None
        return cls(part.entries, tuple(p for p in (affine, *images) if p is not None and p.blocks))

    @property
    def kind(self) -> str:
        """The kinds of the sets that are intersected."""
        return f"intersection of {', '.join(kind for part in self.parts for kind in part.kinds)}"

    def _solve(self, z: Float[Array, " n"], values: Values) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        projections = [lambda p, part=part: part.project(p, values) for part in self.parts]
        return dykstra.project(z, projections, TOLERANCE, LIMIT)

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """NaN where the iteration stopped with a relative residual above 1e-6."""
        return checked(*self._solve(z, values))

    def gap(self, values: Values) -> Float[Array, ""]:
        """The gaps of the sets, or their distance as Dykstra's algorithm shows it (above 1e-6 only)."""
        _, residual = self._solve(jnp.zeros(len(self.entries)), values)
        apart = jnp.where(residual > 1e-6, residual, -jnp.inf)
        return jnp.maximum(largest_gap([part.gap(values) for part in self.parts]), apart)

    def explain(self) -> str:
        """Name the sets."""
        sets = "; ".join(part.explain() for part in self.parts)
        return f"intersection by Dykstra's algorithm, to a residual of {TOLERANCE:g}: {sets}"
