"""Linear algebra on stacks of matrices and vectors."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

Stack = Float[np.ndarray, "k *shape"]


def patterns(held: Bool[np.ndarray, "k rows"]) -> tuple[Int[np.ndarray, " patterns"], Int[np.ndarray, " k"]]:
    """(the number of one program for each set of rows, which of the sets each program holds)."""
    words = np.packbits(held, axis=1)
    if not words.size:
        return np.arange(min(len(held), 1)), np.zeros(len(held), int)
    rows = np.ascontiguousarray(words).view(f"V{words.shape[1]}").ravel()
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    return first, which.ravel()


def times(matrices: Stack, vectors: Stack) -> Stack:
    """Each matrix times its vector."""
    return np.asarray((matrices @ vectors[..., None])[..., 0])
