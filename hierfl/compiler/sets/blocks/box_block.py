"""Boxes whose bounds may move."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.entry_bounds import EntryBounds, limits
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections import box


@dataclass(frozen=True, eq=False)
class BoxBlock:
    """Entries with bounds only."""

    entries: Int[np.ndarray, " n"]
    bounds: tuple[EntryBounds, ...]
    kind: str = "box"
    exact: bool = True
    cost: str = "O(n)"
    advice: str = ""

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """Bounds alone are one component."""
        return None if part.members else "box"

    @classmethod
    def of(cls, parts: Sequence[Component]) -> BoxBlock:
        """The block of a component without members."""
        (part,) = parts
        return cls(part.entries, part.bounds)

    def limits(self, values: Values) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """(lower, upper) of the entries."""
        lower, upper, _ = limits(self.bounds, self.entries, values)
        return lower, upper

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Clip the entries."""
        lower, upper, _ = limits(self.bounds, self.entries, values)
        return box.project(z, lower, upper)

    def gap(self, values: Values) -> Float[Array, ""]:
        """The largest lower - upper, or the violation of a bound whose coefficient vanishes."""
        lower, upper, broken = limits(self.bounds, self.entries, values)
        return jnp.maximum(box.gap(lower, upper), broken)

    def explain(self) -> str:
        """Name the constraints behind the bounds."""
        return f"box, by clipping: {constraints_text(b.origin for b in self.bounds)}"
