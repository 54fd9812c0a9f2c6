"""Whether f jumps between points where it has gradients.

Where f is Lipschitz with constant L, f(b) - f(a) differs from the mean of the two ends' derivatives along b - a by at most
2 L ||b - a||. So a segment is halved, always keeping the half on which they differ more: the difference dies out at a kink and at a
steep slope, and stays where f jumps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hierfl.inspect.implicit.noise import rounding
from hierfl.inspect.implicit.points import Points

HALVINGS = 24
SCREENED, KEPT = 6, 8  # after so many halvings, go on with so many segments, on which the difference is steepest
SHORTEST = 1e3 * np.finfo(float).eps  # of 1 + ||x||
NOISE = 1e-8  # of |f|, for what the lower level's tolerance leaves
STEEPER = 4.0  # times the steepest slope seen: twice the bound


class SegmentJump(NamedTuple):
    """f changes by ``size``, which its slopes do not explain, between two points ``apart`` from each other."""

    size: float
    apart: float


class _Ends(NamedTuple):
    """Points (k, n) with f's values (k,) and gradients (k, n)."""

    at: np.ndarray
    value: np.ndarray
    gradient: np.ndarray

    def chosen(self, which: np.ndarray) -> _Ends:
        return _Ends(*(part[which] for part in self))

    def or_else(self, other: _Ends, first: np.ndarray) -> _Ends:
        return _Ends(
            np.where(first[:, None], self.at, other.at),
            np.where(first, self.value, other.value),
            np.where(first[:, None], self.gradient, other.gradient),
        )


def largest_jump(points: Points, at: np.ndarray, value: np.ndarray, gradient: np.ndarray) -> SegmentJump | None:
    """Find the largest jump on segments from the first of the points (k, n) to the others; None where there is none.

    A jump between any two of the points is one between the first and one of them. Segments on which f has no gradient somewhere are
    left out, and jumps below 1e-8 (1 + |f|), or below what rounding makes of f, do not count.
    """
    far = _Ends(at[1:], value[1:], gradient[1:])
    near = _Ends(at[:1], value[:1], gradient[:1]).chosen(np.zeros(len(at) - 1, int))
    noise = NOISE * (1 + float(np.max(np.abs(value))))
    steepest, shortest = float(np.max(np.linalg.norm(gradient, axis=1))), SHORTEST * (1 + float(np.linalg.norm(at[0])))
    for turn in range(HALVINGS):
        live = _unexplained(near, far) > noise
        if turn == SCREENED:
            live &= _is_among_largest(_unexplained(near, far) / _lengths(near, far), KEPT)
        near, far = near.chosen(live), far.chosen(live)
        if float(np.max(_lengths(near, far), initial=0.0)) <= shortest:
            break
        middle = 0.5 * (near.at + far.at)
        between = _Ends(middle, *points.gradients(middle))
        good = np.isfinite(between.value) & np.isfinite(between.gradient).all(axis=1)
        near, far, between = near.chosen(good), far.chosen(good), between.chosen(good)
        steepest = max(steepest, float(np.max(np.linalg.norm(between.gradient, axis=1), initial=0.0)))
        first = _unexplained(near, between) >= _unexplained(between, far)
        near, far = near.or_else(between, first), between.or_else(far, first)
    size, apart = _unexplained(near, far), _lengths(near, far)
    jumps = size > noise + STEEPER * steepest * apart
    if not jumps.any():
        return None
    place = int(np.argmax(np.where(jumps, size, 0)))
    ends = np.stack([near.at[place], far.at[place]])
    jump = SegmentJump(float(size[place]), float(apart[place]))
    return jump if jump.size > rounding(points.compiled, ends, value) else None


def _unexplained(near: _Ends, far: _Ends) -> np.ndarray:
    mean = 0.5 * (near.gradient + far.gradient)
    return np.asarray(np.abs(far.value - near.value - np.sum(mean * (far.at - near.at), axis=1)))


def _lengths(near: _Ends, far: _Ends) -> np.ndarray:
    return np.asarray(np.linalg.norm(far.at - near.at, axis=1))


def _is_among_largest(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(np.argsort(-values)) < count
