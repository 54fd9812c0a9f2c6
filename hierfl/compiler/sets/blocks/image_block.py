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
from hierfl.compiler.sets.families import Family
from hierfl.compiler.sets.frames import Frame, by_source, has_single_entries
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.memberships import CompiledMembership
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections.emptiness import beyond, not_below_zero

NAMED = 3  # constraints that are written out


@dataclass(frozen=True, eq=False)
class ImageBlock:
    """One membership, or several of the same family and size side by side (a leading axis G everywhere)."""

    memberships: tuple[CompiledMembership, ...]  # those of a constraint together
    frame: Frame
    exact: bool = True
    advice: str = ""

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """Lone memberships are alike if they are of one family and size, each of entries of y alone, or of one constraint."""
        member = part.lone_membership
        if member is None or part.bounds:
            return None
        plain = member.constant and has_single_entries(member.rows)
        family = member.family.name, member.squared, member.radius is None
        return family if plain else id(member.source), len(member.rows.index), len(part.entries)

    @classmethod
    def of(cls, parts: Sequence[Component]) -> ImageBlock | None:
        """One block for components of one membership each; None if the rows are no frame that the family admits."""
        memberships = [m for same in by_source([part.memberships[0] for part in parts]) for m in same]
        frame = Frame.of(memberships)
        if frame is None or not all(map(memberships[0].family.admits, frame.scales)):
            return None
        return cls(tuple(memberships), frame)

    @property
    def entries(self) -> Int[np.ndarray, " n"]:
        """Those of the frame."""
        return self.frame.entries

    @property
    def family(self) -> Family:
        """What they are."""
        return self.memberships[0].family

    @property
    def kind(self) -> str:
        """The family's name."""
        return self.family.name

    @property
    def cost(self) -> str:
        """The family's cost, and the rotation's."""
        return self.family.cost + ("" if isinstance(self.frame.turn, np.ndarray) else " and a rotation")

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Project in the coordinates of the family."""
        frame, offset = self.frame, self.frame.offset(values)
        v = frame.into(z) + offset
        p = jax.vmap(self.family.project)(v, jnp.asarray(frame.scales, v.dtype), self._radius(values))
        return frame.back(p - offset) if frame.is_square else z + frame.back(p - v)

    def gap(self, values: Values) -> Float[Array, ""]:
        """What the radius lacks; -inf for cones."""
        right = self._right(values)
        return jnp.asarray(-jnp.inf) if right is None else jnp.max(beyond(-right, jnp.abs(right)))

    def _right(self, values: Values) -> Float[Array, " G"] | None:
        """What is on the right sides; None for cones."""
        parts = []
        for same in by_source(self.memberships):
            if same[0].radius is None:
                return None
            parts.append(same[0].radius(values)[np.array([m.group for m in same], np.int32)])
        return jnp.concatenate(parts)

    def _radius(self, values: Values) -> Float[Array, " G"]:
        """The radii, infinite for cones."""
        right = self._right(values)
        if right is None:
            return jnp.full(len(self.memberships), jnp.inf)
        return not_below_zero(_root(right) if self.memberships[0].squared else right)

    def explain(self) -> str:
        """Name the constraint behind the set."""
        count = len(self.memberships)
        what = self.kind if count == 1 else f"{count} times {self.kind}"
        several = by_source(self.memberships)
        more = f" and {len(several) - NAMED:,} more" if len(several) > NAMED else ""
        return f"{what}: {constraints_text(same[0].origin for same in several[:NAMED])}{more}"


def _root(square: Float[Array, " G"]) -> Float[Array, " G"]:
    """sqrt(max(square, 0)), at 0 with a slope that counts as infinite."""
    root = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    return jnp.where(square == 0, steep(square), root)
