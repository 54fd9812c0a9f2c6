"""What every block offers, and blocks one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.members.affine_map import Values


class Block(Protocol):
    """The projection on one component; ``entries`` (sorted or in the block's own order) lists its entries of y."""

    @property
    def entries(self) -> Int[np.ndarray, " n"]:
        """Entries of the flat y."""

    @property
    def kind(self) -> str:
        """The name of such sets, in messages and ``CompiledSet.kind``."""

    @property
    def exact(self) -> bool:
        """Whether the projection is exact to rounding, not to an iteration's or solver's tolerance."""

    @property
    def cost(self) -> str:
        """Cost of one projection, n being the number of entries."""

    @property
    def advice(self) -> str:
        """What to write instead so that the projection gets cheaper; empty where there is nothing to gain."""

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Projection of the entries ``z``; NaN where it could not be found to 1e-6."""

    def gap(self, values: Values) -> Float[Array, ""]:
        """A number, positive when the block is empty."""

    def explain(self) -> str:
        """Say what was recognised."""


@dataclass(frozen=True, eq=False)
class Product:
    """Independent blocks one after the other, on the sorted ``entries`` (those of no block are free)."""

    entries: Int[np.ndarray, " n"]
    blocks: tuple[Block, ...]

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Each block in turn; where their entries overlap, their row spaces are orthogonal."""
        for block in self.blocks:
            if np.array_equal(block.entries, self.entries):
                z = block.project(z, values).astype(z.dtype)
            elif len(block.entries):
                places = np.searchsorted(self.entries, block.entries).astype(np.int32)
                z = z.at[places].set(block.project(z[places], values).astype(z.dtype))
        return z

    def gap(self, values: Values) -> Float[Array, ""]:
        """The largest of the blocks' gaps."""
        return largest_gap([block.gap(values) for block in self.blocks])

    @property
    def exact(self) -> bool:
        """Whether every block is."""
        return all(block.exact for block in self.blocks)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the blocks, each once."""
        return list(dict.fromkeys(block.kind for block in self.blocks))

    @property
    def costs(self) -> list[str]:
        """The costs of the blocks, each once."""
        return list(dict.fromkeys(block.cost for block in self.blocks))

    def explain(self) -> str:
        """The explanations of the blocks."""
        return "; ".join(block.explain() for block in self.blocks)


def largest_gap(gaps: Sequence[Float[Array, ""]]) -> Float[Array, ""]:
    """The largest of some gaps, -inf if there are none."""
    return jnp.max(jnp.stack([jnp.asarray(g, float) for g in gaps])) if gaps else jnp.asarray(-jnp.inf)


def checked(p: Float[Array, " n"], residual: Float[Array, ""]) -> Float[Array, " n"]:
    """The projection, NaN where its relative residual shows that it was not found."""
    return jnp.where(residual <= 1e-6, p, jnp.nan)
