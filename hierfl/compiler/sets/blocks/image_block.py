"""Memberships ``A y + b in C`` with orthogonal rows: the projection on C in rotated, translated and scaled coordinates.

With A = diag(d) W, W W' = I, the set is {y : W y + b / d in {v : d * v in C}}, and its projection is
z + W' (P(v) - v) at v = W z + b / d (Bauschke and Combettes, 2017, Proposition 29.1 and Corollary 28.16).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.families.scales import is_uniform, root_of
from hierfl.compiler.sets.frames import EntryFrame, Frame, RotatedFrame
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.memberships import CompiledMembership
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections.emptiness import beyond, not_below_zero


@dataclass(frozen=True, eq=False)
class ImageBlock:
    """One membership, or several of the same constraint and size side by side (a leading axis G everywhere)."""

    entries: Int[np.ndarray, " n"]
    membership: CompiledMembership
    groups: Int[np.ndarray, " G"]  # the groups of the constraint that are here
    frame: Frame
    uniform: bool
    exact: bool = True
    advice: str = ""

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """Lone memberships are alike if they are of one constraint and size."""
        if part.lone_membership is None or part.bounds:
            return None
        return id(part.lone_membership.source), len(part.entries)

    @classmethod
    def of(cls, parts: Sequence[Component]) -> ImageBlock | None:
        """One block for components of one membership each."""
        return cls.of_memberships([part.memberships[0] for part in parts])

    @classmethod
    def of_memberships(cls, memberships: Sequence[CompiledMembership]) -> ImageBlock | None:
        """The block, or None if the rows are no frame that the family admits; several memberships must be alike."""
        first, family = memberships[0], memberships[0].family
        frame: Frame | None = EntryFrame.of(memberships)
        if frame is None and len(memberships) == 1:
            frame = RotatedFrame.of(first, family.is_euclidean_ball)
        if frame is None or not all(map(family.admits, frame.sample_scales)):
            return None
        if frame.may_lose and not family.has_spend:
            return None
        uniform = all(map(is_uniform, frame.sample_scales))
        return cls(frame.entries, first, np.array([m.group for m in memberships]), frame, uniform)

    @property
    def kind(self) -> str:
        """The family's name."""
        return self.membership.family.kind(self.uniform)

    @property
    def cost(self) -> str:
        """The family's cost, and the rotation's."""
        return self.membership.family.cost + ("" if isinstance(self.frame, EntryFrame) else " and a rotation")

    @property
    def is_full_ball(self) -> bool:
        """Whether it is one Euclidean ball in all of its entries."""
        return (
            self.membership.family.is_euclidean_ball and self.uniform and self.frame.is_square and len(self.groups) == 1
        )

    def centre_radius(self, values: Values) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """The centre and the radius of a full ball."""
        d, offset, lost = self.frame.coordinates(values)
        radius, _ = self._radius(values, lost)
        return -self.frame.back(offset, values), radius[0] / d[0, 0]

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Project in the coordinates of the family."""
        d, offset, lost = self.frame.coordinates(values)
        radius, _ = self._radius(values, lost)
        v = self.frame.into(z, values) + offset
        family, uniform = self.membership.family, self.uniform
        p = jax.vmap(lambda v, d, r: family.project(v, d, r, uniform))(v, d, radius)
        if self.frame.is_square:
            return self.frame.back(p - offset, values)
        return z + self.frame.back(p - v, values)

    def gap(self, values: Values) -> Float[Array, ""]:
        """What the radius lacks; -inf for cones."""
        if self.membership.radius is None:
            return jnp.asarray(-jnp.inf)
        _, _, lost = self.frame.coordinates(values)
        return jnp.max(self._radius(values, lost)[1])

    def _radius(self, values: Values, lost: Float[Array, "G lost"]) -> tuple[Float[Array, " G"], Float[Array, " G"]]:
        """(radii, gaps): what is left of the radius once the part of b that y cannot reach has used its share."""
        membership = self.membership
        if membership.radius is None:
            free = jnp.full(len(self.groups), jnp.inf)
            return free, -free
        right = membership.radius(values)[self.groups.astype(np.int32)]
        radius = root_of(right) if membership.squared else right
        if not self.frame.may_lose:
            return not_below_zero(radius), beyond(-right, jnp.abs(right))
        left, gap = jax.vmap(membership.family.spend)(radius, lost)
        return left, beyond(jnp.maximum(gap, -right), jnp.abs(right))

    def explain(self) -> str:
        """Name the constraint behind the set."""
        count = len(self.groups)
        what = self.kind if count == 1 else f"{count} times {self.kind}"
        return f"{what}: {constraints_text([self.membership.origin])}"
