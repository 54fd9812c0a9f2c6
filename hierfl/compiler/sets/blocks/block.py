"""What every block offers, and blocks one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class GapBesideProjection(Protocol):
    """A block whose gap comes out of the iteration that projects: asked for both, it iterates once."""

    def project_and_gap(self, z: Float[Array, " n"], values: Values) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """The projection of the entries ``z``, and the gap."""


@dataclass(frozen=True, eq=False)
class Product:
    """Independent blocks one after the other, on the sorted ``entries`` (those of no block are free)."""

    entries: Int[np.ndarray, " n"]
    blocks: tuple[Block, ...]

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Each block in turn; where their entries overlap, their row spaces are orthogonal."""
        for block in self.blocks:
            z = self._with(block, z, block.project(self._part(block, z), values))
        return z

    def gap(self, values: Values) -> Float[Array, ""]:
        """The largest of the blocks' gaps."""
        return largest_gap([block.gap(values) for block in self.blocks])

    def project_and_gap(self, z: Float[Array, " n"], values: Values) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """Both, from one iteration of each block where that gives both."""
        gaps = []
        for block in self.blocks:
            part = self._part(block, z)
            if isinstance(block, GapBesideProjection):
                p, gap = block.project_and_gap(part, values)
            else:
                p, gap = block.project(part, values), block.gap(values)
            z = self._with(block, z, p)
            gaps.append(gap)
        return z, largest_gap(gaps)

    def _places(self, block: Block) -> Int[np.ndarray, " n"] | None:
        """Where the block's entries are among all; None where they are all, in order."""
        if np.array_equal(block.entries, self.entries):
            return None
        return np.searchsorted(self.entries, block.entries).astype(np.int32)

    def _part(self, block: Block, z: Float[Array, " n"]) -> Float[Array, " part"]:
        """The block's entries."""
        places = self._places(block)
        return z if places is None else z[places]

    def _with(self, block: Block, z: Float[Array, " n"], p: Float[Array, " part"]) -> Float[Array, " n"]:
        """The point with other values of the block's entries."""
        places = self._places(block)
        if places is None:
            return p.astype(z.dtype)
        return z.at[places].set(p.astype(z.dtype)) if len(places) else z

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
