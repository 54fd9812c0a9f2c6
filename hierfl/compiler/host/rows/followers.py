"""Entries of u that follow the rest of a row: the only one that they meet, where they meet no curvature either.

The row says what such an entry is, and its cost what the row's multiplier is: both are left out of a linear system, and put back. Of a
quantile over 400 values all rows but one or two go that way.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

MANY = 16  # of them, from which leaving them out is worth the bother


def followers(
    h: Float[np.ndarray, "width width"], rows: Float[np.ndarray, "k width"], firm: Bool[np.ndarray, " k"]
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """(the entries, the row of each: no two of one row), in rows that are ``firm``; none where they are few."""
    nothing = np.zeros(0, int), np.zeros(0, int)
    if len(rows) < MANY:
        return nothing
    met = rows != 0
    alone = np.flatnonzero((met.sum(axis=0) == 1) & ~h.any(axis=0) & ~h.any(axis=1))
    places, first = np.unique(met[:, alone].argmax(axis=0), return_index=True)
    kept = firm[places]
    return (alone[first][kept], places[kept]) if kept.sum() >= MANY else nothing
