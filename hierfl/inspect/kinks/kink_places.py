"""Places on a line where f may have a kink: where a switch changes sign or touches zero, and where the slope or f leaps.

Switches (``hierfl.inspect.kinks.switches``) say exactly where a branch changes, and by name. What has no switch shows in the
slopes: between neighbouring points the change of f' varies little where f is smooth, and leaps where it has a kink; and f
changes by other than the slopes say where it jumps. Where f has no implicit gradients, second differences of its values take
their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hierfl.inspect.implicit.points import Points, Sampled
from hierfl.inspect.kinks.kink import Line
from hierfl.inspect.kinks.one_sided import HOST_DISTANCES, LEAST_STEP
from hierfl.inspect.kinks.switches import ROUNDING

BRACKET = 1e-9  # widths and distances are in units of the window's radius
MERGE = 1e-6
CLOSE = 1e-10  # of x
LIMIT = 4000  # places looked at side by side
OUTLIER, NEIGHBOURS = 8.0, 8
LEAP = 3e-7  # of a slope, relative to 1 + |slope|
TOUCH = 1e-7  # of a switch's value, relative to that at the neighbouring points
EACH_PLACE = 16  # points at which each place is looked at from either side
VALUES_LIMIT = 4_000_000
EDGE_POINTS, EDGES_LIMIT = 9, 64
SHARE = 0.02  # of a distribution's sample: as many rows that change branch at one place are no accident


class Place(NamedTuple):
    """A place where f may have a kink, to within ``width``, and the switches that change there."""

    t: float
    width: float
    entries: frozenset[int]


def effort(t: np.ndarray, sampled: Sampled) -> int:
    """About how many points a search for kinks looks at, for a progress bar."""
    changes = min(LIMIT, int(np.sum(np.diff(sampled.signature, axis=0) != 0)))
    halvings = int(np.ceil(np.log2(2 / (len(t) * BRACKET))))
    return len(t) + changes * (halvings + EACH_PLACE)


@dataclass(frozen=True)
class Places:
    """Looks for places on a line."""

    points: Points
    line: Line
    coarse: bool = False  # whether values are only as good as a conic solver's

    def on(self, t: np.ndarray, sampled: Sampled) -> tuple[list[Place], int]:
        """(places in order, how many were dropped) between points ``t`` that have been sampled."""
        if not (sampled.reason == 0).any():
            return [], 0
        found, dropped = self._between(t, sampled)
        for grid in self._edges(t, sampled):
            more, also = self._between(grid, self.points.values(self.line.at(grid)))
            found, dropped = found + more, dropped + also
        return self._merged(found), dropped

    def _between(self, t: np.ndarray, sampled: Sampled) -> tuple[list[Place], int]:
        found, dropped = self._crossings(t, sampled)
        found += self._touches(t, sampled) + self._shared_kinks(t, sampled)
        if not self.points.differentiable:
            return found + self._outliers(t, sampled), dropped
        known, good = np.array([place.t for place in found]), sampled.reason == 0
        slope = np.full(len(t), np.nan)
        slope[good] = self._slopes(t[good])
        more, also = self._leaps(t, slope, known)
        return found + more + self._breaks(t, np.where(good, sampled.value, np.nan), slope, known), dropped + also

    def _edges(self, t: np.ndarray, sampled: Sampled) -> list[np.ndarray]:
        """Grids that reach from the last point with a value to the edge of a gap."""
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

    # --- by switches ---------------------------------------------------------------------------------------------

    def _crossings(self, t: np.ndarray, sampled: Sampled) -> tuple[list[Place], int]:
        """Bisect the cells in which a switch changes sign, all at once, a distribution's sample left out."""
        names = np.flatnonzero(~self.points.switches.sampled)
        names = names[: sampled.signature.shape[1]]  # none where the signatures were too long to be kept
        signature, good = sampled.signature[:, names], sampled.reason == 0
        changing = (np.diff(signature, axis=0) != 0).any(axis=1) & good[1:] & good[:-1]
        open_: list[tuple[float, float, np.ndarray, np.ndarray]] = [
            (t[i], t[i + 1], signature[i], signature[i + 1]) for i in np.flatnonzero(changing)
        ]
        width, closed, dropped = BRACKET * self.line.radius, [], 0
        blur = ROUNDING * float(np.nanmax(np.abs(sampled.answers), initial=0.0))  # within which a switch counts as zero
        while open_:
            middle = np.array([0.5 * (a + b) for a, b, _, _ in open_])
            between = self.points.values(self.line.at(middle))
            halves = []
            for (a, b, left, right), m, here, reason in zip(open_, middle, between.signature[:, names], between.reason):
                if reason != 0:  # as close as f can be had
                    closed.append(Place(m, b - a, changed(left, right, names)))
                    continue
                halves += [(p, q, s, e) for p, q, s, e in ((a, m, left, here), (m, b, here, right)) if (s != e).any()]
            open_ = []
            dropped += max(0, len(halves) - LIMIT)
            for a, b, left, right in halves[:LIMIT]:
                if b - a <= width:
                    closed.append(Place(0.5 * (a + b), max(b - a, blur), changed(left, right, names)))
                else:
                    open_.append((a, b, left, right))
        return closed, dropped

    def _touches(self, t: np.ndarray, sampled: Sampled) -> list[Place]:
        """Where a switch that has one sign at neighbouring points comes to zero between them."""
        names = np.flatnonzero(~self.points.switches.sampled)
        if len(t) < 3 or not names.size or len(t) * self.points.switches.entries > VALUES_LIMIT:
            return []
        value = self._switch_values(t)[:, names]
        sign, margin = np.sign(value[1:-1]), np.full((1, len(names)), np.nan)
        before, size, after = sign * value[:-2], sign * value[1:-1], sign * value[2:]
        two_before, two_after = sign * np.vstack([margin, value[:-3]]), sign * np.vstack([value[3:], margin])
        with np.errstate(all="ignore"):
            bottom = size - (after - before) ** 2 / (8 * (before - 2 * size + after))  # of a parabola
            tip = np.fmin(2 * before - two_before, 2 * after - two_after)  # of two lines that meet
            near = (size > 0) & (size <= before) & (size <= after) & (before + after > 2 * size)
            near &= np.fmin(bottom, tip) <= 0.05 * np.maximum(before, after)
        spans = [(t[i], t[i + 2], e, sign[i, e], max(before[i, e], after[i, e])) for i, e in np.argwhere(near)[:LIMIT]]
        return self._narrowed(spans, names)

    def _narrowed(self, spans: list[tuple[float, float, int, float, float]], names: np.ndarray) -> list[Place]:
        """Narrow spans (low, high, switch, its sign, its size at the ends) down to where the switch is least."""
        found, crossings, width = [], [], BRACKET * self.line.radius
        while spans:
            fine = np.array([np.linspace(a, b, 9) for a, b, *_ in spans])
            value = self._switch_values(fine.ravel())[:, names].reshape(*fine.shape, -1)
            open_ = []
            for row, values, (_, _, entry, sign, scale) in zip(fine, value, spans):
                size = sign * values[:, entry]
                least = int(np.nanargmin(size)) if np.isfinite(size).any() else 0
                crossing = np.flatnonzero((size[1:] > 0) != (size[:-1] > 0))
                if crossing.size:
                    crossings += [(row[c], row[c + 1], int(names[entry])) for c in crossing]
                elif row[-1] - row[0] > width:
                    open_.append((row[max(0, least - 1)], row[min(8, least + 1)], entry, sign, scale))
                elif size[least] <= TOUCH * scale:
                    found.append(Place(float(row[least]), float(row[-1] - row[0]), frozenset({int(names[entry])})))
            spans = open_
        return found + self._zeros(crossings[:LIMIT])

    def _zeros(self, brackets: list[tuple[float, float, int]]) -> list[Place]:
        """Where single switches change sign, each within (low, high)."""
        if not brackets:
            return []
        low, high = (np.array([bracket[k] for bracket in brackets]) for k in (0, 1))
        which, each = np.array([entry for _, _, entry in brackets]), np.arange(len(brackets))
        left = self._switch_values(low)[each, which] > 0
        while np.max(high - low) > BRACKET * self.line.radius:
            middle = 0.5 * (low + high)
            same = (self._switch_values(middle)[each, which] > 0) == left
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return [Place(0.5 * (a + b), b - a, frozenset({int(e)})) for a, b, e in zip(low, high, which)]

    def _switch_values(self, t: np.ndarray) -> np.ndarray:
        """The switches' values at places (k,), rounding errors around zero taken for zero: (k, switches)."""
        value = self.points.switch_values(self.line.at(t))
        size = np.abs(value)
        noise = self.points.switches.tolerance * (1.0 + size) + ROUNDING * np.max(
            size, axis=1, keepdims=True, initial=0.0
        )
        return np.where(size <= noise, 0.0, value)

    def _shared_kinks(self, t: np.ndarray, sampled: Sampled) -> list[Place]:
        """Where many rows of a distribution's sample change branch at one place: a kink of the expectation."""
        names = np.flatnonzero(self.points.switches.sampled)
        names = names[: sampled.signature.shape[1]]
        if not names.size:
            return []
        signature, good = sampled.signature[:, names], sampled.reason == 0
        least = max(8, int(SHARE * names.size))
        changes = (np.diff(signature, axis=0) != 0) & (good[1:] & good[:-1])[:, None]
        cells = np.flatnonzero(changes.sum(axis=1) >= least)
        spans, found = [(t[i], t[i + 1], signature[i], signature[i + 1]) for i in cells], []
        while spans:
            middle = np.array([0.5 * (a + b) for a, b, _, _ in spans])
            between = self.points.values(self.line.at(middle)).signature[:, names]
            halves = []
            for (a, b, left, right), m, here in zip(spans, middle, between):
                first = np.sum(left != here) >= np.sum(here != right)
                half = (a, m, left, here) if first else (m, b, here, right)
                if np.sum(half[2] != half[3]) >= least:
                    halves.append(half)
            width = BRACKET * self.line.radius
            found += [Place(0.5 * (a + b), b - a, changed(s, e, names)) for a, b, s, e in halves if b - a <= width]
            spans = [half for half in halves if half[1] - half[0] > width]
        return found

    # --- by slopes, and by values --------------------------------------------------------------------------------

    def _leaps(self, t: np.ndarray, slope: np.ndarray, known: np.ndarray) -> tuple[list[Place], int]:
        """Narrow down the cells in which the slope changes by more than beside them, where no known place explains it."""
        leap, floor = _leap(slope), LEAP * (1.0 + np.abs(slope))
        least = np.fmax(floor[1:], floor[:-1]) + OUTLIER * _usual(leap)
        beside = np.stack([np.append(0.0, leap[:-1]), np.append(leap[1:], 0.0)])
        explained = np.isin(np.arange(len(leap)), np.searchsorted(t, known) - 1 + np.array([[-1], [0], [1]]))
        cells = np.flatnonzero((leap > least) & (leap >= beside.max(axis=0)) & ~explained)
        cells = cells[np.argsort(-leap[cells])]
        dropped = max(0, len(cells) - LIMIT)
        spans = [(t[max(0, i - 1)], t[min(len(t) - 1, i + 2)], least[i]) for i in np.sort(cells[:LIMIT])]
        if self.points.switches.opaque:  # else every kink has a switch
            spans += self._between_known(t, known, explained & np.isfinite(least), least)[:LIMIT]
        found = []
        while spans:
            fine = np.array([np.linspace(a, b, 7) for a, b, _ in spans])
            slopes = self._slopes(fine.ravel()).reshape(fine.shape)
            halves = []
            for row, values, (_, _, threshold) in zip(fine, slopes, spans):
                leaps = _leap(values)
                cell = int(np.argmax(leaps))
                if leaps[cell] <= threshold:
                    continue
                if row[1] - row[0] <= BRACKET * self.line.radius:
                    found.append(Place(0.5 * (row[cell] + row[cell + 1]), row[1] - row[0], frozenset()))
                else:
                    halves.append((row[max(0, cell - 1)], row[min(6, cell + 2)], threshold))
            spans = halves
        return [place for place in found if not self._is_sampling(place)], dropped

    def _between_known(
        self, t: np.ndarray, known: np.ndarray, explained: np.ndarray, least: np.ndarray
    ) -> list[tuple[float, float, float]]:
        """Spans (low, high, threshold) up to known places, beside which what leaps would be taken for theirs."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], explained, [0]]).astype(int)))
        found = []
        for first, last in edges.reshape(-1, 2):
            inside = np.sort(known[(known > t[first]) & (known < t[last])])
            for low, high in pairwise([t[first], *inside, t[last]]):
                if high - low > 10 * self.separation:
                    found.append((low + self.separation, high - self.separation, least[first:last].max()))
        return found

    def _breaks(self, t: np.ndarray, value: np.ndarray, slope: np.ndarray, known: np.ndarray) -> list[Place]:
        """Narrow down the cells over which f changes by other than its slopes say, where no known place explains it."""
        gap = _disagreement(t, value, slope)
        least = LEAST_STEP * (1.0 + np.abs(value[1:])) + OUTLIER * _usual(gap)
        explained = np.isin(np.arange(len(gap)), np.searchsorted(t, known) - 1)
        cells = np.flatnonzero((gap > least) & ~explained)[:LIMIT]
        spans, found = [(t[i], t[i + 1], LEAST_STEP * (1.0 + np.abs(value[i]))) for i in cells], []
        while spans:
            fine = np.array([np.linspace(a, b, 7) for a, b, _ in spans])
            values, slopes = self._tangents(fine.ravel())
            parts = []
            for row, threshold, f, df in zip(
                fine, (s[2] for s in spans), values.reshape(fine.shape), slopes.reshape(fine.shape)
            ):
                gaps = _disagreement(row, f, df)
                cell = int(np.argmax(gaps))
                if gaps[cell] > threshold:
                    parts.append((row[cell], row[cell + 1], threshold))
            width = BRACKET * self.line.radius
            found += [Place(0.5 * (a + b), b - a, frozenset()) for a, b, _ in parts if b - a <= width]
            spans = [part for part in parts if part[1] - part[0] > width]
        return found

    def _is_sampling(self, place: Place) -> bool:
        """Whether what changes at a leap are rows of a distribution's sample alone, counted elsewhere."""
        sampled = self.points.switches.sampled
        if not sampled.any():
            return False
        beside = np.array([-1.0, 1.0]) * (10 * place.width + self.separation) + place.t
        before, after = self.points.values(self.line.at(beside)).signature
        entries = changed(before, after)
        return bool(entries) and all(sampled[entry] for entry in entries)

    def _slopes(self, t: np.ndarray) -> np.ndarray:
        return self._tangents(t)[1]

    def _tangents(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(f, slopes) at places (k,)."""
        at = self.line.at(t)
        return self.points.slopes(at, np.broadcast_to(self.line.direction, at.shape))

    def _outliers(self, t: np.ndarray, sampled: Sampled) -> list[Place]:
        """Narrow down the cells whose second difference of values sticks out."""
        value = np.where(sampled.reason == 0, sampled.value, np.nan)
        bend = np.abs(value[:-2] - 2 * value[1:-1] + value[2:])
        floor = 1e-9 * (1.0 + np.nanmax(np.abs(value), initial=0.0))
        spans = []
        for i in np.flatnonzero(np.isfinite(bend)):
            near = np.concatenate([bend[max(0, i - NEIGHBOURS) : max(0, i - 1)], bend[i + 2 : i + 2 + NEIGHBOURS]])
            usual = np.nanmedian(near) if np.isfinite(near).any() else 0.0
            if bend[i] > OUTLIER * usual + floor:
                spans.append((t[i], t[i + 2]))
        least = (HOST_DISTANCES[0] if self.coarse else 1e-7) * self.line.radius
        while spans and max(b - a for a, b in spans) > least:
            fine = np.array([np.linspace(a, b, 5) for a, b in spans])
            inside = self.points.values(self.line.at(fine.ravel())).value.reshape(fine.shape)
            second = np.abs(inside[:, :-2] - 2 * inside[:, 1:-1] + inside[:, 2:])
            chosen = np.argmax(np.where(np.isfinite(second), second, -1.0), axis=1)
            spans = [(row[k], row[k + 2]) for row, k in zip(fine, chosen)]
        return [Place(0.5 * (a + b), b - a, frozenset()) for a, b in spans]

    # --- together ------------------------------------------------------------------------------------------------

    @property
    def separation(self) -> float:
        """Closer places are taken together."""
        least = HOST_DISTANCES[0] if self.coarse else MERGE
        return max(least * self.line.radius, CLOSE * (1.0 + float(np.max(np.abs(self.line.centre), initial=0.0))))

    def _merged(self, found: list[Place]) -> list[Place]:
        """In order; those closer than the separation, or at both ends of one switch's zero, taken together."""
        merged: list[Place] = []
        for one in sorted(found):
            if merged and one.t - merged[-1].t <= self._reach(merged[-1], one):
                merged[-1] = _joined(merged[-1], one)
            else:
                merged.append(one)
        return merged

    def _reach(self, last: Place, one: Place) -> float:
        """A switch counts as zero within a tolerance: the two ends of that stretch are one place."""
        zero = 1e3 * self.points.switches.tolerance * (1.0 + float(np.max(np.abs(self.line.centre), initial=0.0)))
        return max(self.separation, zero) if last.entries & one.entries else self.separation


def _joined(last: Place, one: Place) -> Place:
    """One place: half-way between both ends of one switch's zero; else where the slope leaps, or the sharper of the two."""
    entries = last.entries | one.entries
    if last.entries & one.entries:
        return Place(0.5 * (last.t + one.t), max(last.width, one.width, one.t - last.t), entries)
    sharper = min(last, one, key=lambda place: (len(place.entries) > 0, place.width))
    return Place(sharper.t, sharper.width, entries)


def changed(left: np.ndarray, right: np.ndarray, names: np.ndarray | None = None) -> frozenset[int]:
    """The switches that differ between two signatures."""
    places = np.flatnonzero(left != right)
    return frozenset((places if names is None else names[places]).tolist())


def _leap(slope: np.ndarray) -> np.ndarray:
    """How far the change of a slope over each cell is from the mean of its neighbours': (k - 1,) of slopes (k,)."""
    step = np.diff(slope)
    beside = np.stack([np.append(np.nan, step[:-1]), np.append(step[1:], np.nan)])
    known = np.isfinite(beside)
    mean = np.where(known, beside, 0.0).sum(axis=0) / np.maximum(1, known.sum(axis=0))
    leap = np.where(known.any(axis=0), np.abs(step - mean), np.nan)
    return np.where(np.isfinite(leap), leap, 0.0)


def _disagreement(t: np.ndarray, value: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """How far the change of f over each cell is from the mean of its slopes at both ends: (k - 1,) of places (k,)."""
    gap = np.abs(np.diff(value) - 0.5 * (slope[1:] + slope[:-1]) * np.diff(t))
    return np.where(np.isfinite(gap), gap, 0.0)


def _usual(leap: np.ndarray) -> np.ndarray:
    """The third quartile over the cells near each, its own neighbours left out."""
    near = range(2, 2 + NEIGHBOURS)
    shifted = [np.concatenate([np.full(k, np.nan), leap[:-k]]) for k in near if k < len(leap)]
    shifted += [np.concatenate([leap[k:], np.full(k, np.nan)]) for k in near if k < len(leap)]
    return np.nanpercentile(np.stack(shifted), 75, axis=0) if shifted else np.zeros_like(leap)
