"""The search for places on a line where f may have a kink: by switches, by slopes, or by values, up to the edges of gaps.

Switches say exactly where a branch changes. What has no switch shows in the slopes, and in values that the slopes do not
explain. Where f has no implicit gradients, second differences of its values take their place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierfl.inspect.implicit.points import Points, Sampled
from hierfl.inspect.kinks.kink_places import BRACKET, EACH_PLACE, LIMIT, MERGE, KinkPlace, merged
from hierfl.inspect.kinks.one_sided import ROUGH_DISTANCES
from hierfl.inspect.kinks.slope_leaps import SlopeLeaps
from hierfl.inspect.kinks.switch_changes import SwitchChanges
from hierfl.inspect.kinks.switches import TOLERANCE
from hierfl.inspect.kinks.value_outliers import outliers
from hierfl.inspect.line import Line

CLOSE = 1e-10  # of x
EDGE_POINTS, EDGES_LIMIT = 9, 64


def effort(t: np.ndarray, sampled: Sampled) -> int:
    """Estimate how many points a search for kinks looks at, for a progress bar."""
    changes = min(LIMIT, int(np.sum(np.diff(sampled.signature, axis=0) != 0)))
    halvings = int(np.ceil(np.log2(2 / (len(t) * BRACKET))))
    return len(t) + changes * (halvings + EACH_PLACE)


@dataclass(frozen=True)
class PlaceSearch:
    """Looks for places on a line; ``coarse`` says that values are only as good as a conic solver's."""

    points: Points
    line: Line
    coarse: bool = False

    def on(self, t: np.ndarray, sampled: Sampled) -> tuple[list[KinkPlace], int]:
        """(places in order, how many were dropped) between points ``t`` that have been sampled."""
        if not (sampled.reason == 0).any():
            return [], 0
        places, dropped = self._between(t, sampled)
        for grid in self._edges(t, sampled):
            more, also = self._between(grid, self.points.values(self.line.at(grid)))
            places, dropped = places + more, dropped + also
        return merged(places, self.separation, 1e3 * TOLERANCE * self._size), dropped

    @property
    def separation(self) -> float:
        """Places that are closer are taken together."""
        least = ROUGH_DISTANCES[0] if self.coarse else MERGE
        return max(least * self.line.radius, CLOSE * self._size)

    @property
    def _size(self) -> float:
        """The size of x, to which rounding is relative."""
        return 1.0 + float(np.max(np.abs(self.line.centre), initial=0.0))

    def _between(self, t: np.ndarray, sampled: Sampled) -> tuple[list[KinkPlace], int]:
        changes = SwitchChanges(self.points, self.line)
        places, dropped = changes.crossings(t, sampled)
        places += changes.touches(t, sampled) + changes.shared(t, sampled)
        if not self.points.differentiable:
            return places + outliers(self.points, self.line, t, sampled, self.coarse), dropped
        look = SlopeLeaps(self.points, self.line, self.separation)
        known, good = np.array([place.t for place in places]), sampled.reason == 0
        slope = np.full(len(t), np.nan)
        slope[good] = look.slopes(t[good])
        leaps, also = look.leaps(t, slope, known)
        return places + leaps + look.breaks(t, np.where(good, sampled.value, np.nan), slope, known), dropped + also

    def _edges(self, t: np.ndarray, sampled: Sampled) -> list[np.ndarray]:
        """Make grids that reach from the last point with a value to the edge of a gap."""
        good = sampled.reason == 0
        cells = np.flatnonzero(good[1:] != good[:-1])[:EDGES_LIMIT]
        if not cells.size:
            return []
        inside, outside = np.where(good[cells], t[cells], t[cells + 1]), np.where(good[cells], t[cells + 1], t[cells])
        start = inside.copy()
        while np.max(np.abs(outside - inside)) > BRACKET * self.line.radius:
            middle = 0.5 * (inside + outside)
            value = self.points.values(self.line.at(middle)).reason == 0
            inside, outside = np.where(value, middle, inside), np.where(value, outside, middle)
        far = np.abs(inside - start) > MERGE * self.line.radius
        return [np.sort(np.linspace(a, b, EDGE_POINTS)) for a, b in zip(start[far], inside[far])]
