"""Linear algebra on stacks of matrices and vectors."""

from __future__ import annotations

from contextlib import suppress

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


def solved(
    systems: Float[np.ndarray, "k n n"], right: Float[np.ndarray, "k n *more"]
) -> Float[np.ndarray, "k n *more"]:
    """The solutions of linear systems, each for a vector or for some in columns; NaN where one is singular."""
    columns = right if right.ndim == 3 else right[..., None]
    try:
        answers = np.linalg.solve(systems, columns)
    except np.linalg.LinAlgError:  # it does not say which of them
        answers = np.full_like(columns, np.nan)
        for k, (system, column) in enumerate(zip(systems, columns)):
            with suppress(np.linalg.LinAlgError):
                answers[k] = np.linalg.solve(system, column)
    return np.asarray(answers.reshape(right.shape))


def times(matrices: Stack, vectors: Stack) -> Stack:
    """Each matrix times its vector."""
    return np.asarray((matrices @ vectors[..., None])[..., 0])


def turned(matrices: Stack) -> Stack:
    """The transposes."""
    return matrices.swapaxes(1, 2)
