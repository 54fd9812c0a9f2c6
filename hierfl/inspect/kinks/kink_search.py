"""The kinks and jumps of f along a line: what ``one_sided`` sees at places where f may have a kink, with its causes.

Places are looked for by switches, by slopes, or by values, up to the edges of gaps. Switches say exactly where a branch changes. What has
no switch shows in the slopes, and in values that the slopes do not explain; where f has no implicit gradients, in its values alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hierfl.inspect.implicit.points import Points, Sampled
from hierfl.inspect.kinks.kink import (
    BRACKET,
    EACH_PLACE,
    LIMIT,
    MERGE,
    Jump,
    Kink,
    KinkPlace,
    Kinks,
    Resolution,
    SampledKinks,
    changed,
    merged,
)
from hierfl.inspect.kinks.one_sided import ROUGH_DISTANCES, OneSided, Sides, judge
from hierfl.inspect.kinks.slope_leaps import SlopeLeaps, outliers
from hierfl.inspect.kinks.switch_changes import SwitchChanges
from hierfl.inspect.kinks.switches import TOLERANCE, Cause
from hierfl.inspect.window import Line

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


TIE = 4.0  # separations between two jumps that are one, with a tie of lower solutions in between


@dataclass(frozen=True)
class KinkSearch:
    """Looks for kinks on a line."""

    points: Points
    line: Line

    def find(self, t: np.ndarray, sampled: Sampled) -> Kinks:
        """Find all kinks and jumps in the window whose grid ``t`` has been sampled."""
        switches = self.points.switches
        unseen = (
            (f"{switches.entries:,} atoms and constraints",) if switches.entries > sampled.signature.shape[1] else ()
        )
        eye = OneSided.of(self.points, sampled, self.line.at(t), self.line.direction, self.line.radius)
        look = PlaceSearch(self.points, self.line, eye.coarse)
        places, dropped = look.on(t, sampled)
        resolution = Resolution(
            eye.least_jump,
            look.separation,
            eye.distances[-1] * self.line.radius,
            float(t[1] - t[0]),
            (*switches.opaque, *unseen),
            dropped,
        )
        kinks, jumps = self._judged(places, eye) if places else ([], [])
        kinks, jumps = _distinct(kinks, look.separation), self._whole(jumps, TIE * look.separation)
        shared = frozenset(entry for place in places for entry in place.entries)
        return Kinks(kinks, jumps, self._aggregate(t, sampled, shared), resolution)

    def _judged(self, places: list[KinkPlace], eye: OneSided) -> tuple[list[Kink], list[Jump]]:
        """Look at the places: (kinks, jumps)."""
        at, widths = np.array([p.t for p in places]), np.array([p.width for p in places])
        apart = np.diff(at, prepend=-np.inf, append=np.inf)
        reach = 0.1 * np.minimum(apart[:-1], apart[1:])
        directions = np.broadcast_to(self.line.direction, (len(at), self.line.direction.size))
        seen = judge(eye, self.line.at(at), directions, self.line.radius, widths, reach)
        at = at + seen.shift
        kinks = [self._kink(places[i], float(at[i]), seen.sides, int(i)) for i in np.flatnonzero(seen.kinks)]
        jumps = [self._jump(places[i], float(at[i]), seen.sides, int(i)) for i in np.flatnonzero(seen.jumps)]
        return kinks, jumps

    def _kink(self, place: KinkPlace, t: float, there: Sides, i: int) -> Kink:
        before, after = there.slope[i].tolist()
        return Kink(t, self._x(t), float(there.value[i].mean()), before, after, self._causes(place, t))

    def _jump(self, place: KinkPlace, t: float, there: Sides, i: int) -> Jump:
        left, right = there.value[i].tolist()
        return Jump(t, self._x(t), left, right, self._causes(place, t))

    def _causes(self, place: KinkPlace, t: float) -> tuple[Cause, ...]:
        """Name what changes at a place, constraints first."""
        switches = self.points.switches
        entries = place.entries or (self._beside(t) if switches.entries else frozenset())
        causes = dict.fromkeys(switches.place(entry) for entry in sorted(entries))
        return tuple(sorted(causes, key=lambda cause: not cause.is_constraint))

    def _beside(self, t: float) -> frozenset[int]:
        """The switches that have another sign at a place than beside it."""
        width = 10 * MERGE * self.line.radius
        before, here, after = self.points.values(self.line.at(np.array([t - width, t, t + width]))).signature
        return changed(before, after) | changed(before, here)

    def _x(self, t: float) -> Any:
        return self.points.compiled.upper.unflatten(self.line.at(t))

    def _whole(self, jumps: list[Jump], separation: float) -> list[Jump]:
        """Jumps at one place, up to a tie of lower solutions in between, as one."""
        whole: list[Jump] = []
        for jump in sorted(jumps, key=lambda jump: jump.t):
            if whole and jump.t - whole[-1].t <= separation:
                causes = tuple(dict.fromkeys(whole[-1].causes + jump.causes))
                middle = 0.5 * (whole[-1].t + jump.t)
                whole[-1] = replace(whole[-1], t=middle, x=self._x(middle), right=jump.right, causes=causes)
            else:
                whole.append(jump)
        return whole

    def _aggregate(self, t: np.ndarray, sampled: Sampled, shared: frozenset[int]) -> SampledKinks | None:
        """Count the changes of branch of a distribution's sample, but for those that many rows share."""
        blurred = self.points.switches.sampled[: sampled.signature.shape[1]].copy()
        blurred[[entry for entry in shared if entry < len(blurred)]] = False
        good = sampled.reason == 0
        changes = (np.diff(sampled.signature, axis=0) != 0) & (good[1:] & good[:-1])[:, None] & blurred
        cells = np.flatnonzero(changes.any(axis=1))
        if not cells.size:
            return None
        return SampledKinks(int(np.sum(changes)), float(t[cells[0]]), float(t[cells[-1] + 1]))


def _distinct(kinks: list[Kink], separation: float) -> list[Kink]:
    """Put kinks in order; those of places that turned out to be the same one are taken together."""
    distinct: list[Kink] = []
    for kink in sorted(kinks, key=lambda kink: kink.t):
        if distinct and kink.t - distinct[-1].t <= separation:
            distinct[-1] = replace(distinct[-1], causes=tuple(dict.fromkeys(distinct[-1].causes + kink.causes)))
        else:
            distinct.append(kink)
    return distinct
