"""Searches one after another: once one is at rest, another begins at a random point of X around the best (Wales and Doye, 1997).

It is monotonic (Leary, 2000): the best point is left for a better one only. How far a search begins from it is drawn anew each time, from
a hundredth of X's bounds to all of them, evenly in the logarithm, so that both the next valley and another end of X are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
from jaxtyping import Float

from hierfl.compiler.starting_points import box_around
from hierfl.descent.implicit_oracle import ImplicitOracle, KnownPoint
from hierfl.descent.limited_search import KINKS, LimitedDescent
from hierfl.descent.search import Descent
from hierfl.run_standing import STUCK

NEAREST = 1e-2  # of half of X's bounds
SAME = 1e-4  # of 1 + |x|: how near to the best point a search is that comes back to it

Search = Descent | LimitedDescent
Begin = Callable[[KnownPoint, bool], Search]  # a search from a point; in pieces


class BasinHopping:
    """Searches from ``first`` on; ``asks()`` as of :class:`~hierfl.descent.search.Descent`, whose last word it returns.

    Attributes
    ----------
    search
        The one that is under way.
    """

    def __init__(self, oracle: ImplicitOracle, first: KnownPoint, begin: Begin, hops: int) -> None:
        self.oracle, self.search, self._begin, self._hops = oracle, begin(first, False), begin, hops
        self._best = first
        self._box = box_around(oracle.problem, first.x)

    @property
    def best(self) -> KnownPoint:
        """The best point of all searches."""
        return min(self._best, self.search.best, key=lambda point: point.value)

    def asks(self) -> Generator[np.ndarray, KnownPoint | None, str]:
        """Descend, and hop."""
        ended = yield from self._descend()
        for _ in range(self._hops):
            self._best = self.best
            there = yield self._elsewhere()
            if there is not None:
                self.search = self._begin(there, False)
                again = yield from self._descend(until_back=True)
                ended = again if self.search.best.value < self._best.value else ended
        return ended

    def _descend(self, until_back: bool = False) -> Generator[np.ndarray, KnownPoint | None, str]:
        """One search, and the one in pieces that goes on where kinks ask for it."""
        asks, answer = self.search.asks(), None
        while True:
            try:
                x = asks.send(answer)
            except StopIteration as end:
                ended = str(end.value)
                if not isinstance(self.search, LimitedDescent) or ended not in (KINKS, STUCK):
                    return ended
                self.search = self._begin(self.search.best, True)
                if isinstance(self.search, LimitedDescent):
                    return ended
                asks, answer = self.search.asks(), None
                continue
            answer = yield x
            if until_back and self._is_back:
                return ""

    @property
    def _is_back(self) -> bool:
        """Whether the search is at the best point again."""
        here, best = self.search.best, self._best
        return here.value >= best.value and bool(np.linalg.norm(here.x - best.x) <= SAME * (1.0 + np.linalg.norm(best.x)))

    def _elsewhere(self) -> Float[np.ndarray, " n"]:
        random, best = self.oracle.random, self._best.x
        reach = 0.5 * NEAREST ** random.uniform() * (self._box.high - self._box.low)
        return self.oracle.inside(best + reach * random.uniform(-1.0, 1.0, best.size))
