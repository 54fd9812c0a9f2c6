"""What a search in many variables knows of f's curvature: some latest steps, and for each variable whether f has a kink along it.

Where f is smooth this is the limited-memory BFGS matrix (Byrd, Nocedal and Schnabel, 1994). At a kink no matrix is right: the slope
along a variable that crosses one leaps however short the step, and with it the matrix of everybody. So each variable has a bracket,
the nearest places on either side from which f was seen to fall towards the other. One whose slope changes much more within its
bracket than f curves elsewhere is taken out of the steps that the matrix is made of; its own curvature is what leads to the middle of
the bracket, as in bisection, and past its end where that end is found on the same side again and again, since brackets are as old as the
places of all other variables then.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from hierfl.descent.implicit_oracle import KnownPoint

KEPT = 10  # steps
# of a bracket that shrinks to less than a share: how much of the change of slope in it a kink leaves, and how often that is seen before it counts
SHRUNK, LEAP, SIGNS = 0.7, 0.8, 1
SIDED = 3  # ends of a bracket found one after another on one side, from which on the other end is doubted
TINY, NARROW = 1e-16, 1e-6  # relative: a bracket in which the slope is taken for zero
CURVED = 1e-10  # of the curvature along a step, beside |y| / |s|: a smaller one is none

Vector = Float[np.ndarray, " n"]


class LimitedCurvature:
    """The matrix B of the model g'd + d'Bd / 2, by its products with vectors, and those of its inverse.

    Attributes
    ----------
    scale
        The curvature along whatever no step tells of.
    stiff
        How many times itself the matrix is taken where it led too far, kinks apart.
    leaps, doubts
        How many signs of a kink each variable has shown in its bracket, and how many kinks turned out to be none, (n,).
    kinked
        Whose own curvature counts, (n,) booleans.
    """

    def __init__(self, first: KnownPoint, length: float) -> None:
        size = first.x.size
        self.low, self.high = np.full(size, -np.inf), np.full(size, np.inf)
        self.slope_low, self.slope_high = np.zeros(size), np.zeros(size)
        self.sided = np.zeros(size, int)  # how many ends one after another were found below, negative: above
        self.leaps, self.doubts = np.zeros(size, int), np.zeros(size, int)
        self.kinked = np.zeros(size, bool)
        self.restart(first, length)

    def restart(self, at: KnownPoint, length: float) -> None:
        """Forget all steps: the next one is this long."""
        self.pairs: list[tuple[Vector, Vector]] = []
        self.stiff = 1.0
        self.scale = max(float(np.linalg.norm(at.slope)), 1e-12) / length
        self.own = np.full(at.x.size, self.scale)
        self._pairs: list[tuple[Vector, Vector]] = []
        self._images: list[Vector] = []  # B s of each, by the steps before it

    def see(self, point: KnownPoint) -> bool:
        """Learn which way f falls along each variable, and whether its slope leaps there; whether a bracket of a kink has become much narrower.

        In half of a bracket a smooth slope changes by half.
        """
        before, width = self.slope_high - self.slope_low, self.high - self.low
        for sign, mine, other in ((1, "low", "high"), (-1, "high", "low")):
            ends, slopes, far = getattr(self, mine), getattr(self, f"slope_{mine}"), getattr(self, other)
            falls = sign * point.slope < 0
            end = falls & (sign * point.x > sign * ends)
            ends[end], slopes[end] = point.x[end], point.slope[end]
            passed = end & (sign * ends >= sign * far)
            far[passed] = sign * np.inf
            self.doubts[passed & self.kinked] += 1
            self.leaps[passed] = 0
            told = end | (falls & (sign * self.sided < 0))
            again = end & ~passed & (sign * self.sided > 0)
            self.sided = np.where(told, np.where(again, self.sided + sign, sign * (end & ~passed)), self.sided)
        narrower = self.high - self.low < SHRUNK * width
        leapt = self.slope_high - self.slope_low > LEAP * before
        told = narrower & np.isfinite(width)
        self.leaps = np.where(told, np.where(leapt, self.leaps + 1, self.leaps // 2), self.leaps)
        return bool((told & self.kinked).any())

    def learn(self, before: KnownPoint, after: KnownPoint) -> None:
        """Learn from a step."""
        s, y = after.x - before.x, after.slope - before.slope
        self.pairs = [*self.pairs[1 - KEPT :], (s, y)]

    def explains(self, before: KnownPoint, after: KnownPoint) -> bool:
        """Whether f curved as much elsewhere as a change of its slope asks for: else there was a kink on the way."""
        s, y = after.x - before.x, after.slope - before.slope
        steep = [float(np.linalg.norm(curved) / np.linalg.norm(step)) for step, curved in self._pairs]
        return not steep or float(np.linalg.norm(y)) <= 2.0 * max(steep) * float(np.linalg.norm(s))

    def settle(self, at: KnownPoint, stiffest: float) -> None:
        """Say whose slopes leap, and what curvature everybody has at a point, at most so many times the scale."""
        width = self.high - self.low
        self.kinked = np.isfinite(width) & (self.leaps >= SIGNS << np.minimum(self.doubts, 20))
        self._pairs = [pair for s, y in self.pairs if (pair := self._smooth(s, y)) is not None]
        if self._pairs:
            s, y = self._pairs[-1]
            self.scale = float(y @ y) / float(s @ y)
        self.own, self._images = np.full(width.size, self.scale), []
        self.own[self.kinked] = np.minimum(self._across(at, self.kinked), stiffest * self.scale)

    def _across(self, at: KnownPoint, kinked: Bool[np.ndarray, " n"]) -> Vector:
        """The curvatures that lead some variables to where the kink is looked for next."""
        x, slope, low, high, sided = (
            at.x[kinked],
            at.slope[kinked],
            self.low[kinked],
            self.high[kinked],
            self.sided[kinked],
        )
        width, least = high - low, TINY * (1.0 + np.abs(x))
        beyond = width * 2.0 ** np.minimum(np.abs(sided) - SIDED - 1, 30)
        aim = np.where(sided > SIDED, high + beyond, np.where(sided < -SIDED, low - beyond, 0.5 * (low + high)))
        leads = slope * (aim - x) < 0
        leap = self.slope_high[kinked] - self.slope_low[kinked]
        own: Vector = np.where(leads, np.abs(slope), leap) / np.maximum(np.where(leads, np.abs(aim - x), width), least)
        return own

    def _smooth(self, s: Vector, y: Vector) -> tuple[Vector, Vector] | None:
        s, y = np.where(self.kinked, 0.0, s), np.where(self.kinked, 0.0, y)
        return (s, y) if float(s @ y) > CURVED * float(np.linalg.norm(s) * np.linalg.norm(y)) else None

    def solved(self, g: Vector, free: Bool[np.ndarray, " n"]) -> Vector:
        """The inverse of B's part in the free variables, times that of g; zero in the others (Nocedal's two loops)."""
        g = np.where(free, g, 0.0)
        used = []
        for s, y in self._pairs:
            s, y = np.where(free, s, 0.0), np.where(free, y, 0.0)
            product = float(s @ y)
            if product > CURVED * float(np.linalg.norm(s) * np.linalg.norm(y)):
                used.append((s, y, product))
        shares = []
        for s, y, product in reversed(used):
            shares.append(float(s @ g) / product)
            g = g - shares[-1] * y
        g = g / self.own
        for (s, y, product), share in zip(used, reversed(shares)):
            g = g + (share - float(y @ g) / product) * s
        return np.where(free, np.where(self.kinked, g, g / self.stiff), 0.0)

    def times(self, v: Vector) -> Vector:
        """B v, by the updates one after another."""
        for s, _ in self._pairs[len(self._images) :]:
            self._images.append(self._product(s, len(self._images)))
        return self._product(v, len(self._pairs)) * np.where(self.kinked, 1.0, self.stiff)

    def _product(self, v: Vector, count: int) -> Vector:
        product = self.own * v
        for (s, y), image in zip(self._pairs[:count], self._images):
            product = product - image * (float(image @ v) / float(s @ image)) + y * (float(y @ v) / float(s @ y))
        return product

    def steepness(self, slope: Vector) -> float:
        """The length of a slope, entries apart for which the bracket is too narrow to tell it from zero."""
        narrow = self.kinked & (self.high - self.low <= NARROW * (1.0 + np.abs(self.low)))
        return float(np.linalg.norm(np.where(narrow, 0.0, slope)))
