"""What is at a place: a kink, a jump, or a smooth piece that only bends steeply.

f is looked at from either side, from ever closer: a kink's jump of the slope stays, that of a steep but smooth piece shrinks.
Where implicit gradients exist the slopes are exact derivatives at one and two steps; else they come from the quartic through
five values, from afar where the values are noisy, and the place itself is where the two sides' tangents meet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hierfl.inspect.implicit.points import Points, Sampled
from hierfl.inspect.kinks.sides import Sides, limit

DISTANCES = (1e-5, 1e-7)  # first and last, in units of a radius
EXACT_DISTANCES = (1e-5, 1e-8)  # where y is exact to rounding
ROUGH_DISTANCES = (3e-3, 3e-4)  # with differences of rough values
DIFFERENCE_DISTANCES = (1e-4, 1e-6)  # of exact values
LEAST_JUMP, LEAST_ROUGH_JUMP = 1e-6, 1e-3  # of the slope, relative to 1 + |slope|
LOOKS = 4  # distances, a constant factor apart
NOISE_PLACES, NOISY = 16, 1e-12  # how many points tell the noise of f, and what is more than rounding
EXACT = 1e-12  # residuals of a y that is exact to rounding
DIFFERENCE_NOISE = 1e-13  # what rounding of f, relative to 1 + |f|, makes of two quartics' slopes over a unit distance
ROUNDING = 4e-12  # of x: no step is shorter
# the value at 0 of the quartic through values at 1 to 5, and its slope there
QUARTIC = np.array([[5, -10, 10, -5, 1], [-77 / 12, 107 / 6, -39 / 2, 61 / 6, -25 / 12]])


class OneSided(NamedTuple):
    """How f is looked at from either side; ``exact`` says that y is exact to rounding.

    ``noise`` is that of f's values where slopes come from differences, in slopes over the radius of the window.
    """

    points: Points
    exact: bool = False
    noise: float = 0.0

    @classmethod
    def of(cls, points: Points, sampled: Sampled, at: np.ndarray, direction: np.ndarray, radius: float) -> OneSided:
        """Look as exactly as f has been sampled at points (k, n), and along a direction (n,) there."""
        good = sampled.reason == 0
        eye = cls(points, bool(np.max(sampled.residual[good], initial=0.0) < EXACT))
        if not eye.by_differences or not good.any():
            return eye
        chosen = at[good][:: -(-int(good.sum()) // NOISE_PLACES)]
        steps = (DIFFERENCE_DISTANCES[-1] * radius * np.arange(5))[:, None, None] * direction
        value = points.values((chosen + steps).reshape(-1, len(direction))).value.reshape(5, -1)
        ripple = np.abs(np.diff(value, 4, axis=0)) / np.sqrt(70)  # by which four differences amplify noise
        noise = float(np.quantile(ripple[np.isfinite(ripple)], 0.75)) if np.isfinite(ripple).any() else 0.0
        return eye._replace(noise=noise / radius)

    @property
    def by_differences(self) -> bool:
        """Whether slopes come from values only."""
        return not self.points.differentiable

    @property
    def coarse(self) -> bool:
        """Whether values are those of a staircase, or of a noisy function."""
        return self.points.rough or self.noise > NOISY

    @property
    def distances(self) -> tuple[float, float]:
        """How far away to look from, first and last, in units of a window's radius."""
        if self.by_differences:
            return ROUGH_DISTANCES if self.coarse else DIFFERENCE_DISTANCES
        return EXACT_DISTANCES if self.exact else DISTANCES

    @property
    def least_jump(self) -> float:
        """The least jump of a slope that can be told, relative to 1 + |slope|."""
        return max(LEAST_ROUGH_JUMP, 100 * self.noise / ROUGH_DISTANCES[-1]) if self.coarse else LEAST_JUMP

    def least_jump_from(self, distance: np.ndarray, sides: Sides) -> np.ndarray:
        """The least jump that can be told from distances (k,): differences over short ones see the rounding of f."""
        if not self.by_differences:
            return np.full(len(distance), self.least_jump)
        return np.maximum(self.least_jump, DIFFERENCE_NOISE * (1.0 + np.abs(sides.value[:, 0])) / distance)

    def look(self, places: np.ndarray, directions: np.ndarray, distance: np.ndarray) -> Sides:
        """See both sides of places (k, n) along unit vectors (k, n), from distances (k,)."""
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
        lost = np.isnan(at_place) & np.isfinite(value)  # there are values, and no derivatives
        value, slope = value - step * 0.5 * (one + at_place), at_place
        if lost.any():
            value[lost], slope[lost] = self._differences(places[lost], directions[lost], step[lost])
        return value, slope

    def _differences(
        self, places: np.ndarray, directions: np.ndarray, step: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        at = np.concatenate([places + (k * step)[:, None] * directions for k in (1, 2, 3, 4, 5)])
        value, slope = QUARTIC @ self.points.values(at).value.reshape(5, -1)
        return value, slope / step


class Judged(NamedTuple):
    """What is at places (k,): which are kinks, which are jumps, how far from there they are, and both sides of each."""

    kinks: np.ndarray
    jumps: np.ndarray
    shift: np.ndarray
    sides: Sides


def judge(
    eye: OneSided, places: np.ndarray, directions: np.ndarray, radius: float, widths: np.ndarray, reach: np.ndarray
) -> Judged:
    """Look at places from ever closer.

    Parameters
    ----------
    eye
        How to look.
    places, directions
        Points (k, n), and the unit vectors (k, n) along which f is looked at.
    radius
        Of the window.
    widths
        To within what each place is known, (k,).
    reach
        How far each may be looked at from, (k,).
    """
    first, last = np.array(eye.distances) * radius
    least = np.maximum(2 * widths, ROUNDING * (1.0 + np.max(np.abs(places), initial=0.0)))
    closest = np.maximum(np.minimum(last, 0.1 * reach), least)
    distances = np.geomspace(np.maximum(np.minimum(first, reach), closest), closest, LOOKS)
    looks, shift, settled = _looks(eye, places, directions, distances)
    closest = _from_where_there_are_values(looks, distances)
    there, near, far = limit(looks), looks[-1], looks[-2]
    jumps = there.steps(near, far, closest)
    kinks = there.bends(near, far, eye.least_jump_from(closest, there)) & ~jumps
    shift = shift + np.where(kinks, near.crossing(np.maximum(distances[-1], widths)), 0.0)
    unsure = np.flatnonzero(kinks & ~settled)
    if eye.exact and not eye.by_differences and unsure.size:  # the slopes at the very place
        ways = directions[unsure]
        again = eye.look(places[unsure] + shift[unsure, None] * ways, ways, distances[-1][unsure])
        close = _alike(again.slope, there.slope[unsure])
        there = there.replaced(unsure, Sides(there.value[unsure], np.where(close, again.slope, there.slope[unsure])))
        shift[unsure] += np.where(close.all(axis=1), again.crossing(distances[-1][unsure]), 0.0)
    return Judged(kinks, jumps, shift, there)


def _looks(
    eye: OneSided, places: np.ndarray, directions: np.ndarray, distances: np.ndarray
) -> tuple[list[Sides], np.ndarray, np.ndarray]:
    """(what is seen from each of the distances (LOOKS, k), how far aside, which places look from close as they do from afar).

    From the distances in between nothing else is seen of those places, and they are not looked at from there.
    """

    def seen(aside: np.ndarray, distance: np.ndarray, which: np.ndarray | slice = slice(None)) -> Sides:
        ways = directions[which]
        return eye.look(places[which] + aside[:, None] * ways, ways, distance[which])

    here, settled = np.zeros(len(places)), np.asarray(np.zeros(len(places), bool))
    first = seen(here, distances[0])
    shift = first.crossing(distances[0]) if eye.by_differences or eye.exact else here
    if eye.by_differences or not eye.exact:
        return [first, *(seen(shift, distance) for distance in distances[1:])], shift, settled
    last = seen(shift, distances[-1])  # aside: a switch counts as zero near its zero
    settled = np.asarray(_alike(last.slope, first.slope).all(axis=1))
    looks, others = [first, first, first, last], np.flatnonzero(~settled)
    if others.size:
        between = [seen(here[others], distance, others) for distance in distances[1:-1]]
        still = _alike(between[-1].slope, between[-2].slope).all(axis=1)
        shift[others] = np.where(still, between[-1].crossing(distances[-2][others]), 0.0)
        between.append(seen(shift[others], distances[-1], others))
        looks[1:] = [look.replaced(others, other) for look, other in zip(looks[1:], between)]
    return looks, shift, settled


def _from_where_there_are_values(looks: list[Sides], distances: np.ndarray) -> np.ndarray:
    """Take the look before in place of one without values, as next to ties that no solver gets through; returns the last distances."""
    last = distances[0]
    for k, distance in enumerate(distances[1:], start=1):
        lost = ~np.isfinite(looks[k].value).all(axis=1)[:, None]
        looks[k] = Sides(*(np.where(lost, before, part) for before, part in zip(looks[k - 1], looks[k])))
        last = np.where(lost[:, 0], last, distance)
    return np.asarray(last)


def _alike(slopes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Which finite slopes are as good as equal."""
    with np.errstate(invalid="ignore"):
        change = np.abs(slopes - others)
    return np.asarray(np.isfinite(others) & (change <= LEAST_JUMP * (1.0 + np.abs(others))))
