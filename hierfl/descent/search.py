"""A bundle method with variable metric for the implicit function on X, which needs no settings.

Each step minimises a model of f on X (``hierfl.descent.bundle``), so that kinks of f and the boundary of X are seen as what they
are, and a line search takes care where the model is wrong. When the model promises no more, gradients at random points nearby are
asked for as well before the point is called at rest: at a kink one gradient may be zero although f falls to one side (gradient
sampling: Burke, Lewis and Overton, 2005). For convex f this is a proximal bundle method, which converges to the minimum; for
others it ends at points that the model cannot tell from stationary ones, and no theorem is claimed.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from hierfl.descent.bundle import Bundle, ModelStep
from hierfl.descent.decision_rows import DecisionRows
from hierfl.descent.implicit_oracle import ImplicitOracle, KnownPoint

AT_REST = "at rest"
EDGE = "at the edge of where f has values"
STUCK = "no descent found"
UNBOUNDED = "f seems unbounded below"
# of a step: the least decrease, its share where f has no value, the longest one in radii so far, and the shares tried at most
ENOUGH, MISSING, FAR = 0.1, 0.2, 10.0
SHORTEST, FURTHEST = 1e-10, 64.0
BOTTOM = -1e18  # of f, oriented for minimisation, in units of 1 + |f| at the start
# radii, relative, within which a point is looked around before it is called at rest, and how many points are asked there
LOOKS, NEIGHBOURS = (1e-3, 1e-5), 6
# before rest, along each variable: how far beyond the model's step, in it, what decrease counts, in the accuracy's, and the furthest, in 1 + |x|
BEYOND, COUNTS, FURTHER = 64.0, 4.0, 1e4

Asks = Generator[np.ndarray, KnownPoint | None, str]
Asked = Generator[np.ndarray, KnownPoint | None, bool]


class Descent:
    """A search: ``asks()`` yields points of X, is sent what f is there (None: no value), and returns why it ended.

    Attributes
    ----------
    bundle
        What is known of f; ``bundle.centre`` is the best point.
    steepness
        The length of the latest model's gradient at the best point, the constraints of X included; infinite before the first step.
    share
        The share of the latest step that was tried.
    """

    def __init__(self, oracle: ImplicitOracle, rows: DecisionRows, first: KnownPoint, accuracy: float) -> None:
        self.oracle, self.rows, self.accuracy = oracle, rows, accuracy
        self.bundle = Bundle(first)
        self.begun, self._first_value = first.x, first.value
        self._promised: float | None = None  # by the first step in these units
        self.steepness, self.share = float("inf"), 0.0
        self._missed = False  # whether f had no value on the latest step
        self._bounded = False  # whether the rows say where Y(x) is empty

    @property
    def _scale(self) -> float:
        """What f is measured by: its size, its fall so far, and what the first step promised."""
        value = self.bundle.centre.value
        return abs(value) + abs(self._first_value - value) + (self._promised or 0.0)

    def asks(self) -> Asks:
        """Descend until nothing more is promised."""
        looks = stuck = 0
        while True:
            if self.bundle.centre.value < BOTTOM * (1.0 + abs(self._first_value)):
                return UNBOUNDED
            step = self.bundle.step(self.rows)
            if step is None:
                return STUCK
            self.steepness = float(np.linalg.norm(self.bundle.curvature @ step.d))
            if self._promised is None:
                self._promised = step.decrease
            if step.decrease <= self.accuracy * self._scale:
                if looks == len(LOOKS):
                    if not (yield from self._look_far(step)):
                        return AT_REST
                    looks = 0
                    continue
                yield from self._look_around(LOOKS[looks])
                looks += 1
                continue
            before = self.bundle.centre
            if (yield from self._along(step)):
                stuck = 0
                looks = looks if self.bundle.centre is before else 0
            elif self._sees_the_edge():
                continue
            elif stuck:
                return EDGE if self._missed and self.oracle.outside else STUCK
            else:
                stuck += 1
                yield from self._look_around(LOOKS[-1])

    def _along(self, step: ModelStep) -> Asked:
        """Try the step, and shorter ones, until f is lower or the model has learnt; whether either came about."""
        x, value = self.bundle.centre.x, self.bundle.centre.value
        reach = FAR * (1.0 + float(np.linalg.norm(x - self.begun)))
        share = min(1.0, reach / max(float(np.linalg.norm(step.d)), 1e-300))
        whole, self._missed = share == 1.0, False
        while share > SHORTEST:
            self.share = share
            tried = yield x + share * step.d
            if tried is None:
                self._missed = True
                if self.oracle.empty and not self._bounded:
                    return False
                share *= MISSING
            elif tried.value <= value - ENOUGH * share * step.decrease:
                before = self.bundle.centre
                self.bundle.move(tried)
                if whole and share == 1.0:
                    yield from self._further(x, step)
                self.bundle.learn(before)
                return True
            else:
                cuts = self.bundle.cuts(tried, step)
                self.bundle.add(tried)
                if cuts:
                    if share < 1.0:
                        self.bundle.stiffen(min(4.0, 1.0 / share))
                    return True
                share *= 0.5 if share == 1.0 else 0.3
        return False

    def _further(self, x: np.ndarray, step: ModelStep) -> Generator[np.ndarray, KnownPoint | None, None]:
        """Double a step from x along which f still falls steeply, as far as X reaches."""
        share = 2.0
        while share <= FURTHEST and float(self.bundle.centre.slope @ step.d) < -0.5 * step.decrease:
            to = x + share * step.d
            inside = self.oracle.inside(to)
            if np.linalg.norm(inside - to) > 1e-9 * (1.0 + np.linalg.norm(to)):
                return
            self.share = share
            tried = yield to
            if tried is None:
                return
            if tried.value >= self.bundle.centre.value:
                self.bundle.add(tried)
                return
            self.bundle.move(tried)
            share *= 2.0

    def _look_around(self, radius: float) -> Generator[np.ndarray, KnownPoint | None, None]:
        """Learn the gradients of random points of X nearby."""
        self.share = 0.0
        x = self.bundle.centre.x
        count = min(self.begun.size + 1, NEIGHBOURS)
        directions = [self.oracle.direction(x.size) for _ in range((count + 1) // 2)]
        reach = radius * (1.0 + float(np.linalg.norm(x)))
        for away in [sign * d for d in directions for sign in (1.0, -1.0)]:  # both sides of a kink
            tried = yield self.oracle.inside(x + reach * away)
            if tried is None:
                continue
            if tried.value < self.bundle.centre.value:
                self.bundle.move(tried)
            else:
                self.bundle.add(tried)

    def _look_far(self, step: ModelStep) -> Asked:
        """Whether f falls as the model's gradient says much further along a variable than the model goes; its unit is changed then.

        The model begins with one curvature for all variables, and calls rest where the steps of one that is measured in small units
        promise nothing.
        """
        self.share, falls = 0.0, False
        for place, slope in enumerate(-self.bundle.curvature @ step.d):
            way = np.zeros(self.begun.size)
            way[place] = -np.sign(slope)
            steep, gone = abs(float(slope)), 0.0
            if not steep:
                continue
            length = max(
                BEYOND * steep / self.bundle.curvature[place, place], COUNTS * self.accuracy * self._scale / steep
            )
            while length <= FURTHER * (1.0 + abs(float(self.bundle.centre.x[place]))):
                to, value = self.bundle.centre.x + length * way, self.bundle.centre.value
                if np.abs(self.oracle.inside(to) - to).max() > 1e-9 * length:
                    break
                tried = yield to
                if tried is None or not tried.value < value - 0.5 * steep * length:
                    break
                self.bundle.move(tried)
                gone += length
                length *= BEYOND
            if gone:
                self.bundle.flatten(place, steep / gone)
                self._promised = None  # it was made in other units
                falls = True
        return falls

    def _sees_the_edge(self) -> bool:
        """Whether the rows have just learnt where Y(x) is not empty."""
        if self._bounded or not self.oracle.empty:
            return False
        self._bounded = True
        rows = DecisionRows.with_answers(self.oracle.problem)
        if rows is None:
            return False
        self.rows = rows
        return True
