"""A plane through the space of x, of which a square window is looked at."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Plane(NamedTuple):
    """x(s, t) = centre + s directions[0] + t directions[1], |s|, |t| <= radius; the directions are orthonormal."""

    centre: np.ndarray
    directions: np.ndarray
    radius: float

    def at(self, coordinates: np.ndarray) -> np.ndarray:
        """The points ``(k, n)`` at coordinates ``(k, 2)``."""
        return np.asarray(self.centre + coordinates @ self.directions)


def grid_of(plane: Plane, s: np.ndarray) -> np.ndarray:
    """The points (p * p, n) of a plane at all pairs of coordinates (p,)."""
    return plane.at(np.stack([part.ravel() for part in np.meshgrid(s, s, indexing="ij")], axis=1))
