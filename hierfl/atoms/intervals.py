"""Interval arithmetic on arrays, rounded outward: an ``Interval`` contains every value that its operands can produce.

Sums are widened only where floating-point addition was inexact (Knuth's two-sum), so that ``x - 1`` for ``x >= 1`` is
seen to be nonnegative; products of nonzero numbers by one unit in the last place (Moore, Kearfott and Cloud, 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

EPS = float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False)
class Interval:
    """Entrywise bounds ``lo <= value <= hi``; infinite where nothing is known. Two arrays of one shape."""

    lo: np.ndarray
    hi: np.ndarray

    @classmethod
    def of(cls, value: Any) -> Interval:
        """The interval of one known value."""
        array = np.asarray(value, dtype=float)
        return cls(array, array)

    @classmethod
    def free(cls, shape: tuple[int, ...]) -> Interval:
        """The interval of which nothing is known."""
        return cls(np.full(shape, -np.inf), np.full(shape, np.inf))

    @classmethod
    def hull(cls, values: np.ndarray) -> Interval:
        """The range of a sample of arrays, along its first axis."""
        return cls(np.min(values, axis=0).astype(float), np.max(values, axis=0).astype(float))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lo.shape

    @property
    def is_point(self) -> bool:
        """Whether both ends agree everywhere."""
        return bool((self.lo == self.hi).all())

    @property
    def is_bounded(self) -> bool:
        return bool(np.isfinite(self.lo).all() and np.isfinite(self.hi).all())

    @property
    def is_empty(self) -> bool:
        """Whether no value is left in some entry."""
        return bool((self.lo > self.hi).any())

    @property
    def magnitude(self) -> np.ndarray:
        """The largest absolute value of each entry."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    @property
    def mignitude(self) -> np.ndarray:
        """The smallest absolute value of each entry."""
        inside = (self.lo <= 0) & (self.hi >= 0)
        return np.where(inside, 0.0, np.minimum(np.abs(self.lo), np.abs(self.hi)))

    def meet(self, other: Interval) -> Interval:
        return Interval(np.maximum(self.lo, other.lo), np.minimum(self.hi, other.hi))

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    def __add__(self, other: Interval) -> Interval:
        return Interval(_sum(self.lo, other.lo, -np.inf), _sum(self.hi, other.hi, np.inf))

    def __sub__(self, other: Interval) -> Interval:
        return self + (-other)

    def __mul__(self, other: Interval) -> Interval:
        ends = [_product(a, b) for a in (self.lo, self.hi) for b in (other.lo, other.hi)]
        return Interval(_outward(np.minimum.reduce(ends), -np.inf), _outward(np.maximum.reduce(ends), np.inf))

    def inverse(self) -> Interval:
        """One over the interval; unbounded where it contains 0 inside."""
        with np.errstate(divide="ignore", over="ignore"):
            low, high = 1.0 / self.hi, 1.0 / self.lo
        low = np.where((self.lo >= 0) & (self.hi > 0), low, np.where(self.hi < 0, low, -np.inf))
        high = np.where((self.hi <= 0) & (self.lo < 0), high, np.where(self.lo > 0, high, np.inf))
        return Interval(_outward(low, -np.inf), _outward(high, np.inf))

    def widened(self, slack: Any) -> Interval:
        """Moved outward by ``slack * (|lo|, |hi|)``, for a relative rounding error; exact zeros stay."""
        with np.errstate(invalid="ignore", over="ignore"):
            return bounded(self.lo - slack * np.abs(self.lo), self.hi + slack * np.abs(self.hi))


class SparsePoint(Interval):
    """One known matrix as a sparse array of SciPy's, which is a factor of a product and nothing else."""

    is_point = is_bounded = True


def bounded(low: np.ndarray, high: np.ndarray) -> Interval:
    """The interval between two values; unbounded where one is not defined."""
    return Interval(np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high))


def interval_sum(parts: Sequence[Interval]) -> Interval:
    """The sum of intervals."""
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def matmul(left: Interval, right: Interval) -> Interval:
    """The matrix product, as ``numpy.matmul``.

    Exact in sign where one factor is a point or both are nonnegative; else by midpoint and radius (Rump, 1999).
    """
    count = left.shape[-1]
    if left.is_point and left.is_bounded:
        return _point_times(left.lo, right, count, lambda matrix, ends: matrix @ ends)
    if right.is_point and right.is_bounded:
        return _point_times(right.lo, left, count, lambda matrix, ends: ends @ matrix)
    if (left.lo >= 0).all() and (right.lo >= 0).all() and left.is_bounded and right.is_bounded:
        return Interval(left.lo @ right.lo, left.hi @ right.hi).widened(2 * (count + 2) * EPS)
    if not (left.is_bounded and right.is_bounded):
        return Interval.free(np.matmul(np.zeros(left.shape), np.zeros(right.shape)).shape)
    a, b = 0.5 * (left.lo + left.hi), 0.5 * (right.lo + right.hi)
    spread_a, spread_b = np.maximum(left.hi - a, a - left.lo), np.maximum(right.hi - b, b - right.lo)
    radius = np.abs(a) @ spread_b + spread_a @ (np.abs(b) + spread_b)
    radius = radius * (1 + 4 * count * EPS) + 4 * (count + 2) * EPS * (np.abs(a) @ np.abs(b))
    return bounded(a @ b - radius, a @ b + radius)


def _point_times(matrix: Any, other: Interval, count: int, product: Callable[[Any, Any], Any]) -> Interval:
    """A ``product``, of sums over ``count`` places, with a known matrix on either side."""
    positive, negative = 0.5 * (abs(matrix) + matrix), 0.5 * (matrix - abs(matrix))
    slack = 2 * (count + 2) * EPS

    def end(low: np.ndarray, high: np.ndarray, infinity: float) -> np.ndarray:
        exact = product(positive, _finite(low)) + product(negative, _finite(high))
        size = product(positive, _finite(np.abs(low))) - product(negative, _finite(np.abs(high)))
        reached = product(positive, 1.0 * np.isinf(low)) - product(negative, 1.0 * np.isinf(high))  # 0 times an infinite end is 0
        return np.where(reached > 0, infinity, exact + np.copysign(slack, infinity) * size)

    return bounded(end(other.lo, other.hi, -np.inf), end(other.hi, other.lo, np.inf))


def _finite(array: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(array), array, 0.0)


def _sum(a: np.ndarray, b: np.ndarray, direction: float) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        s = a + b
        back = s - a
        error = (a - (s - back)) + (b - back)
    inexact = error < 0 if direction < 0 else error > 0
    result = np.where(inexact, np.nextafter(s, direction), s)
    return np.where(np.isnan(s) | (np.isinf(s) & np.isfinite(a) & np.isfinite(b)), direction, result)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Products in which 0 times infinity is 0, as it is for ends of intervals."""
    with np.errstate(invalid="ignore", over="ignore"):
        product = a * b
    product = np.where((a == 0) | (b == 0), 0.0, product)
    underflown = (product == 0) & (a != 0) & (b != 0)
    return np.where(underflown, np.sign(a) * np.sign(b) * 5e-324, product)


def _outward(array: np.ndarray, direction: float) -> np.ndarray:
    """One unit in the last place outward; zeros are exact."""
    return np.where(array == 0, 0.0, np.nextafter(array, direction))
