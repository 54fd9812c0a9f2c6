"""What every block offers, and blocks one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.rows import Values


class Block(Protocol):
    """The projection on one component; ``entries`` (sorted or in the block's own order) lists its entries of y."""

    @property
    def entries(self) -> np.ndarray:
        """Entries of the flat y."""

    @property
    def kind(self) -> str:
        """Family of sets."""

    @property
    def exact(self) -> bool:
        """Whether the projection is exact to rounding, not to an iteration's or solver's tolerance."""

    @property
    def cost(self) -> str:
        """Cost of one projection, n being the number of entries."""

    def project(self, z: Array, values: Values) -> Array:
        """Projection of the entries ``z``; NaN where it could not be found to 1e-6."""

    def gap(self, values: Values) -> Array:
        """A scalar, positive when the block is empty."""

    def explain(self) -> str:
        """What was recognised."""


@dataclass(frozen=True, eq=False)
class Product:
    """Independent blocks one after the other, on the sorted ``entries`` (those of no block are free)."""

    entries: np.ndarray
    blocks: tuple[Block, ...]

    def project(self, z: Array, values: Values) -> Array:
        """Each block in turn; where their entries overlap, their row spaces are orthogonal."""
        for block in self.blocks:
            if np.array_equal(block.entries, self.entries):
                z = block.project(z, values).astype(z.dtype)
            elif len(block.entries):
                places = np.searchsorted(self.entries, block.entries).astype(np.int32)
                z = z.at[places].set(block.project(z[places], values).astype(z.dtype))
        return z

    def gap(self, values: Values) -> Array:
        """The largest gap."""
        return largest_gap([block.gap(values) for block in self.blocks])

    @property
    def exact(self) -> bool:
        """Whether every block is."""
        return all(block.exact for block in self.blocks)


def largest_gap(gaps: Sequence[Array]) -> Array:
    """The largest of some gaps, -inf if there are none."""
    return jnp.max(jnp.stack([jnp.asarray(g, float) for g in gaps])) if gaps else jnp.asarray(-jnp.inf)


def checked(p: Array, residual: Array) -> Array:
    """The projection, NaN where its relative residual shows that it was not found."""
    return jnp.where(residual <= 1e-6, p, jnp.nan)
