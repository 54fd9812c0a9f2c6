"""Where a lower level on the host is asked about: x, and what its owner holds, and how these reach the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from hierfl.compiler.lower_level.owner import Held


class Place(NamedTuple):
    """Where the lower level is asked about: x, and what its owner holds, in NumPy's arrays."""

    x: np.ndarray
    held: Held


class Handed:
    """How what an owner holds reaches the host from a traced program: ``arrays`` travel, and what is no part of it stays here."""

    def __init__(self, held: Held) -> None:
        leaves, self.tree = jax.tree.flatten(held)
        self.fixed = [None if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf) for leaf in leaves]
        self.arrays = [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]

    def place(self, x: np.ndarray, arrived: Sequence[np.ndarray]) -> Place:
        """Where one call asks."""
        return Place(np.asarray(x, float), self._held(arrived, [leaf for leaf in self.fixed if leaf is not None]))

    def _held(self, arrived: Sequence[np.ndarray], fixed: Sequence[np.ndarray]) -> Held:
        travelled, stayed = iter(arrived), iter(fixed)
        leaves = [next(travelled if leaf is None else stayed) for leaf in self.fixed]
        held: Held = jax.tree.unflatten(self.tree, [_doubled(leaf) for leaf in leaves])
        return held


def _doubled(array: np.ndarray) -> np.ndarray:
    """Floating-point numbers as doubles, others as they are."""
    return array.astype(float, copy=False) if array.dtype.kind == "f" else array
