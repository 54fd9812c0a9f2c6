"""What a program over cones is answered with: a point, its multipliers, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

SOLVED, EMPTY, UNBOUNDED, FAILED = 0, 1, 2, 3
SEVERAL, ONE, ALIKE, UNKNOWN, TWISTED = 0, 1, 2, -1, -2


@dataclass(frozen=True)
class ConeSolution:
    """u and z with ``error``, the relative error of the optimality conditions; ``status`` says whether they are an answer.

    ``unique`` says whether y has no other value: ``ONE``, ``SEVERAL`` (and the upper objective tells them apart), ``ALIKE`` (it does
    not), ``UNKNOWN``, or ``TWISTED``: not known, since the conditions are those of a map that is not monotone, and others far away
    may hold as well.
    """

    u: Float[np.ndarray, " width"]
    z: Float[np.ndarray, " rows"]
    error: float
    status: int
    unique: int = UNKNOWN
