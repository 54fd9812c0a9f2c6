"""Balls of the l1 norm, ||d * v||_1 <= r, weighted ones among them."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hierfl.compiler.sets.bounded_terms import BoundedTerm, Norm
from hierfl.compiler.sets.families.family import Family, Membership, rows_along
from hierfl.projections import box_with_hyperplane, l1_ball


class L1Ball(Family):
    """The ball of the l1 norm with any weights."""

    name: ClassVar[str] = "l1 ball"
    cost: ClassVar[str] = box_with_hyperplane.COST
    has_spend: ClassVar[bool] = True

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """An l1 norm, along an axis or not, below a bound that is free of y."""
        norm = term.function
        if term.bound_moves or not (isinstance(norm, Norm) and norm.order == 1):
            return None
        groups = rows_along(norm.argument.shape, norm.axis)
        return Membership(cls(), norm.argument, groups, radius=term.bound, scale=term.scale)

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        return True

    def project(
        self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""], uniform: bool
    ) -> Float[Array, " k"]:
        """Threshold softly at the multiplier."""
        return l1_ball.project(v, jnp.zeros_like(v), d, radius)

    def spend(self, radius: Float[Array, ""], lost: Float[Array, " lost"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Subtract the absolute values."""
        left = radius - jnp.sum(jnp.abs(lost))
        return jnp.maximum(left, 0.0), -left
