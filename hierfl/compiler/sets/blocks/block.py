"""What every block offers."""

from __future__ import annotations

from typing import Protocol

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
