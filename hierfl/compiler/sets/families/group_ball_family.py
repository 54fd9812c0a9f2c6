"""Balls of the group norm, sum_g ||d * v_g||_2 <= r."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.bounded_terms import BoundedTerm, NormSum
from hierfl.compiler.sets.families.family import Family, Membership, all_rows, rows_along
from hierfl.compiler.sets.families.scales import is_uniform
from hierfl.projections import box_with_hyperplane, group_ball


@dataclass(frozen=True, eq=False)
class GroupBall(Family):
    """The ball of a sum of Euclidean norms; ``partition`` is the group of each entry."""

    partition: Int[np.ndarray, " k"]
    name: ClassVar[str] = "group ball"
    cost: ClassVar[str] = box_with_hyperplane.COST

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """A sum of Euclidean norms along an axis below a bound that is free of y."""
        norms = term.function
        if term.bound_moves or not isinstance(norms, NormSum):
            return None
        partition = np.empty(norms.argument.size, int)
        for place, rows in enumerate(rows_along(norms.argument.shape, norms.axis)):
            partition[rows] = place
        rows = all_rows(norms.argument)
        return Membership(cls(partition), norms.argument, rows, radius=term.bound, scale=term.scale)

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        """Whether the scales are equal within each group."""
        return all(is_uniform(scales[self.partition == group]) for group in np.unique(self.partition))

    def project(
        self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""], uniform: bool
    ) -> Float[Array, " k"]:
        """Threshold the groups softly at the multiplier."""
        _, first = np.unique(self.partition, return_index=True)
        return group_ball.project(v, self.partition, jnp.zeros_like(v), d[first], radius)
