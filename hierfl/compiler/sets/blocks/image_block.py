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

from hierfl.atoms.numerics.safe import steep
from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.frames import Frame
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.memberships import CompiledMembership
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections.emptiness import beyond, not_below_zero


@dataclass(frozen=True, eq=False)
class ImageBlock:
    """One membership, or several of the same constraint and size side by side (a leading axis G everywhere)."""

    membership: CompiledMembership
    groups: Int[np.ndarray, " G"]  # the groups of the constraint that are here
    frame: Frame
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
        """One block for components of one membership each; None if the rows are no frame that the family admits."""
        memberships = [part.memberships[0] for part in parts]
        frame = Frame.of(memberships)
        if frame is None or not all(map(memberships[0].family.admits, frame.scales)):
            return None
        return cls(memberships[0], np.array([m.group for m in memberships], np.int32), frame)

    @property
    def entries(self) -> Int[np.ndarray, " n"]:
        """Those of the frame."""
        return self.frame.entries

    @property
    def kind(self) -> str:
        """The family's name."""
        return self.membership.family.name

    @property
    def cost(self) -> str:
        """The family's cost, and the rotation's."""
        return self.membership.family.cost + ("" if isinstance(self.frame.turn, np.ndarray) else " and a rotation")

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Project in the coordinates of the family."""
        frame, offset = self.frame, self.frame.offset(values)
        v = frame.into(z) + offset
        p = jax.vmap(self.membership.family.project)(v, jnp.asarray(frame.scales, v.dtype), self._radius(values))
        return frame.back(p - offset) if frame.is_square else z + frame.back(p - v)

    def gap(self, values: Values) -> Float[Array, ""]:
        """What the radius lacks; -inf for cones."""
        if self.membership.radius is None:
            return jnp.asarray(-jnp.inf)
        right = self.membership.radius(values)[self.groups]
        return jnp.max(beyond(-right, jnp.abs(right)))

    def _radius(self, values: Values) -> Float[Array, " G"]:
        """The radii, infinite for cones."""
        if self.membership.radius is None:
            return jnp.full(len(self.groups), jnp.inf)
        right = self.membership.radius(values)[self.groups]
        return not_below_zero(_root(right) if self.membership.squared else right)

    def explain(self) -> str:
        """Name the constraint behind the set."""
        count = len(self.groups)
        what = self.kind if count == 1 else f"{count} times {self.kind}"
        return f"{what}: {constraints_text([self.membership.origin])}"


def _root(square: Float[Array, " G"]) -> Float[Array, " G"]:
    """sqrt(max(square, 0)), at 0 with a slope that counts as infinite."""
    root = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    return jnp.where(square == 0, steep(square), root)
