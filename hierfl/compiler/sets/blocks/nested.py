"""Exact projections on some members of a component, for blocks that are built on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from hierfl.compiler.sets.blocks.block import Block, Product
from hierfl.compiler.sets.components import Component, Member
from hierfl.compiler.sets.members.entry_bounds import EntryBounds

DEPTH = 2  # root searches inside root searches


@dataclass(frozen=True)
class Nested:
    """The choice of blocks below a block that has ``depth`` others around it."""

    choose: Callable[[Sequence[Member], Sequence[EntryBounds], int], tuple[list[Block], list[Component]]]
    depth: int

    @property
    def allows_search(self) -> bool:
        """Whether one more root search may be put around the projections."""
        return self.depth < DEPTH

    def inside_search(
        self, members: Sequence[Member], bounds: Sequence[EntryBounds], entries: Int[np.ndarray, " n"]
    ) -> Product | None:
        """An exact projection on these members, on the given entries, for one more root search; None if there is none."""
        return self._exactly(members, bounds, entries, self.depth + 1)

    def without_search(
        self, members: Sequence[Member], bounds: Sequence[EntryBounds], entries: Int[np.ndarray, " n"]
    ) -> Product | None:
        """The same with no root search in it."""
        return self._exactly(members, bounds, entries, DEPTH)

    def _exactly(
        self, members: Sequence[Member], bounds: Sequence[EntryBounds], entries: Int[np.ndarray, " n"], depth: int
    ) -> Product | None:
        blocks, left = self.choose(members, bounds, depth)
        product = Product(entries, tuple(blocks))
        return product if not left and product.exact else None
