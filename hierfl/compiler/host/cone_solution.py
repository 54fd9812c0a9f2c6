"""What a program over cones is answered with: a point, its multipliers, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

SOLVED, EMPTY, UNBOUNDED, FAILED = 0, 1, 2, 3
CANCELLED = 1e6  # how much larger than H u + g multipliers are, from which that is lost in them
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


def cancelled(force: Any, without: Any) -> Any:
    """What rounding leaves of H u + g, relative, where multipliers of dependent rows cancel each other and are much larger; elsewhere 0."""
    spread = force / without
    return np.where(spread > CANCELLED, np.finfo(float).eps * spread, 0.0)
