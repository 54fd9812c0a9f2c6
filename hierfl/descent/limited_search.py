"""Descent in many variables: limited-memory quasi-Newton steps on X, with brackets where f has kinks along variables, and a small bundle.

A step minimises g'd + d'Bd / 2 on X. Where it fails, the gradients that were found there
join g in a bundle, and the next step is along the shortest of their mixtures in the metric of B (Haarala, Miettinen and Mäkelä, 2004).
For smooth f these are projected quasi-Newton steps (Schmidt, van den Berg, Friedlander and Murphy, 2009), whose limits are stationary.
For kinks no theorem is claimed, and where many lie along no variable the model in pieces goes on, if there are not too many
variables for it: bisection in all variables at once ends at a minimum where f is a sum of functions of one variable each,
beside smooth ones, and the bundle finds a way down across a few kinks that lie otherwise; how near they came is told by the steepness.

Where f is smooth this is the limited-memory BFGS matrix (Byrd, Nocedal and Schnabel, 1994). At a kink no matrix is right: the slope
along a variable that crosses one leaps however short the step, and with it the matrix of everybody. So each variable has a bracket,
the nearest places on either side from which f was seen to fall towards the other. One whose slope changes much more within its
bracket than f curves elsewhere is taken out of the steps that the matrix is made of; its own curvature is what leads to the middle of
the bracket, as in bisection, and past its end where that end is found on the same side again and again, since brackets are as old as the
places of all other variables then.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.programs.cones import NONNEGATIVE, ZERO, Cone
from hierfl.compiler.programs.convex_program import ConvexProgram
from hierfl.compiler.programs.solve_program import solve_program
from hierfl.descent.implicit_oracle import ImplicitOracle, KnownPoint
from hierfl.descent.search import AT_REST, BOTTOM, UNBOUNDED, Asked, Asks
from hierfl.run_standing import EDGE, STUCK

KEPT = 10  # steps
# of a bracket that shrinks to less than a share: how much of the change of slope in it a kink leaves, and how often that is seen before it counts
SHRUNK, LEAP, SIGNS = 0.7, 0.8, 1
SIDED = 3  # ends of a bracket found one after another on one side, from which on the other end is doubted
TINY, NARROW = 1e-16, 1e-6  # relative: a bracket in which the slope is taken for zero
CURVED = 1e-10  # of the curvature along a step, beside |y| / |s|: a smaller one is none

Vector = Float[np.ndarray, " n"]


class LimitedCurvature:
    """The matrix B of the model g'd + d'Bd / 2, by its products with vectors, and those of its inverse.

    ``scale`` is the curvature along whatever no step tells of, ``stiff`` how many times itself the matrix is taken where it led too far, kinks apart;
    ``leaps`` and ``doubts`` (n,) how many signs of a kink each variable has shown in its bracket, and how many kinks turned out to be none;
    ``kinked`` (n,) whose own curvature counts.
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
        x, slope, low, high, sided = (part[kinked] for part in (at.x, at.slope, self.low, self.high, self.sided))
        width, least = high - low, TINY * (1.0 + np.abs(x))
        beyond = width * 2.0 ** np.minimum(np.abs(sided) - SIDED - 1, 30)
        aim = np.where(sided > SIDED, high + beyond, np.where(sided < -SIDED, low - beyond, 0.5 * (low + high)))
        leads = slope * (aim - x) < 0
        leap = self.slope_high[kinked] - self.slope_low[kinked]
        return np.where(leads, np.abs(slope), leap) / np.maximum(np.where(leads, np.abs(aim - x), width), least)

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


IN_PIECES = "f has kinks along no variable, or ends within X"  # which a model in pieces sees

FIRST = 1.0  # length of the first step, relative to max(1, |x| / 10)
ENOUGH, STEEP = 1e-4, 0.9  # of a step: the least decrease, and the slope left at its end, beside the slope at its start
# trials of a step that fails, before another direction is sought; of one after which f still falls as steeply
TRIALS, LONGER = 3, 80
# at rest: what of a decrease that is none a model may promise, and the latest steps that made none
MUCH_LESS, RECENT = 0.1, 5
FAILURES, PIECES = 30, 20  # steps that fail one after another, and gradients kept of them
MIXTURES, BROKEN = 10, 0.5  # steps by mixtures, and brackets broken for each variable, that tell of kinks along none
OUTSIDE = 2  # steps one after another that led to where Y(x) is empty, from which its edge is in the way
CREEPS = 1e-6  # of f and its fall, that the latest steps gain at most on a way along such an edge that is none
ALONE = 1e-3  # the share of other gradients up to which a mixture is none
MISSING, SHORTEST = 0.2, 1e-10  # the share of a step that is tried next where f has no value, and the least
# before rest: radii, points at each, and the length of a step without memory; relative
LOOKS, NEIGHBOURS, ANEW = (1e-3, 1e-5), 2, 1e-3
INSIDE = 0.5  # the least share of a step's decrease that is left of it in a box
STIFFER = 2.0  # the model after a step that failed
STIFFEST = 1e3  # where X is no box, how much more than f curves elsewhere a variable's own curvature may be
# projected gradient steps for the least of a model on X, and what of the first of them may be left
INNER, CLOSE = 60, 1e-4


