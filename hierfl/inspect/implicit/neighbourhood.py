"""The points of X within eta of x, known through projections only: where gradients may be taken, and normals of X at one point.

What a projection takes off is a normal of X at the one point where it lands, and every normal of X is of that kind. Normals at
different points are never added: on two sides of a thin wedge their sum may point anywhere, though X has no such normal.

The shortest element of conv(G) + cone(N) for finitely many vectors is found exactly at every scale: with s the sum of the convex
weights, min ||G'w + N'u||^2 + r^2 (s - 1)^2 over w, u >= 0 has the value r^2 D^2 / (r^2 + D^2), D the distance sought, and after
division by s the shortest element itself: one nonnegative least-squares problem (Lawson and Hanson, 1974). Rounding leaves D right to
about sqrt(r) 1e-7; it is solved again with r near D until D no longer falls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.optimize

from hierfl.errors import SettingError
from hierfl.inspect.implicit.points import OUTSIDE, Points

PASSES = 12
FALL = 0.9  # another pass while it shortens by more than a tenth
SMALLEST_LEVEL = 1e-15
OPTIMAL = 1e-9  # of the longest gradient


class Combination(NamedTuple):
    """``rest`` (n,) = weights @ gradients + multipliers @ normals; weights (k,) sum to 1, nothing is negative."""

    weights: np.ndarray
    multipliers: np.ndarray
    rest: np.ndarray

    @property
    def length(self) -> float:
        """The norm of ``rest``."""
        return float(np.linalg.norm(self.rest))


def shortest(gradients: np.ndarray, normals: np.ndarray) -> Combination:
    """Find the shortest element of conv(gradients) + cone(normals), given as rows (k, n) and (j, n), j may be 0.

    Raises ``SettingError`` if the conditions of optimality do not hold to 1e-9 of the longest gradient.
    """
    size = float(np.max(np.linalg.norm(gradients, axis=1)))
    if size == 0:
        return Combination(
            np.full(len(gradients), 1 / len(gradients)), np.zeros(len(normals)), np.zeros_like(gradients[0])
        )
    lengths = np.linalg.norm(normals, axis=1)
    scaled, units = gradients / size, normals / lengths[:, None]
    level, passes = 1.0, [_solved(scaled, units, 1.0)]
    while passes[-1].length > SMALLEST_LEVEL and len(passes) < PASSES:
        if passes[-1].length >= FALL * level and _gap(passes[-1], scaled, units) <= OPTIMAL:
            break
        level = passes[-1].length
        passes.append(_solved(scaled, units, level))
    gaps = [_gap(combination, scaled, units) for combination in passes]
    if min(gaps) > OPTIMAL:
        raise _unsolved(len(gradients), f"its optimality conditions are violated by {min(gaps):.3g}")
    best = min((one for one, gap in zip(passes, gaps) if gap <= OPTIMAL), key=lambda one: one.length)
    return Combination(best.weights, best.multipliers * size / lengths, best.rest * size)


def _solved(gradients: np.ndarray, normals: np.ndarray, level: float) -> Combination:
    """Solve for r = level, the columns scaled to unit length."""
    count = len(gradients)
    matrix = np.vstack([np.hstack([gradients.T / level, normals.T]), np.repeat([1.0, 0.0], [count, len(normals)])])
    lengths = np.linalg.norm(matrix, axis=0)
    target = np.append(np.zeros(gradients.shape[1]), 1.0)
    try:
        solution, _ = scipy.optimize.nnls(matrix / lengths, target, maxiter=50 * len(lengths))
    except RuntimeError as error:
        raise _unsolved(count, str(error)) from error
    scaled = solution / lengths
    total = np.sum(scaled[:count])
    if not total > 0:
        raise _unsolved(count, "no weight is positive")
    weights, multipliers = scaled[:count] / total, scaled[count:] * level / total
    return Combination(weights, multipliers, weights @ gradients + multipliers @ normals)


def _gap(combination: Combination, gradients: np.ndarray, normals: np.ndarray) -> float:
    """Measure how far the conditions of optimality fail: no gradient shorter along ``rest`` than ``rest``, no normal against it."""
    length = combination.length
    if length <= OPTIMAL:  # nothing is shorter than 0
        return 0.0
    shorter = length - float(np.min(gradients @ combination.rest)) / length
    return max(shorter, -float(np.min(normals @ combination.rest, initial=0.0)))


def _unsolved(count: int, why: str) -> SettingError:
    return SettingError(
        f"the shortest combination of the {count} sampled gradients was not found ({why}): take another samples=... or seed=...."
    )


SMALLEST_ETA = 1e-12  # of 1 + ||x||: below, rounding leaves no ball to draw from
CLOSE, SMALLEST_CLOSE, CLOSE_POINTS = 1e-4, 1e-10, 2  # how much closer to x a few more gradients are taken
ROUNDING = 4 * np.finfo(float).eps
BESIDE = 1e-3  # of eta: what counts as one point while normals are looked for
LENGTHS = 64  # of the steps along which a point with a better normal is looked for
TURNS, WALK = 100, 20
SETTLED = 1e-12


class Neighbourhood(NamedTuple):
    """The points of X within eta of ``base``, a point of X."""

    points: Points
    base: np.ndarray
    eta: float

    @classmethod
    def of(cls, points: Points, x: np.ndarray, eta: float) -> Neighbourhood:
        """Make the one around x, which is in X up to the tolerance of projections.

        Raises ``SettingError`` if it is not, or if eta is lost in the rounding of x.
        """
        scale = 1.0 + float(np.linalg.norm(x))
        if eta < SMALLEST_ETA * scale:
            raise SettingError(f"eta={eta!r}: at this x at least {SMALLEST_ETA * scale:.3g}, less is lost in rounding.")
        base = points.projected(x[None])[0]
        away = float(np.linalg.norm(x - base))
        if away > OUTSIDE * scale:
            raise SettingError(f"x is {away:.3g} outside X: give a point of X, such as the projection result.x.")
        return cls(points, base, eta)

    @property
    def scale(self) -> float:
        """What rounding is relative to."""
        return 1.0 + float(np.linalg.norm(self.base))

    def generic(self, around: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw ``count`` points, and a few far closer to the base, in the relative interior of X almost surely.

        Points of ``around`` (at least 64, within eta) that are in X stay. Others are projected, and then moved towards the mean of all
        projections: that is in the relative interior of X as soon as no face of X holds them all, and with it the segment to it.
        """
        feet = self.points.projected(around)
        outside = np.linalg.norm(feet - around, axis=1) > ROUNDING * self.scale
        share = rng.random((len(around), 1)) * outside[:, None]
        inner = np.where(outside[:, None], feet + share * (feet.mean(axis=0) - feet), around)
        shrink = min(1.0, max(CLOSE, SMALLEST_CLOSE * self.scale / self.eta))
        shifts = shrink * (inner[:CLOSE_POINTS] - self.base)
        mirrored = self.base - shifts  # gradients of a smooth f cancel in pairs
        gone = np.linalg.norm(self.points.projected(mirrored) - mirrored, axis=1) > ROUNDING * self.scale
        return np.concatenate([inner[:count], self.base + shifts, mirrored[~gone]])

    def normals(self, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find (points of X (j, n), a unit normal of X at each (j, n)), j <= k, where points (k, n) are projected to within eta of the base.

        What a projection takes off a point close by is mostly rounding if it is short. So points are moved out along it, further
        than eta: where the projection comes back to within eta of the base, the way there is a normal, exact to rounding.
        """
        feet = self.points.projected(outside)
        off, reach = outside - feet, 4 * self.eta + 0.01 * self.scale
        for _ in range(2):  # the second with the direction that the first made exact
            length = np.linalg.norm(off, axis=1, keepdims=True)
            far = feet + reach * off / np.where(length > 0, length, 1.0)
            landed = self.points.projected(far)
            off = far - landed
        length = np.linalg.norm(off, axis=1)
        kept = (length > 0.25 * reach) & (np.linalg.norm(landed - self.base, axis=1) <= self.eta)
        return landed[kept], off[kept] / length[kept, None]

    def shortest(self, gradients: np.ndarray, around: np.ndarray) -> tuple[np.ndarray, Combination]:
        """Find (a normal (0 or 1, n) of X at one point, the shortest combination seen of it and the gradients).

        A walk from the base: each step first finds the weights that are best with all normals at the present point, then goes where
        projections of steps against their mean gradient land, and of ``around`` (k, n), with the normal that shortens most. Whatever
        the last step, the length is an upper bound.
        """
        here, normal = self.base, self.base[None][:0]
        best = shortest(gradients, normal)
        lengths = np.geomspace(BESIDE * self.eta, 1e3 * (self.eta + 0.01 * self.scale), LENGTHS)[:, None]
        for _ in range(WALK):
            mean = self._at(here, gradients).weights @ gradients
            size = float(np.linalg.norm(mean))
            if size == 0 or best.length == 0:
                break
            landed, normals = self.normals(np.concatenate([here - lengths * mean / size, around]))
            if not len(landed):
                break
            rests = mean + np.maximum(0, -normals @ mean)[:, None] * normals
            place = int(np.argmin(np.linalg.norm(rests, axis=1)))
            better = shortest(gradients, normals[[place]])
            if better.length >= (1 - SETTLED) * best.length:
                break
            here, normal, best = landed[place], normals[[place]], better
        return normal, best

    def _at(self, here: np.ndarray, gradients: np.ndarray) -> Combination:
        """Find the shortest combination with normals of X at points as good as ``here``.

        Each turn adds the one that the projection of a short step against the rest takes off: where X is a polyhedron around the
        point, that is the one of all normals that shortens most, and there is none where nothing does.
        """
        close = max(BESIDE * self.eta, 16 * ROUNDING * self.scale)
        normals = here[None][:0]
        present, scale = shortest(gradients, normals), float(np.max(np.linalg.norm(gradients, axis=1)))
        for _ in range(TURNS):
            if present.length <= SETTLED * scale:
                break
            landed, more = self.normals(here - 0.5 * close / present.length * present.rest[None])
            more = more[
                (np.linalg.norm(landed - here, axis=1) <= close) & (more @ present.rest < -SETTLED * present.length)
            ]
            if not len(more):
                break
            normals = np.concatenate([normals, more])
            better = shortest(gradients, normals)
            if better.length >= (1 - SETTLED) * present.length:
                break
            present = better
        return present
