"""Paraboloids {(u, t) : ||d u||^2 <= d_t t}."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hierfl.compiler.sets.bounded_terms import BoundedTerm, Squares, SquaresOver
from hierfl.compiler.sets.families.family import Family, Membership, stacked
from hierfl.compiler.sets.families.scales import is_uniform_cone
from hierfl.projections import paraboloid


class Paraboloid(Family):
    """The set ||d u||^2 <= d_t t, v = (u, t)."""

    name: ClassVar[str] = "paraboloid"
    cost: ClassVar[str] = "O(n)"

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """Squares below a number that moves with y, as a bound or as the denominator under a fixed bound."""
        function = term.function
        if isinstance(function, Squares) and term.bound_moves:
            return stacked(cls(), term.root_scaled(function.argument), term.bound)
        if isinstance(function, SquaresOver) and not term.bound_moves and term.bound.is_nonneg():
            return stacked(cls(), term.root_scaled(function.argument), function.denominator * term.bound)
        return None

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        """Whether the rows of u share one scale."""
        return is_uniform_cone(scales)

    def project(
        self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""], uniform: bool
    ) -> Float[Array, " k"]:
        """Search the root of the multiplier."""
        u, t = paraboloid.project(v[:-1], v[-1], d[-1] / d[0] ** 2)
        return jnp.append(u, t)