class LimitedDescent:
    """A search, as :class:`hierfl.descent.search.Descent` is one, with its ``share`` and ``promises``: its costs grow as the number of variables.

    ``steepness`` is the length of the latest mixture of gradients at the best point, less what X holds, and without variables at whose kinks it lies.
    """

    def __init__(self, oracle: ImplicitOracle, first: KnownPoint, accuracy: float, in_pieces: bool = False) -> None:
        self._in_pieces = in_pieces  # whether a model in pieces could go on from here
        self._mixtures = 0  # steps by mixtures so far
        self._outside = 0  # latest steps that led to where Y(x) is empty
        self.promises = np.inf
        self.oracle, self.best, self.accuracy = oracle, first, accuracy
        self._first_value, self.share = first.value, 0.0
        self.steepness = float(np.linalg.norm(first.slope))
        self.curvature = LimitedCurvature(first, FIRST * max(1.0, 0.1 * float(np.linalg.norm(first.x))))
        self.curvature.see(first)
        self._pieces: list[KnownPoint] = []
        self._gained: list[float] = []  # by the latest steps
        self._missed = self._mixed = False
        self._box = oracle.upper_limits()

    def asks(self) -> Asks:
        """Descend until nothing more is promised."""
        looks = failed = 0
        anew: KnownPoint | None = None  # where the memory was given up, and whether nothing was promised there with it
        resting = False
        while True:
            if self.best.value < BOTTOM * (1.0 + abs(self._first_value)):
                return UNBOUNDED
            before, (d, promised) = self.best, self._step()
            self.promises = promised
            little = promised * self.curvature.stiff <= MUCH_LESS * self._little and (
                failed > 0 or max(self._gained, default=0.0) <= self._little
            )
            if self._in_pieces and (self._crosses_kinks or self._outside > OUTSIDE):
                return IN_PIECES
            if self._outside > OUTSIDE and max(self._gained, default=0.0) <= CREEPS * self._size:
                return EDGE
            if little or failed > FAILURES:
                if anew is self.best:
                    return AT_REST if resting or little else EDGE if self._missed and self.oracle.outside else STUCK
                if looks < len(LOOKS):
                    found = yield from self._look_around(LOOKS[looks])
                    looks, failed = 0 if found else looks + 1, 0
                else:
                    anew, resting, self._pieces = self.best, little, []
                    failed = FAILURES - TRIALS
                    self.curvature.restart(self.best, ANEW * (1.0 + float(np.linalg.norm(self.best.x))))
                continue
            falls = yield from self._along(d)
            self._outside = self._outside + 1 if self._missed and self.oracle.empty else 0
            if falls:
                gain = before.value - self.best.value
                failed = 0 if gain > self._little else failed + 1
                self._gained = [*self._gained[1 - RECENT :], gain]
                if gain > self._little:
                    looks = 0
                elif anew is before:
                    anew = self.best
                self.curvature.stiff = max(1.0, self.curvature.stiff / STIFFER)
            else:
                failed += 1
                self.curvature.stiff *= STIFFER

    @property
    def _crosses_kinks(self) -> bool:
        """Whether f has kinks that lie along no variable: brackets are broken, and gradients mixed, again and again."""
        return self._mixtures > MIXTURES and bool(self.curvature.doubts.mean() > BROKEN)

    @property
    def _little(self) -> float:
        """A decrease that is none; beside a minimum of zero, what is none of the accuracy's share of the whole fall."""
        fall = abs(self._first_value - self.best.value)
        return self.accuracy * max(abs(self.best.value), self.accuracy * fall)

    @property
    def _size(self) -> float:
        """What f is measured by on the way: its size and its fall."""
        return abs(self.best.value) + abs(self._first_value - self.best.value)

    def _step(self) -> tuple[Vector, float]:
        """The model's minimiser on X, and how much lower its linear part is there."""
        best, curvature = self.best, self.curvature
        curvature.settle(best, np.inf if self._box is not None else STIFFEST)
        mixture, error = self._mixture()
        if self._box is None:
            d = self._on_set(mixture)
            self.steepness = curvature.steepness(curvature.times(d))
            return d, max(0.0, -float(mixture @ d)) + error
        low, high = self._box
        free = ~(((best.x <= low) & (mixture > 0)) | ((best.x >= high) & (mixture < 0)))
        self.steepness = curvature.steepness(np.where(free, mixture, 0.0))
        whole = -curvature.solved(mixture, free)
        d = np.clip(best.x + whole, low, high) - best.x
        if float(mixture @ d) > INSIDE * float(mixture @ whole):  # most of it leads out of X
            d = np.clip(best.x - mixture / curvature.own, low, high) - best.x
        return d, max(0.0, -float(mixture @ d)) + error

    def _mixture(self) -> tuple[Vector, float]:
        """The mixture of the gradients known here that is shortest in the metric of the model, and its error at the best point."""
        best = self.best
        self._mixed = False
        if not self._pieces:
            return best.slope, 0.0
        slopes = np.array([best.slope, *(piece.slope for piece in self._pieces)])
        slopes[1:, self.curvature.kinked] = best.slope[self.curvature.kinked]  # brackets lead across those
        errors = np.array([0.0, *(abs(self._error(piece)) for piece in self._pieces)])
        everywhere = np.ones(best.x.size, bool)
        if self._box is not None:
            everywhere = (best.x > self._box[0]) & (best.x < self._box[1])
        products = slopes @ np.array([self.curvature.solved(slope, everywhere) for slope in slopes]).T
        size = max(float(np.trace(products)) / len(products), 1e-300)
        count = len(slopes)
        program = ConvexProgram.of(
            0.5 * (products + products.T) / size,
            errors / size,
            np.vstack([np.ones((1, count)), np.eye(count)]),
            np.concatenate([[-1.0], np.zeros(count)]),
            [Cone(ZERO, 1), Cone(NONNEGATIVE, count)],
        )
        answer = solve_program(program)
        if not answer.solved:
            self._pieces = []
            return best.slope, 0.0
        shares = np.maximum(answer.u, 0.0) / np.maximum(answer.u, 0.0).sum()
        self._mixed = bool(shares[0] < 1.0 - ALONE)
        self._mixtures += self._mixed
        return shares @ slopes, float(shares @ errors)

    def _error(self, piece: KnownPoint) -> float:
        return self.best.value - piece.value - float((self.best.x - piece.x) @ piece.slope)

    def _on_set(self, g: Vector) -> Vector:
        """The least of g'd + d'Bd / 2 over x + d in X, nearly, by spectral projected gradients."""
        x, times = self.best.x, self.curvature.times
        d, slope, length, first = np.zeros(x.size), g, 1.0 / float(self.curvature.own.max()), 0.0
        for _ in range(INNER):
            way = self.oracle.inside(x + d - length * slope) - x - d
            image = times(way)
            bend, falls = float(way @ image), -float(way @ slope)
            first = max(first, falls)
            if not falls > CLOSE * first:
                break
            share = min(1.0, falls / max(bend, 1e-300))
            d, slope = d + share * way, slope + share * image
            length = float(way @ way) / max(bend, 1e-300)
        return d

    def _along(self, d: Vector) -> Asked:
        """Try the step, longer and shorter ones, until f is lower; whether it came about."""
        before, self._missed, failures = self.best, False, 0
        share = 1.0
        while share > SHORTEST:
            self.share = share
            tried = yield self.oracle.inside(before.x + share * d)
            if tried is None:
                self._missed = True
                share *= MISSING
                continue
            narrower = self.curvature.see(tried)
            moved = tried.x - before.x
            if tried.value <= before.value + ENOUGH * float(before.slope @ moved) and tried.value < before.value:
                last = yield from self._further(d, share, tried)
                if not self._mixed or self.curvature.explains(before, last):  # else it crosses kinks
                    self.curvature.learn(before, last)
                    self._pieces = self._pieces if failures or self._mixed else []
                self.best = last
                return True
            self._pieces = [*self._pieces[1 - PIECES :], tried]
            failures += 1
            if failures == TRIALS or narrower:
                return False
            falls, rises = float(before.slope @ moved), float(tried.slope @ moved)
            share *= float(np.clip(falls / (falls - rises), 0.1, 0.5)) if falls < rises else 0.5
        return False

    def _further(
        self, d: Vector, share: float, tried: KnownPoint
    ) -> Generator[np.ndarray, KnownPoint | None, KnownPoint]:
        """Double a step at whose end f falls almost as steeply as at its start."""
        start = float(self.best.slope @ d)
        for _ in range(LONGER):
            if not float(tried.slope @ d) < STEEP * start:
                break
            share *= 2.0
            self.share = share
            to = self.oracle.inside(self.best.x + share * d)
            if float(np.linalg.norm(to - tried.x)) <= 1e-9 * float(np.linalg.norm(share * d)):
                break
            longer = yield to
            if longer is None:
                break
            self.curvature.see(longer)
            if longer.value >= tried.value:
                break
            tried = longer
        return tried

    def _look_around(self, radius: float) -> Asked:
        """Learn the gradients of random points of X nearby; whether one of them is better."""
        self.share, x, better = 0.0, self.best.x, False
        for _ in range(NEIGHBOURS):
            away = self.oracle.around(x, radius)
            for to in (away, self.oracle.inside(2.0 * x - away)):  # both sides of a kink
                tried = yield to
                if tried is None:
                    continue
                self.curvature.see(tried)
                if tried.value < self.best.value - self._little:
                    self.best, better = tried, True
                else:
                    self._pieces = [*self._pieces[1 - PIECES :], tried]
        return better
