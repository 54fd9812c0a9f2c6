"""Rotated second-order cones {(u, s, t) : ||d u||^2 <= (d_s s)(d_t t), s, t >= 0}."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hierfl.compiler.sets.bounded_terms import BoundedTerm, SquaresOver
from hierfl.compiler.sets.families.family import Family, Membership, stacked
from hierfl.compiler.sets.families.scales import is_uniform
from hierfl.projections import rotated_cone


class RotatedCone(Family):
    """The cone ||d u||^2 <= (d_s s)(d_t t), s, t >= 0, v = (u, s, t)."""

    name: ClassVar[str] = "rotated cone"
    cost: ClassVar[str] = "O(n)"

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """Squares over a denominator below a bound, both of which move with y."""
        squares = term.function
        if not (isinstance(squares, SquaresOver) and term.bound_moves):
            return None
        return stacked(cls(), term.root_scaled(squares.argument), squares.denominator, term.bound)

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        """Whether the rows of u share one scale, and those of s and t are positive."""
        return is_uniform(scales[:-2]) and bool(scales[-2:].min() > 0)

    def project(
        self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""], uniform: bool
    ) -> Float[Array, " k"]:
        """Use the closed form of the standard cone, else search a root."""
        u, s, t = rotated_cone.project(v[:-2], v[-2], v[-1], d[-2] * d[-1] / d[0] ** 2)
        return jnp.concatenate([u, jnp.stack([s, t])])
