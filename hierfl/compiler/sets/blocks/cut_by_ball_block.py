"""An exactly projectable set cut by one Euclidean ball: a one-dimensional root search over its projections."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.blocks.block import Product, checked
from hierfl.compiler.sets.blocks.image_block import ImageBlock
from hierfl.compiler.sets.blocks.nested import Nested
from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections import intersection
from hierfl.projections.emptiness import beyond


@dataclass(frozen=True, eq=False)
class CutByBall:
    """The inner set with a Euclidean ball in all of its entries."""

    entries: Int[np.ndarray, " n"]
    inner: Product
    ball: ImageBlock
    exact: bool = True
    advice: str = ""

    @classmethod
    def of(cls, part: Component, nested: Nested) -> CutByBall | None:
        """The block for the first ball beside which there is an exact projection on the rest."""
        if not nested.allows_search:
            return None
        for membership in part.memberships:
            ball = ImageBlock.of_memberships([membership])
            if ball is None or not ball.is_full_ball or len(ball.entries) < len(part.entries):
                continue
            rest = [member for member in part.members if member is not membership]
            inner = nested.inside_search(rest, part.bounds, part.entries)
            if inner is not None:
                return cls(part.entries, inner, ball)
        return None

    @property
    def kind(self) -> str:
        """The inner kinds and a ball."""
        return f"{' and '.join(self.inner.kinds) or 'whole space'} with a ball"

    @property
    def cost(self) -> str:
        """Some tens of inner projections."""
        return f"some tens of projections of {', '.join(self.inner.costs) or 'O(n)'}"

    def _ball(self, values: Values) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """The centre in the order of the entries, and the radius."""
        centre, radius = self.ball.centre_radius(values)
        return jnp.zeros_like(centre).at[np.searchsorted(self.entries, self.ball.entries)].set(centre), radius

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """NaN where the root was not found."""
        return checked(*intersection.with_ball(lambda p: self.inner.project(p, values), z, *self._ball(values)))

    def gap(self, values: Values) -> Float[Array, ""]:
        """The gaps of both, or how far they are apart: the distance of the centre to the inner set, less the radius."""
        centre, radius = self._ball(values)
        nearest, inner_gap = self.inner.project_and_gap(centre, values)
        apart = jnp.linalg.norm(centre - nearest) - jnp.maximum(radius, 0.0)
        apart = beyond(apart / (1.0 + jnp.linalg.norm(centre)))
        return jnp.maximum(jnp.maximum(inner_gap, self.ball.gap(values)), apart)

    def explain(self) -> str:
        """Name the inner blocks and the ball."""
        ball = constraints_text([self.ball.membership.origin])
        return f"{self.inner.explain()}; cut by a ball, by a root search for its multiplier: {ball}"
