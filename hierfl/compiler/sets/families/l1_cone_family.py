"""Epigraphs of the l1 norm: {(u, t) : ||d u||_1 <= d_t t}."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hierfl.compiler.sets.bounded_terms import BoundedTerm
from hierfl.compiler.sets.families.family import Family, Membership, stacked
from hierfl.compiler.sets.families.scales import is_uniform_cone
from hierfl.projections import norm_cone


class L1Cone(Family):
    """The cone ||d u||_1 <= d_t t, v = (u, t)."""

    name: ClassVar[str] = "l1 cone"
    cost: ClassVar[str] = norm_cone.COST

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """One l1 norm below a number that moves with y."""
        argument = term.norm_below_moving_number(1)
        return None if argument is None else stacked(cls(), argument, term.bound)

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        """Whether the rows of u share one scale."""
        return is_uniform_cone(scales)

    def project(
        self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""], uniform: bool
    ) -> Float[Array, " k"]:
        """Find the multiplier by sorting."""
        u, t = norm_cone.project_l1(v[:-1], v[-1], d[-1] / d[0])
        return jnp.append(u, t)
