"""The kinks and jumps of f along a line: what ``one_sided`` sees at places where f may have a kink, with its causes.

Places are looked for by switches, by slopes, or by values, up to the edges of gaps. Switches say exactly where a branch changes. What has
no switch shows in the slopes: between neighbouring points the change of f' varies little where f is smooth, and leaps where it has a kink;
and f changes by other than the slopes say where it jumps. Where f has no implicit gradients, second differences of its values stick out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
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
from hierfl.inspect.kinks.one_sided import LEAST_STEP, ROUGH_DISTANCES, OneSided, judge
from hierfl.inspect.kinks.switch_changes import Branches, SwitchChanges
from hierfl.inspect.kinks.switches import TOLERANCE, Cause
from hierfl.inspect.window import Line, bisected

OUTLIER, NEIGHBOURS = 8.0, 8
LEAP = 3e-7  # of a slope, relative to 1 + |slope|
FEWEST = 5  # slopes out of seven, between which a leap is narrowed down further
CLOSE = 1e-10  # of x
EDGE_POINTS, EDGES_LIMIT = 9, 64
AGAIN = 3  # looks for kinks between those that are known
TIE = 4.0  # separations between two jumps that are one, with a tie of lower solutions in between


def effort(t: np.ndarray, sampled: Sampled) -> int:
    """Estimate how many points a search for kinks looks at, for a progress bar."""
    changes = min(LIMIT, int(np.sum(np.diff(sampled.signature, axis=0) != 0)))
    halvings = int(np.ceil(np.log2(2 / (len(t) * BRACKET))))
    return len(t) + changes * (halvings + EACH_PLACE)


def find_kinks(points: Points, line: Line, t: np.ndarray, sampled: Sampled, branches: Branches | None = None) -> Kinks:
    """Find all kinks and jumps of f on a line whose places ``t`` (k,) have been sampled; ``branches`` is what is known of y there."""
    switches = points.switches
    unseen = (f"{switches.entries:,} atoms and constraints",) if switches.entries > sampled.signature.shape[1] else ()
    eye = OneSided.of(points, sampled, line.at(t), line.direction, line.radius)
    eye = eye._replace(branches=branches if eye.exact else None)
    search = _Search(points, line, eye.coarse, eye.branches)
    places, dropped = search.places(t, sampled)
    bend, spacing = eye.distances[-1] * line.radius, float(t[1] - t[0])
    resolution = Resolution(eye.least_jump, search.separation, bend, spacing, (*switches.opaque, *unseen), dropped)
    kinks, jumps = search.judged(places, eye) if places else ([], [])
    for _ in range(AGAIN):
        looks = [search._between(grid, points.values(line.at(grid)))[0] for grid in search.torn(t, sampled, kinks, jumps, eye.least_jump)]
        more = search.merged([place for look in looks for place in look])
        if not more:
            break
        places += more
        found = search.judged(more, eye)
        kinks, jumps = kinks + found[0], sorted(jumps + found[1], key=lambda jump: jump.t)
    shared = frozenset(entry for place in places for entry in place.entries)
    return Kinks(_distinct(kinks, search.separation), search.whole(jumps), _aggregate(points, t, sampled, shared), resolution)


@dataclass(frozen=True)
class _Search:
    """Looks for kinks on a line; ``coarse`` says that values are only as good as a conic solver's."""

    points: Points
    line: Line
    coarse: bool
    branches: Branches | None
    told: dict[float, float] = field(default_factory=dict)  # slopes, by place

    # --- places where there may be one ---------------------------------------------------------------------------

    def places(self, t: np.ndarray, sampled: Sampled) -> tuple[list[KinkPlace], int]:
        """(places in order, how many were dropped) between points ``t`` that have been sampled."""
        if not (sampled.reason == 0).any():
            return [], 0
        places, dropped = self._between(t, sampled)
        for grid in self._edges(t, sampled):
            more, also = self._between(grid, self.points.values(self.line.at(grid)))
            places, dropped = places + more, dropped + also
        return self.merged(places), dropped

    def merged(self, places: list[KinkPlace]) -> list[KinkPlace]:
        """Places in order, those that are one taken together."""
        return merged(places, self.separation, 1e3 * TOLERANCE * self._size)

    def torn(self, t: np.ndarray, sampled: Sampled, kinks: list[Kink], jumps: list[Jump], least: float) -> list[np.ndarray]:
        """Finer grids between neighbours, points and kinks, whose values and slopes do not join up: what lets go and holds again is there."""
        if not self.points.differentiable:
            return []
        good = sampled.reason == 0
        slope = self._slopes(t, good)
        nodes = [(place, value, s, s) for place, value, s in zip(t[good], sampled.value[good], slope[good])]
        nodes += [(kink.t, kink.value, kink.left_slope, kink.right_slope) for kink in kinks]
        nodes += [(jump.t, np.nan, np.nan, np.nan) for jump in jumps]
        at, value, before, after = np.where(np.isfinite(found := np.array(sorted(nodes)).reshape(-1, 4)), found, np.nan).T
        length, change = np.diff(at), np.abs(before[1:] - after[:-1])
        gap = np.abs(np.diff(value) - 0.5 * (before[1:] + after[:-1]) * length)
        wide = length > 10 * self.separation
        with np.errstate(invalid="ignore", divide="ignore"):
            bent, curved = (np.where(wide & np.isfinite(part), part / length**power, np.nan) for part, power in ((change, 1), (gap, 3)))
            torn = change > least * (1.0 + np.abs(after[:-1])) + OUTLIER * _usual(bent) * length
            torn |= gap > LEAST_STEP * (1.0 + np.abs(value[:-1])) + OUTLIER * _usual(curved) * length**3
        pieces = np.flatnonzero(torn & wide)[:LIMIT]
        return [np.linspace(at[k] + self.separation, at[k + 1] - self.separation, EDGE_POINTS) for k in pieces]

    @property
    def separation(self) -> float:
        """Places that are closer are taken together."""
        least = ROUGH_DISTANCES[0] if self.coarse else MERGE
        return max(least * self.line.radius, CLOSE * self._size)

    @property
    def _size(self) -> float:
        return 1.0 + float(np.max(np.abs(self.line.centre), initial=0.0))

    def _between(self, t: np.ndarray, sampled: Sampled) -> tuple[list[KinkPlace], int]:
        changes = SwitchChanges(self.points, self.line, self.branches)
        places, dropped = changes.crossings(t, sampled)
        touching, unseen = changes.touches(t, sampled)
        places, dropped = places + touching + changes.shared(t, sampled), dropped + unseen
        if not self.points.differentiable:
            return places + _outliers(self.points, self.line, t, sampled, self.coarse), dropped
        known, good = np.array([place.t for place in places]), sampled.reason == 0
        slope = self._slopes(t, good)
        told = ~(good & np.isnan(slope))  # a place at a kink has no slope: those on both sides leap
        t, slope, value = t[told], slope[told], np.where(good, sampled.value, np.nan)[told]
        leaps, also = self._leaps(t, slope, known)
        return places + leaps + self._breaks(t, value, slope, known), dropped + also

    def _slopes(self, t: np.ndarray, good: np.ndarray) -> np.ndarray:
        """f's slopes at places of the slice's own (k,), NaN where they are not told; of those that are ``good``."""
        nodes = {} if self.branches is None else self.branches.nodes
        by_place = self.told | {place: node.slope for place, node in nodes.items()}
        slope = np.array([by_place.get(place, np.nan) for place in t.tolist()])
        asked = np.array([place not in self.told for place in t.tolist()]) & good & np.isnan(slope)
        if asked.any():
            slope[asked] = self._tangents(t[asked])[1]
            self.told.update(zip(t[asked].tolist(), slope[asked].tolist()))
        return slope

    def _edges(self, t: np.ndarray, sampled: Sampled) -> list[np.ndarray]:
        """Make grids that reach from the last point with a value to the edge of a gap."""
        good = sampled.reason == 0
        cells = np.flatnonzero(good[1:] != good[:-1])[:EDGES_LIMIT]
        start, outside = np.where(good[cells], t[cells], t[cells + 1]), np.where(good[cells], t[cells + 1], t[cells])

        inside, _ = bisected(start, outside, lambda at: self.points.values(self.line.at(at)).reason == 0, BRACKET * self.line.radius)
        far = np.abs(inside - start) > MERGE * self.line.radius
        return [np.sort(np.linspace(a, b, EDGE_POINTS)) for a, b in zip(start[far], inside[far])]

    def _leaps(self, t: np.ndarray, slope: np.ndarray, known: np.ndarray) -> tuple[list[KinkPlace], int]:
        """(places, how many were too many to be looked at) in cells where the slope changes by more than beside them, and no known place explains it."""
        leap, floor, explained = _leap(slope), LEAP * (1.0 + np.abs(slope)), _cells_about(known, t)
        beside = np.stack([np.append(0.0, leap[:-1]), np.append(leap[1:], 0.0)])
        least = np.fmax(floor[1:], floor[:-1]) + OUTLIER * _usual(np.where(explained, np.nan, leap))
        cells = np.flatnonzero((leap > least) & (leap >= beside.max(axis=0)) & ~explained)
        cells = cells[np.argsort(-leap[cells])]
        dropped = max(0, len(cells) - LIMIT)
        spans = [(t[max(0, i - 1)], t[min(len(t) - 1, i + 2)], least[i]) for i in np.sort(cells[:LIMIT])]
        opaque, found = bool(self.points.switches.opaque), list[KinkPlace]()  # else every kink has a switch
        spans += self._between_known(t, known, explained & np.isfinite(least), least)[:LIMIT] if opaque else []
        while spans:  # and then what is left on either side of those that are found
            more = self._narrowed(spans)
            found, places = found + more, np.array([place.t for place in more])
            known, explained = np.append(known, places), _cells_about(places, t) & np.isfinite(least)
            spans = self._between_known(t, known, explained, least) if opaque and len(found) < LIMIT else []
        return [place for place in found if not self._is_sampling(place)], dropped

    def _narrowed(self, spans: list[tuple[float, float, float]]) -> list[KinkPlace]:
        """The place of the largest leap within each span (low, high, threshold), where it is above the threshold at every look."""
        found, without = [], []  # without slopes in most of the span: values say where it is
        while spans:
            fine = np.array([np.linspace(a, b, 7) for a, b, _ in spans])
            slopes = self._tangents(fine.ravel())[1].reshape(fine.shape)
            halves = []
            for row, values, (_, _, threshold) in zip(fine, slopes, spans):
                told = ~np.isnan(values)
                if told.sum() < FEWEST:
                    without.append((row[0], row[-1]))
                    continue
                row, sizes = row[told], _leap(values[told])
                cell = int(np.argmax(sizes))
                if sizes[cell] <= threshold:
                    continue
                if row[cell + 1] - row[cell] <= BRACKET * self.line.radius:
                    found.append(KinkPlace(0.5 * (row[cell] + row[cell + 1]), row[cell + 1] - row[cell], frozenset()))
                else:
                    halves.append((row[max(0, cell - 1)], row[min(len(row) - 1, cell + 2)], threshold))
            spans = halves
        return found + _bent_most(self.points, self.line, without, BRACKET * self.line.radius)

    def _breaks(self, t: np.ndarray, value: np.ndarray, slope: np.ndarray, known: np.ndarray) -> list[KinkPlace]:
        """Narrow down the cells over which f changes by other than its slopes say, where no known place explains it."""
        gap = _disagreement(t, value, slope)
        least = LEAST_STEP * (1.0 + np.abs(value[1:])) + OUTLIER * _usual(gap)
        explained = np.isin(np.arange(len(gap)), np.searchsorted(t, known) - 1)
        cells = np.flatnonzero((gap > least) & ~explained)[:LIMIT]
        spans, breaks = [(t[i], t[i + 1], LEAST_STEP * (1.0 + np.abs(value[i]))) for i in cells], []
        while spans:
            fine = np.array([np.linspace(a, b, 7) for a, b, _ in spans])
            values, slopes = self._tangents(fine.ravel())
            parts = []
            for row, f, df, (_, _, threshold) in zip(fine, values.reshape(fine.shape), slopes.reshape(fine.shape), spans):
                gaps = _disagreement(row, f, df)
                cell = int(np.argmax(gaps))
                if gaps[cell] > threshold:
                    parts.append((row[cell], row[cell + 1], threshold))
            width = BRACKET * self.line.radius
            breaks += [KinkPlace(0.5 * (a + b), b - a, frozenset()) for a, b, _ in parts if b - a <= width]
            spans = [part for part in parts if part[1] - part[0] > width]
        return breaks

    def _between_known(
        self, t: np.ndarray, known: np.ndarray, explained: np.ndarray, least: np.ndarray
    ) -> list[tuple[float, float, float]]:
        """List the spans (low, high, threshold) up to known places, beside which what leaps would be taken for theirs."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], explained, [0]]).astype(int)))
        spans = []
        for first, last in edges.reshape(-1, 2):
            inside = np.sort(known[(known > t[first]) & (known < t[last])])
            for low, high in pairwise([t[first], *inside, t[last]]):
                if high - low > 10 * self.separation:
                    spans.append((low + self.separation, high - self.separation, least[first:last].max()))
        return spans

    def _is_sampling(self, place: KinkPlace) -> bool:
        """Whether what changes at a leap are rows of a distribution's sample alone, counted elsewhere."""
        sampled = self.points.switches.sampled
        if not sampled.any():
            return False
        beside = np.array([-1.0, 1.0]) * (10 * place.width + self.separation) + place.t
        before, after = self.points.values(self.line.at(beside)).signature
        entries = changed(before, after)
        return bool(entries) and all(sampled[entry] for entry in entries)

    def _tangents(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate (f, its slopes) at places (k,)."""
        at = self.line.at(t)
        return self.points.slopes(at, np.broadcast_to(self.line.direction, at.shape))

    # --- what is there -------------------------------------------------------------------------------------------

    def judged(self, places: list[KinkPlace], eye: OneSided) -> tuple[list[Kink], list[Jump]]:
        """Look at the places: (kinks, jumps)."""
        at, widths = np.array([p.t for p in places]), np.array([p.width for p in places])
        apart = np.diff(at, prepend=-np.inf, append=np.inf)
        reach = 0.1 * np.minimum(apart[:-1], apart[1:])
        directions = np.broadcast_to(self.line.direction, (len(at), self.line.direction.size))
        seen = judge(eye, self.line.at(at), directions, self.line.radius, widths, reach)
        at = at + seen.shift
        at = np.where(np.abs(at) <= BRACKET * self.line.radius, 0.0, at)  # as exactly as places are known
        kinks, jumps = list[Kink](), list[Jump]()
        for i in np.flatnonzero(seen.kinks | seen.jumps):
            t = float(at[i])
            x, causes = self._x(t), self._causes(places[i], t)
            before, after = (seen.sides.slope if seen.kinks[i] else seen.sides.value)[i].tolist()
            if seen.kinks[i]:
                kinks.append(Kink(t, x, float(seen.sides.value[i].mean()), before, after, causes))
            else:
                jumps.append(Jump(t, x, before, after, causes))
        return kinks, jumps

    def _causes(self, place: KinkPlace, t: float) -> tuple[Cause, ...]:
        """Name what changes at a place, constraints first."""
        switches = self.points.switches
        entries = place.entries or (self._beside(t) if switches.entries else frozenset())
        if not entries and switches.opaque:
            return (Cause(f"inside {' or '.join(switches.opaque)}", (), "", None, False),)
        causes = dict.fromkeys(switches.place(entry) for entry in sorted(entries))
        return tuple(sorted(causes, key=lambda cause: not cause.is_constraint))

    def _beside(self, t: float) -> frozenset[int]:
        """The switches that have another sign at a place than beside it."""
        width = 10 * MERGE * self.line.radius
        before, here, after = self.points.values(self.line.at(np.array([t - width, t, t + width]))).signature
        return changed(before, after) | changed(before, here)

    def _x(self, t: float) -> Any:
        return self.points.compiled.upper.unflatten(self.line.at(t))

    def whole(self, jumps: list[Jump]) -> list[Jump]:
        """Jumps at one place, up to a tie of lower solutions in between, as one."""
        whole: list[Jump] = []
        for jump in sorted(jumps, key=lambda jump: jump.t):
            if whole and jump.t - whole[-1].t <= TIE * self.separation:
                causes = tuple(dict.fromkeys(whole[-1].causes + jump.causes))
                middle = 0.5 * (whole[-1].t + jump.t)
                jump = replace(jump, t=middle, x=self._x(middle), left=whole.pop().left, causes=causes)
            whole.append(jump)
        return whole


def _cells_about(places: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Which cells between points ``t`` (k,) hold one of these places, or are beside one that does: (k - 1,)."""
    return np.isin(np.arange(len(t) - 1), np.searchsorted(t, places) - 1 + np.array([[-1], [0], [1]]))


def _leap(slope: np.ndarray) -> np.ndarray:
    """How far the change of a slope over each cell is from the mean of its neighbours': (k - 1,) of slopes (k,)."""
    step = np.diff(slope)
    beside = np.stack([np.append(np.nan, step[:-1]), np.append(step[1:], np.nan)])
    known = np.isfinite(beside)
    mean = np.where(known, beside, 0.0).sum(axis=0) / np.maximum(1, known.sum(axis=0))
    return np.where(known.any(axis=0) & np.isfinite(step), np.abs(step - mean), 0.0)


def _disagreement(t: np.ndarray, value: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """How far the change of f over each cell is from the mean of its slopes at both ends: (k - 1,) of places (k,)."""
    gap = np.abs(np.diff(value) - 0.5 * (slope[1:] + slope[:-1]) * np.diff(t))
    return np.where(np.isfinite(gap), gap, 0.0)


def _usual(leap: np.ndarray) -> np.ndarray:
    """The median over the cells near each that are known, its own neighbours left out; 0 where there are none."""
    near = range(2, 2 + NEIGHBOURS)
    padded = np.pad(leap, NEIGHBOURS + 1, constant_values=np.nan)
    shifts = [NEIGHBOURS + 1 + sign * k for k in near for sign in (1, -1)]
    near_it = np.stack([np.full(len(leap), np.nan), *(padded[shift : shift + len(leap)] for shift in shifts)])
    near_it[0, np.isnan(near_it).all(axis=0)] = 0.0
    return np.nanmedian(near_it, axis=0)


def _outliers(points: Points, line: Line, t: np.ndarray, sampled: Sampled, coarse: bool) -> list[KinkPlace]:
    """Narrow down the cells between places ``t`` (k,), sampled, whose second difference of values sticks out; ``coarse`` values are a conic solver's."""
    value = np.where(sampled.reason == 0, sampled.value, np.nan)
    bend = np.abs(value[:-2] - 2 * value[1:-1] + value[2:])
    floor = 1e-9 * (1.0 + np.nanmax(np.abs(value), initial=0.0))
    spans = [(t[i], t[i + 2]) for i in np.flatnonzero(bend > OUTLIER * _usual(bend) + floor)]
    return _bent_most(points, line, spans, (ROUGH_DISTANCES[0] if coarse else 1e-7) * line.radius)


def _bent_most(points: Points, line: Line, spans: list[tuple[float, float]], least: float) -> list[KinkPlace]:
    """Narrow spans (low, high) down to ``least`` about where f's second difference is largest."""
    while spans and max(b - a for a, b in spans) > least:
        fine = np.array([np.linspace(a, b, 5) for a, b in spans])
        inside = points.values(line.at(fine.ravel())).value.reshape(fine.shape)
        second = np.abs(inside[:, :-2] - 2 * inside[:, 1:-1] + inside[:, 2:])
        chosen = np.argmax(np.where(np.isfinite(second), second, -1.0), axis=1)
        spans = [(row[k], row[k + 2]) for row, k in zip(fine, chosen)]
    return [KinkPlace(0.5 * (a + b), b - a, frozenset()) for a, b in spans]


def _aggregate(points: Points, t: np.ndarray, sampled: Sampled, shared: frozenset[int]) -> SampledKinks | None:
    """Count the changes of branch of a distribution's sample, but for those that many rows share."""
    blurred = points.switches.sampled[: sampled.signature.shape[1]].copy()
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
            first = distinct.pop()
            kink = replace(first, causes=tuple(dict.fromkeys(first.causes + kink.causes)))
        distinct.append(kink)
    return distinct
