"""The choice of a projection for each component of a set: the decision table of the compiler.

A new kind of set is a file in ``blocks`` and a row in ``KINDS``, before the more general kinds that would take its components.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from hierfl.compiler.sets.blocks.affine_block import AffineBlock
from hierfl.compiler.sets.blocks.bands_block import BandBlock
from hierfl.compiler.sets.blocks.block import Block
from hierfl.compiler.sets.blocks.box_block import BoxBlock
from hierfl.compiler.sets.blocks.box_with_hyperplane_block import BoxWithHyperplaneBlock
from hierfl.compiler.sets.blocks.cut_by_ball_block import CutByBall
from hierfl.compiler.sets.blocks.cut_by_band_block import CutByBand
from hierfl.compiler.sets.blocks.dykstra_block import DykstraBlock
from hierfl.compiler.sets.blocks.image_block import ImageBlock
from hierfl.compiler.sets.blocks.isotonic_block import IsotonicBlock
from hierfl.compiler.sets.blocks.nested import Nested
from hierfl.compiler.sets.blocks.polyhedron_block import PolyhedronBlock
from hierfl.compiler.sets.components import Component, Member, components
from hierfl.compiler.sets.members.entry_bounds import EntryBounds


@dataclass(frozen=True)
class Alone:
    """A block for one component; None where the component is of another kind."""

    of: Callable[[Component, Nested], Block | None]


@dataclass(frozen=True)
class SideBySide:
    """One block for all components that are ``alike`` (None where one is of another kind), which no later kind is tried on.

    Where there is no block for all, each gets its own; those for which there is none either are programs on the host.
    """

    alike: Callable[[Component], Hashable | None]
    of: Callable[[Sequence[Component]], Block | None]

    def blocks(self, parts: Sequence[Component]) -> tuple[list[Block], list[Component]]:
        """Blocks for components that are alike, and those without one."""
        together = self.of(parts)
        if together is not None:
            return [together], []
        blocks, left = [], []
        for part in parts:
            block = self.of([part])
            if block is None:
                left.append(part)
            else:
                blocks.append(block)
        return blocks, left


KINDS: tuple[Alone | SideBySide, ...] = (  # the first that takes a component
    Alone(BoxBlock.of),
    SideBySide(BoxWithHyperplaneBlock.alike, BoxWithHyperplaneBlock.of),
    SideBySide(BandBlock.alike, BandBlock.of),
    SideBySide(ImageBlock.alike, ImageBlock.of),
    Alone(IsotonicBlock.of),
    Alone(AffineBlock.of),
    Alone(PolyhedronBlock.of),
    Alone(CutByBall.of),
    Alone(CutByBand.of),
    Alone(DykstraBlock.of),
)


def choose(
    members: Sequence[Member], bounds: Sequence[EntryBounds], depth: int = 0
) -> tuple[list[Block], list[Component]]:
    """Blocks for a set, and the components that no kind takes; ``depth`` counts the blocks around."""
    blocks: list[Block] = []
    left: list[Component] = []
    groups: dict[SideBySide, dict[Hashable, list[Component]]] = {k: {} for k in KINDS if isinstance(k, SideBySide)}
    nested = Nested(choose, depth)
    for part in components(members, bounds):
        for kind in KINDS:
            if isinstance(kind, SideBySide):
                key = kind.alike(part)
                if key is not None:
                    groups[kind].setdefault(key, []).append(part)
                    break
            else:
                block = kind.of(part, nested)
                if block is not None:
                    blocks.append(block)
                    break
        else:
            left.append(part)
    for kind, alike in groups.items():
        for parts in alike.values():
            together, without = kind.blocks(parts)
            blocks += together
            left += without
    return blocks, left
