"""f at a place as seen from before and from after, and what that says: a kink, a jump, or neither.

What changes with the distance d like d^p, as at |x|^1.1, is taken to its limit (Aitken's extrapolation, since the distances
shrink by a constant factor), which may be infinite, as at sqrt(|x|).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ROUNDING = 2e-14  # of the value, relative to 1 + |value|: values that are no further apart meet
LEAST_STEP = 1e-6  # of the value, relative to 1 + |value|
PERSISTENCE = 0.5  # what stays of a true jump from one look to the next
FADED = 0.1  # what extrapolation leaves of a jump of the slope, where it comes to nothing
STEADY = 0.25  # by how much the ratio of neighbouring changes may vary in a geometric sequence
SETTLED = 1e-3  # of a slope, relative to 1 + |slope|: what changes less from one distance to the next is near its limit


class Sides(NamedTuple):
    """Value and slope of f at places (k,), from before and from after: (k, 2) each."""

    value: np.ndarray
    slope: np.ndarray

    def replaced(self, places: np.ndarray, others: Sides) -> Sides:
        """The same with those of some places replaced."""
        value, slope = self.value.copy(), self.slope.copy()
        value[places], slope[places] = others
        return Sides(value, slope)

    @property
    def bend(self) -> np.ndarray:
        """The amount by which the slope jumps, infinite where one of the slopes is."""
        with np.errstate(invalid="ignore"):
            return np.where(self.vertical, np.inf, self.slope[:, 1] - self.slope[:, 0])

    def crossing(self, reach: np.ndarray) -> np.ndarray:
        """Where the two sides' tangents cross, relative to the place and within reach of it; 0 where they are alike, or cross here."""
        apart = self.value[:, 0] - self.value[:, 1]
        with np.errstate(all="ignore"):
            shift = apart / self.bend
        told = np.abs(apart) > ROUNDING * (1.0 + np.abs(self.value[:, 0]))
        return np.where(told & (np.abs(shift) <= reach), shift, 0.0)

    @property
    def step(self) -> np.ndarray:
        """The amount by which the value jumps."""
        return np.asarray(self.value[:, 1] - self.value[:, 0])

    @property
    def vertical(self) -> np.ndarray:
        """Where one of the slopes is infinite."""
        return np.isinf(self.slope).any(axis=1)

    def steps(self, near: Sides, far: Sides, distance: np.ndarray) -> np.ndarray:
        """Where f itself jumps, seen from near, and did from afar, by more than a misplaced kink would make of it."""
        step = np.abs(self.step)
        jumps = (step > LEAST_STEP * (1.0 + np.abs(self.value[:, 0]))) & (step > 0.1 * np.abs(near.bend) * distance)
        return jumps & (step > PERSISTENCE * np.abs(far.step))

    def bends(self, near: Sides, far: Sides, least: np.ndarray) -> np.ndarray:
        """Where the slope jumps, from near and from afar (a steep but smooth piece bends ever less), or is infinite."""
        bend, scale = np.abs(near.bend), 1.0 + np.max(np.abs(near.slope), axis=1)
        stays = (bend > least * scale) & (bend > PERSISTENCE * np.abs(far.bend))
        stays &= np.abs(self.bend) > np.maximum(least * scale, FADED * bend)
        return (stays | self.vertical) & np.isfinite(self.value).all(axis=1)


def limit(looks: list[Sides]) -> Sides:
    """Both sides as the distance goes to 0, from four looks at distances that shrink by a constant factor."""
    values = _limit([look.value for look in looks], LEAST_STEP)
    slopes = _limit([look.slope for look in looks], SETTLED)
    return Sides(np.where(np.isfinite(values), values, looks[-1].value), slopes)


def _limit(terms: list[np.ndarray], settled: float) -> np.ndarray:
    """The limit of a geometric sequence, infinite where it grows; the last term of one that has settled or is none."""
    one, two, three, four = terms
    with np.errstate(all="ignore"):
        change = four - three
        before, ratio = (three - two) / (two - one), change / (three - two)
        extrapolated = four + change * ratio / (1.0 - ratio)
    steady = (np.abs(ratio - before) <= STEADY * before) & (np.abs(change) > settled * (1.0 + np.abs(four)))
    grows = steady & (ratio > 1.0 - settled) & (np.abs(four) > np.abs(three))
    return np.where(grows, np.copysign(np.inf, change), np.where(steady & (ratio <= 1.0 - settled), extrapolated, four))
