"""The kinks and jumps of f along a line: what ``one_sided`` sees at the places of ``place_search``, with its causes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hierfl.inspect.implicit.points import Points, Sampled
from hierfl.inspect.kinks.kink import Jump, Kink, Kinks, Resolution, SampledKinks
from hierfl.inspect.kinks.kink_places import MERGE, KinkPlace, changed
from hierfl.inspect.kinks.one_sided import OneSided, judge
from hierfl.inspect.kinks.place_search import PlaceSearch
from hierfl.inspect.kinks.sides import Sides
from hierfl.inspect.kinks.switches import Cause
from hierfl.inspect.line import Line

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
