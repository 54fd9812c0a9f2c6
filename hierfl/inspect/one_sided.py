"""f as seen from either side of a place: values and slopes, extrapolated to it.

Where implicit gradients exist the slopes are exact derivatives at one and two steps, else they come from the parabola through
three exact values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hierfl.inspect.points import Points

DISTANCES = (1e-5, 1e-6, 1e-7)  # with derivatives, in units of a radius
CLOSEST = 1e-8  # where y is exact to rounding
HOST_DISTANCE = 3e-3  # with differences of CVXPY's values
DIFFERENCE_DISTANCE = 3e-4  # of exact values
LEAST_JUMP, LEAST_HOST_JUMP = 1e-6, 1e-3  # of the slope, relative to 1 + |slope|
LEAST_STEP = 1e-6  # of the value, relative to 1 + |value|
PERSISTENCE = 0.5


class Sides(NamedTuple):
    """Value and slope of f at places (k,), from before and from after: (k, 2) each."""

    value: np.ndarray
    slope: np.ndarray

    @property
    def bend(self) -> np.ndarray:
        """Jump of the slope."""
        return np.asarray(self.slope[:, 1] - self.slope[:, 0])

    def crossing(self, reach: np.ndarray) -> np.ndarray:
        """Where the two sides' tangents cross, relative to the place and within reach of it; 0 where they are alike."""
        with np.errstate(all="ignore"):
            shift = (self.value[:, 0] - self.value[:, 1]) / self.bend
        return np.where(np.abs(shift) <= reach, shift, 0.0)

    @property
    def step(self) -> np.ndarray:
        """Jump of the value."""
        return np.asarray(self.value[:, 1] - self.value[:, 0])

    def steps(self, far: Sides, distance: np.ndarray) -> np.ndarray:
        """Where f itself jumps, and did from afar, by more than a misplaced kink would make of it."""
        step = np.abs(self.step)
        found = (step > LEAST_STEP * (1.0 + np.abs(self.value[:, 0]))) & (step > 0.1 * np.abs(self.bend) * distance)
        return found & (step > PERSISTENCE * np.abs(far.step))

    def bends(self, far: Sides, least: float) -> np.ndarray:
        """Where the slope jumps, and did from afar: a steep but smooth piece bends ever less as one comes closer."""
        bend, scale = np.abs(self.bend), 1.0 + np.max(np.abs(self.slope), axis=1)
        found = (bend > least * scale) & (bend > PERSISTENCE * np.abs(far.bend))
        return found & np.isfinite(self.value).all(axis=1)


class OneSided(NamedTuple):
    """How f is looked at from either side; ``exact`` says that y is exact to rounding."""

    points: Points
    exact: bool = False

    @property
    def by_differences(self) -> bool:
        """Whether slopes come from values only."""
        return not self.points.differentiable

    @property
    def distances(self) -> tuple[float, ...]:
        """How far away to look from, ever closer, in units of a window's radius."""
        if self.by_differences:
            first = HOST_DISTANCE if self.points.on_host else DIFFERENCE_DISTANCE
            return first, first / 3
        return (*DISTANCES, CLOSEST) if self.exact else DISTANCES

    @property
    def least_jump(self) -> float:
        """The least jump of a slope that can be told, relative to 1 + |slope|."""
        return LEAST_HOST_JUMP if self.points.on_host else LEAST_JUMP

    def look(self, places: np.ndarray, directions: np.ndarray, distance: np.ndarray) -> Sides:
        """Both sides of places (k, n) along unit vectors (k, n), from distances (k,)."""
        make = self._differences if self.by_differences else self._derivatives
        sides = [make(places, directions, side * distance) for side in (-1.0, 1.0)]
        return Sides(*(np.stack(parts, axis=1) for parts in zip(*sides)))

    def _derivatives(
        self, places: np.ndarray, directions: np.ndarray, step: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        at = np.concatenate([places + (k * step)[:, None] * directions for k in (1, 2)])
        value, slope = self.points.slopes(at, np.concatenate([directions, directions]))
        (value, _), (one, two) = value.reshape(2, -1), slope.reshape(2, -1)
        at_place = 2 * one - two
        return value - step * 0.5 * (one + at_place), at_place

    def _differences(
        self, places: np.ndarray, directions: np.ndarray, step: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        at = np.concatenate([places + (k * step)[:, None] * directions for k in (1, 2, 3)])
        one, two, three = self.points.values(at).value.reshape(3, -1)
        return 3 * one - 3 * two + three, -(2.5 * one - 4 * two + 1.5 * three) / step
