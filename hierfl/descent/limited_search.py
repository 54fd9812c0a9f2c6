"""Descent in many variables: limited-memory quasi-Newton steps on X, with brackets where f has kinks along variables, and a small bundle.

A step minimises g'd + d'Bd / 2 on X (``hierfl.descent.limited_curvature`` has B). Where it fails, the gradients that were found there
join g in a bundle, and the next step is along the shortest of their mixtures in the metric of B (Haarala, Miettinen and Mäkelä, 2004).
For smooth f these are projected quasi-Newton steps (Schmidt, van den Berg, Friedlander and Murphy, 2009), whose limits are stationary.
For kinks no theorem is claimed, and where many lie along no variable the model in pieces goes on, if there are not too many
variables for it: bisection in all variables at once ends at a minimum where f is a sum of functions of one variable each,
beside smooth ones, and the bundle finds a way down across a few kinks that lie otherwise; how near they came is told by the steepness.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from hierfl.compiler.programs.cones import NONNEGATIVE, ZERO, Cone
from hierfl.compiler.programs.convex_program import ConvexProgram
from hierfl.compiler.programs.solve_program import solve_program
from hierfl.descent.implicit_oracle import ImplicitOracle, KnownPoint
from hierfl.descent.limited_curvature import LimitedCurvature, Vector
from hierfl.descent.search import AT_REST, BOTTOM, EDGE, UNBOUNDED
from hierfl.run_standing import STUCK

KINKS = "f has kinks along no variable"

FIRST = 1.0  # length of the first step, relative to max(1, |x| / 10)
ENOUGH, STEEP = 1e-4, 0.9  # of a step: the least decrease, and the slope left at its end, beside the slope at its start
# trials of a step that fails, before another direction is sought; of one after which f still falls as steeply
TRIALS, LONGER = 3, 80
# at rest: what of a decrease that is none a model may promise, and the latest steps that made none
MUCH_LESS, RECENT = 0.1, 5
FAILURES, PIECES = 30, 20  # steps that fail one after another, and gradients kept of them
MIXTURES, BROKEN = 10, 0.5  # steps by mixtures, and brackets broken for each variable, that tell of kinks along none
ALONE = 1e-3  # the share of other gradients up to which a mixture is none
MISSING, SHORTEST = 0.2, 1e-10  # the share of a step that is tried next where f has no value, and the least
# before rest: radii, points at each, and the length of a step without memory; relative
LOOKS, NEIGHBOURS, ANEW = (1e-3, 1e-5), 2, 1e-3
INSIDE = 0.5  # the least share of a step's decrease that is left of it in a box
STIFFER = 2.0  # the model after a step that failed
STIFFEST = 1e3  # where X is no box, how much more than f curves elsewhere a variable's own curvature may be
# projected gradient steps for the least of a model on X, and what of the first of them may be left
INNER, CLOSE = 60, 1e-4

Asks = Generator[np.ndarray, KnownPoint | None, str]
Asked = Generator[np.ndarray, KnownPoint | None, bool]


class LimitedDescent:
    """A search, as :class:`hierfl.descent.search.Descent` is one: its costs grow as the number of variables.

    Attributes
    ----------
    best
        The best point.
    steepness
        The length of the latest mixture of gradients at the best point, less what X holds, and without variables at whose kinks it lies.
    share
        The share of the latest step that was tried.
    """

    def __init__(self, oracle: ImplicitOracle, first: KnownPoint, accuracy: float, in_pieces: bool = False) -> None:
        self._in_pieces = in_pieces  # whether a model in pieces could go on from here
        self._mixtures = 0  # steps by mixtures so far
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
            little = promised * self.curvature.stiff <= MUCH_LESS * self._little and (
                failed > 0 or max(self._gained, default=0.0) <= self._little
            )
            if self._crosses_kinks:
                return KINKS
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
            if (yield from self._along(d)):
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
        """Whether f has kinks that lie along no variable, and a model of all pieces can be had: brackets are broken, and gradients mixed, again and again."""
        return self._in_pieces and self._mixtures > MIXTURES and bool(self.curvature.doubts.mean() > BROKEN)

    @property
    def _little(self) -> float:
        """A decrease that is none; beside a minimum of zero, what is none of the accuracy's share of the whole fall."""
        fall = abs(self._first_value - self.best.value)
        return self.accuracy * max(abs(self.best.value), self.accuracy * fall)

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
