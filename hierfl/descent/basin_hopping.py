"""Searches one after another: once one is at rest on a plateau, another begins beyond it where f is lower; and, where hops are asked for, at
a random point of X around the best (Wales and Doye, 1997).

It is monotonic (Leary, 2000): the best point is left for a better one only. Half of the searches begin anywhere within X's bounds. How far
the others begin from it is drawn anew each time, from a hundredth of the bounds to all of them, evenly in the logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
from jaxtyping import Float

from hierfl.compiler.starting_points import box_around
from hierfl.descent.implicit_oracle import ImplicitOracle, KnownPoint
from hierfl.descent.limited_search import IN_PIECES, LimitedDescent
from hierfl.descent.search import Descent
from hierfl.run_standing import AT_REST, STUCK

NEAREST = 1e-2  # of X's bounds
ANYWHERE = 0.5  # of the hops
STEPS = 10.0  # as long as the next one, that a search is given to become better than the best
FLAT, BETTER = 1e-12, 1e-9  # of 1 + |f|: the slope of a plateau, and how f changes on it; by what a point beyond it has to be better
BEYOND, SPREAD = (1e-3, 1e-2, 0.1, 1.0, 10.0), 16  # how far from its point f is looked at, in 1 + |x|; at how many points of X's bounds
# how near to the best point a search is that comes back to it: of 1 + |x|, and of how far away it began
SAME, HOME = 1e-4, 0.2

Search = Descent | LimitedDescent
Begin = Callable[[KnownPoint, bool], Search]  # a search from a point; in pieces


def is_flat(point: KnownPoint) -> bool:
    """Whether f has no slope at a point."""
    return float(np.abs(point.slope).max(initial=0.0)) <= FLAT * (1.0 + abs(point.value))


class BasinHopping:
    """Searches from ``first`` on, ``search`` the one under way; ``asks()`` as of :class:`~hierfl.descent.search.Descent`, whose last word it returns."""

    def __init__(self, oracle: ImplicitOracle, first: KnownPoint, begin: Begin, hops: int, goal: float) -> None:
        self.goal = goal
        self.oracle, self.search, self._begin, self._hops = oracle, begin(first, False), begin, hops
        self._best, self._hopped = first, 0.0
        self._box = box_around(oracle.problem, first.x)

    @property
    def best(self) -> KnownPoint:
        return min(self._best, self.search.best, key=lambda point: point.value)

    def asks(self) -> Generator[np.ndarray, KnownPoint | None, str]:
        """Descend, and hop, until f is as low as ``goal``."""
        asks, answer = self._searches(), None
        while self.best.value > self.goal:
            try:
                answer = yield asks.send(answer)
            except StopIteration as end:
                return str(end.value)
        return AT_REST

    def _searches(self) -> Generator[np.ndarray, KnownPoint | None, str]:
        ended = yield from self._descend()
        while ended == AT_REST and (there := (yield from self._beyond())) is not None:
            self._best, self.search = self.best, self._begin(there, False)
            ended = yield from self._descend()
        for _ in range(self._hops):
            self._best = self.best
            there = yield self._elsewhere()
            if there is not None:
                self.search, self._hopped = self._begin(there, False), float(np.linalg.norm(there.x - self._best.x))
                again = yield from self._descend(hopping=True)
                ended = again if self.search.best.value < self._best.value else ended
        return ended

    def _descend(self, hopping: bool = False) -> Generator[np.ndarray, KnownPoint | None, str]:
        """One search, and the one in pieces that goes on where kinks ask for it."""
        asks, answer = self.search.asks(), None
        while True:
            try:
                x = asks.send(answer)
            except StopIteration as end:
                ended = str(end.value)
                if not isinstance(self.search, LimitedDescent) or ended not in (IN_PIECES, STUCK):
                    return ended
                self.search = self._begin(self.search.best, True)
                if isinstance(self.search, LimitedDescent):
                    return ended
                asks, answer = self.search.asks(), None
                continue
            answer = yield x
            if hopping and self._in_vain:
                return ""

    def _beyond(self) -> Generator[np.ndarray, KnownPoint | None, KnownPoint | None]:
        """The best of some points around a plateau and of some anywhere, where f is lower there: no slope leads off it."""
        best, random, box = self.best, self.oracle.random, self._box
        if not is_flat(best):
            return None
        way = np.cos(np.arange(1.0, best.x.size + 1.0) ** 2)
        way *= (1.0 + np.linalg.norm(best.x)) / np.linalg.norm(way)
        around = [best.x + sign * length * way for length in BEYOND for sign in (1.0, -1.0)]
        found: list[KnownPoint] = []
        for k, x in enumerate((*around, *(random.uniform(box.low, box.high) for _ in range(SPREAD)))):
            there = yield self.oracle.inside(x)
            found += [] if there is None else [there]
            if k == 1 and len(found) == 2 and min(point.value for point in found) > best.value + FLAT * (1.0 + abs(best.value)):
                return None  # a minimum: f rises on both sides
        lowest = min(found, key=lambda point: point.value, default=best)
        return lowest if lowest.value < best.value - BETTER * (1.0 + abs(best.value)) else None

    @property
    def _in_vain(self) -> bool:
        """Whether the search is at the best point again, or so far above it that several steps as its model promises do not make up for it."""
        here, best = self.search.best, self._best
        near = max(SAME * (1.0 + float(np.linalg.norm(best.x))), HOME * self._hopped)
        back = float(np.linalg.norm(here.x - best.x)) <= near
        return here.value >= best.value and (back or here.value - best.value > STEPS * self.search.promises)

    def _elsewhere(self) -> Float[np.ndarray, " n"]:
        random, best, box = self.oracle.random, self._best.x, self._box
        if random.uniform() < ANYWHERE:
            return self.oracle.inside(random.uniform(box.low, box.high))
        reach = NEAREST ** random.uniform() * (box.high - box.low)
        return self.oracle.inside(best + reach * random.uniform(-1.0, 1.0, best.size))
