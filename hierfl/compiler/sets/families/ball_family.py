"""Euclidean balls and ellipsoids, ||d * v||_2 <= r."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hierfl.compiler.sets.bounded_terms import BoundedTerm, Norm, Squares
from hierfl.compiler.sets.families.family import Family, Membership, all_rows, rows_along
from hierfl.compiler.sets.families.scales import divided, safe_sqrt
from hierfl.projections import ball, ellipsoid


class L2Ball(Family):
    """The ball of the Euclidean norm; an ellipsoid where the scales differ."""

    name: ClassVar[str] = "ball"
    cost: ClassVar[str] = "O(n)"
    is_euclidean_ball: ClassVar[bool] = True
    has_spend: ClassVar[bool] = True

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """A Euclidean norm, along an axis or not, or its square below a bound that is free of y."""
        function = term.function
        if term.bound_moves:
            return None
        if isinstance(function, Norm) and function.order == 2:
            groups = rows_along(function.argument.shape, function.axis)
            return Membership(cls(), function.argument, groups, radius=term.bound, scale=term.scale)
        if isinstance(function, Squares):
            rows = all_rows(function.argument)
            return Membership(cls(), function.argument, rows, radius=term.bound, squared=True, scale=term.scale)
        return None

    def kind(self, uniform: bool) -> str:
        return "ball" if uniform else "ellipsoid"

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        return True

    def project(
        self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""], uniform: bool
    ) -> Float[Array, " k"]:
        """Scale the vector, or search the root of the multiplier of an ellipsoid."""
        if uniform:
            return ball.project(v, jnp.zeros_like(v), divided(radius, d[0]))
        return ellipsoid.project(v, jnp.zeros_like(v), d, radius)

    def spend(self, radius: Float[Array, ""], lost: Float[Array, " lost"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Subtract by Pythagoras."""
        square = jnp.sum(lost * lost)
        left = radius * jnp.abs(radius) - square
        return safe_sqrt(left), safe_sqrt(square) - radius
