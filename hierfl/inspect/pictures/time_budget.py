"""What the costly parts of a slice would take, by the time of a few evaluations, for reports that leave out what takes too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from hierfl.inspect.implicit.points import Points
from hierfl.inspect.kinks.place_search import effort
from hierfl.inspect.pictures.slice import Slice
from hierfl.jaxtools.precision import double_precision

ASIDE = 1e-3  # of a step
FEW = 64  # points that are timed: a whole piece of those that are evaluated together
SLOPES_FOR_KINKS = 4  # evaluations of a slope for each point of a slice, about, in a search for kinks


@dataclass(frozen=True)
class TimeBudget:
    """Estimates for a slice that has been sampled; ``seconds`` is what a part may take."""

    shown: Slice
    seconds: float

    def smoothing(self, etas: int, samples: int) -> float:
        """Seconds of f^eta for so many etas."""
        return etas * samples * len(self.shown.t) * self._value

    def slopes(self) -> float:
        """Seconds of exact slopes at the slice's points; 0 where there are none."""
        return len(self.shown.t) * self._slope

    def kinks(self) -> float:
        """Seconds of a search for kinks."""
        return effort(self.shown.t, self.shown.sampled) * self._value + SLOPES_FOR_KINKS * self.slopes()

    @cached_property
    def _value(self) -> float:
        return self._timed(self._points.values, 2 / 3)

    @cached_property
    def _slope(self) -> float:
        return self._timed(self._points.gradients, 0) if self._points.differentiable else 0.0

    @cached_property
    def _points(self) -> Points:
        return Points(self.shown.compiled, self.shown.tolerance)

    @double_precision
    def _timed(self, function: Callable[[np.ndarray], Any], after: float) -> float:
        """Seconds for one point, of a few in the middle that are evaluated together; what they compile is not counted.

        They are a share ``after`` of a step behind the slice's own points, a little aside, and compiled for at others: lower levels that
        are solved on the host remember what they were asked, and answer it again in no time; along the line all may be one question.
        """
        t = self.shown.t
        count = min(FEW, len(t) - 1)
        few, step = t[(len(t) - count) // 2 :][:count], t[1] - t[0]
        places = self.shown.line.at(few + step / 3)
        aside = ASIDE * step * after * np.cos(np.arange(1, places.shape[-1] + 1) ** 2)
        function(places + 0.5 * aside)
        began = perf_counter()
        function(self.shown.line.at(few + after * step) + aside)
        return (perf_counter() - began) / count
