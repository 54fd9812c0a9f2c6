"""A line through the space of x, of which a window is looked at."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Line(NamedTuple):
    """x(t) = centre + t direction, t in [-radius, radius]."""

    centre: np.ndarray
    direction: np.ndarray
    radius: float

    def at(self, t: np.ndarray | float) -> np.ndarray:
        """The points ``(k, n)`` at places (k,)."""
        return np.asarray(self.centre + np.asarray(t)[..., None] * self.direction)
