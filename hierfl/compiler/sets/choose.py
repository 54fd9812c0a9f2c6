"""The choice of a projection for each component of a set: the decision table of the compiler.

A new kind of set is a file in ``blocks`` and a row in ``KINDS``, before the more general kinds that would take its components.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from hierfl.compiler.sets.blocks.affine_block import AffineBlock
from hierfl.compiler.sets.blocks.block import Block
from hierfl.compiler.sets.blocks.box_block import BoxBlock
from hierfl.compiler.sets.blocks.box_with_band_block import BoxWithBandBlock
from hierfl.compiler.sets.blocks.image_block import ImageBlock
from hierfl.compiler.sets.blocks.polyhedron_block import PolyhedronBlock
from hierfl.compiler.sets.components import Component, Member, components
from hierfl.compiler.sets.members.entry_bounds import EntryBounds


class KindOfBlock(Protocol):
    """How blocks of a kind are chosen and made."""

    __doc__: str | None

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """A key that components for one block have in common; None where one is of another kind."""

    @classmethod
    def of(cls, parts: Sequence[Component]) -> Block | None:
        """One block for components that are alike; None where there is none."""


KINDS: tuple[KindOfBlock, ...] = (BoxBlock, BoxWithBandBlock, ImageBlock, AffineBlock, PolyhedronBlock)


def choose(members: Sequence[Member], bounds: Sequence[EntryBounds]) -> tuple[list[Block], list[Component]]:
    """Blocks for a set, by the first kind that takes a component, and the components that none takes."""
    groups: dict[tuple[KindOfBlock, Hashable], list[Component]] = {}
    left: list[Component] = []
    for part in components(members, bounds):
        keys = ((kind, kind.alike(part)) for kind in KINDS)
        found = next(((kind, key) for kind, key in keys if key is not None), None)
        (left if found is None else groups.setdefault(found, [])).append(part)
    blocks: list[Block] = []
    for (kind, _), parts in groups.items():
        together = kind.of(parts)
        each = [(parts[0], together)] if together is not None else [(part, kind.of([part])) for part in parts]
        for part, block in each:
            if block is None:
                left.append(part)
            else:
                blocks.append(block)
    return blocks, left
