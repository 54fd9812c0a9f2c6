"""What is at a place, as seen from before and from after: a kink, a jump, or a smooth piece that only bends steeply.

f is looked at from either side, from ever closer: a kink's jump of the slope stays, that of a steep but smooth piece shrinks.
Where implicit gradients exist the slopes are exact derivatives at one and two steps; else they come from the quartic through
five values, from afar where the values are noisy, and the place itself is where the two sides' tangents meet. What changes with the
distance d like d^p, as at |x|^1.1, is taken to its limit (Aitken's extrapolation, since the distances shrink by a constant factor),
which may be infinite, as at sqrt(|x|).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hierfl.inspect.implicit.points import Points, Sampled
from hierfl.inspect.kinks.switch_changes import Branches

MEETS = 2e-14  # of the value, relative to 1 + |value|: values that are no further apart meet
LEAST_STEP = 1e-6  # of the value, relative to 1 + |value|
PERSISTENCE = 0.5  # what stays of a true jump from one look to the next
FADED = 0.1  # what extrapolation leaves of a jump of the slope, where it comes to nothing
STEADY = 0.25  # by how much the ratio of neighbouring changes may vary in a geometric sequence
SETTLED = 1e-3  # of a slope, relative to 1 + |slope|: what changes less from one distance to the next is near its limit


class Sides(NamedTuple):
    """Value and slope of f at places (k,), from before and from after: (k, 2) each."""

    value: np.ndarray
    slope: np.ndarray

    def replaced(self, places: np.ndarray, value: np.ndarray, slope: np.ndarray) -> Sides:
        of_all, slopes = self.value.copy(), self.slope.copy()
        of_all[places], slopes[places] = value, slope
        return Sides(of_all, slopes)

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
        told = np.abs(apart) > MEETS * (1.0 + np.abs(self.value[:, 0]))
        return np.where(told & (np.abs(shift) <= reach), shift, 0.0)

    @property
    def step(self) -> np.ndarray:
        return np.asarray(self.value[:, 1] - self.value[:, 0])

    @property
    def vertical(self) -> np.ndarray:
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


def _limit(terms: list[np.ndarray], settled: float) -> np.ndarray:
    """The limit of a geometric sequence of four terms, infinite where it grows; the last term of one that has settled or is none."""
    one, two, three, four = terms
    with np.errstate(all="ignore"):
        change = four - three
        before, ratio = (three - two) / (two - one), change / (three - two)
        extrapolated = four + change * ratio / (1.0 - ratio)
    steady = (np.abs(ratio - before) <= STEADY * before) & (np.abs(change) > settled * (1.0 + np.abs(four)))
    grows = steady & (ratio > 1.0 - settled) & (np.abs(four) > np.abs(three))
    return np.where(grows, np.copysign(np.inf, change), np.where(steady & (ratio <= 1.0 - settled), extrapolated, four))


DISTANCES = (1e-5, 1e-7)  # first and last, in units of a radius
EXACT_DISTANCES = (1e-5, 1e-8)  # where y is exact to rounding
ROUGH_DISTANCES = (3e-3, 3e-4)  # with differences of rough values
DIFFERENCE_DISTANCES = (1e-4, 1e-6)  # of exact values
LEAST_JUMP, LEAST_ROUGH_JUMP = 1e-6, 1e-3  # of the slope, relative to 1 + |slope|
LOOKS = 4  # distances, a constant factor apart
NOISE_PLACES, NOISY = 16, 1e-12  # how many points tell the noise of f, and what is more than rounding
EXACT = 1e-12  # residuals of a y that is exact to rounding
DIFFERENCE_NOISE = 1e-13  # what rounding of f, relative to 1 + |f|, makes of two quartics' slopes over a unit distance
STILL = 1e-4  # of a jump of the slope: what slopes change by over a step where they have come to their limit
ROUNDING = 4e-12  # of x: no step is shorter
# the value at 0 of the quartic through values at 1 to 5, and its slope there
QUARTIC = np.array([[5, -10, 10, -5, 1], [-77 / 12, 107 / 6, -39 / 2, 61 / 6, -25 / 12]])


Seen = tuple[np.ndarray, np.ndarray, np.ndarray]  # (values, slopes, by how much these still change)


class OneSided(NamedTuple):
    """How f is looked at from either side; ``exact`` says that y is exact to rounding.

    ``noise`` is that of f's values where slopes come from differences, in slopes over the radius of the window.
    """

    points: Points
    exact: bool = False
    noise: float = 0.0
    branches: Branches | None = None  # what is known of f beside places

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
        return not self.points.differentiable

    @property
    def coarse(self) -> bool:
        """Whether values are those of a staircase, good where differences of neighbouring ones are not, or of a noisy function."""
        method = self.points.compiled.exact.method
        return self.noise > NOISY or (method is not None and bool(method.values_only))

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

    def look(self, places: np.ndarray, directions: np.ndarray, distance: np.ndarray) -> tuple[Sides, np.ndarray]:
        """See (both sides of places (k, n) along unit vectors (k, n), from distances (k,), by how much their slopes still change there, (k, 2)).

        Infinite where that is not seen. Points of one side are asked for one after another: there the same holds below.
        """
        make = self._differences if self.by_differences else self._derivatives
        steps = np.stack([-distance, distance], axis=1).ravel()
        seen = make(np.repeat(places, 2, axis=0), np.repeat(directions, 2, axis=0), steps)
        value, slope, change = (part.reshape(-1, 2) for part in seen)
        return Sides(value, slope), change

    def _derivatives(self, places: np.ndarray, directions: np.ndarray, step: np.ndarray) -> Seen:
        at = _beyond(places, directions, step, 2)
        value, slope = (self.branches or self.points).slopes(at, np.repeat(directions, 2, axis=0))
        (value, _), (one, two) = value.reshape(-1, 2).T, slope.reshape(-1, 2).T
        at_place, change = 2 * one - two, np.abs(two - one)
        lost = np.isnan(at_place) & np.isfinite(value)  # there are values, and no derivatives
        value, slope = value - step * 0.5 * (one + at_place), at_place
        if lost.any():
            value[lost], slope[lost], change[lost] = self._differences(places[lost], directions[lost], step[lost])
        return value, slope, change

    def _differences(self, places: np.ndarray, directions: np.ndarray, step: np.ndarray) -> Seen:
        value, slope = QUARTIC @ self.points.values(_beyond(places, directions, step, 5)).value.reshape(-1, 5).T
        return value, slope / step, np.full(len(step), np.inf)


def _beyond(places: np.ndarray, directions: np.ndarray, step: np.ndarray, count: int) -> np.ndarray:
    """The points at 1 to ``count`` steps from each place, one after another."""
    steps = step[:, None, None] * np.arange(1, count + 1)[:, None]
    return np.asarray((places[:, None] + steps * directions[:, None]).reshape(-1, places.shape[1]))


class Judged(NamedTuple):
    """What is at places (k,): which are kinks, which are jumps, how far from there they are, and both sides of each."""

    kinks: np.ndarray
    jumps: np.ndarray
    shift: np.ndarray
    sides: Sides


def judge(
    eye: OneSided, places: np.ndarray, directions: np.ndarray, radius: float, widths: np.ndarray, reach: np.ndarray
) -> Judged:
    """Look at places (k, n) from ever closer, along unit vectors (k, n).

    ``radius`` is the window's, ``widths`` (k,) to within what each place is known, ``reach`` (k,) how far each may be looked at from.
    """
    first, last = np.array(eye.distances) * radius
    least = np.maximum(2 * widths, ROUNDING * (1.0 + np.max(np.abs(places), initial=0.0)))
    closest = np.maximum(np.minimum(last, 0.1 * reach), least)
    distances = np.geomspace(np.maximum(np.minimum(first, reach), closest), closest, LOOKS)
    looks, shift, settled = _looks(eye, places, directions, distances)
    closest = _from_where_there_are_values(looks, distances)
    near, far = looks[-1], looks[-2]
    value = _limit([look.value for look in looks], LEAST_STEP)
    there = Sides(np.where(np.isfinite(value), value, near.value), _limit([look.slope for look in looks], SETTLED))
    jumps = there.steps(near, far, closest)
    kinks = there.bends(near, far, eye.least_jump_from(closest, there)) & ~jumps
    shift = shift + np.where(kinks, near.crossing(np.maximum(distances[-1], widths)), 0.0)
    unsure = np.flatnonzero(kinks & ~settled)
    if eye.exact and not eye.by_differences and unsure.size:  # the slopes at the very place
        ways = directions[unsure]
        again, _ = eye.look(places[unsure] + shift[unsure, None] * ways, ways, distances[-1][unsure])
        close = _alike(again.slope, there.slope[unsure])
        there.slope[unsure] = np.where(close, again.slope, there.slope[unsure])
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
        return eye.look(places[which] + aside[:, None] * ways, ways, distance[which])[0]

    here = np.zeros(len(places))
    if eye.by_differences:
        first = seen(here, distances[0])
        shift = first.crossing(distances[0])
        return [first, *(seen(shift, distance) for distance in distances[1:])], shift, np.zeros(len(places), bool)
    if not eye.exact:
        return [seen(here, distance) for distance in distances], here, np.zeros(len(places), bool)
    last, change = eye.look(places, directions, distances[-1])
    least = np.maximum(np.abs(last.bend), LEAST_JUMP * (1.0 + np.abs(last.slope).max(axis=1)))
    settled = np.asarray((change <= STILL * least[:, None]).all(axis=1))
    looks, others, shift = [last] * LOOKS, np.flatnonzero(~settled), here
    if others.size:
        closer = [seen(here[others], distance, others) for distance in distances[:-1]]
        still = _alike(closer[-1].slope, closer[-2].slope).all(axis=1)
        shift[others] = np.where(still, closer[-1].crossing(distances[-2][others]), 0.0)  # aside: a switch counts as zero near its zero
        closer.append(seen(shift[others], distances[-1], others))
        looks = [last.replaced(others, *other) for other in closer]
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
