"""Places on a line where the slope of f leaps, or f itself: what has no switch shows there.

Between neighbouring points the change of f' varies little where f is smooth, and leaps where it has a kink; and f changes by
other than the slopes say where it jumps. Where f has no implicit gradients, second differences of its values stick out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hierfl.inspect.implicit.points import Points, Sampled
from hierfl.inspect.kinks.kink import BRACKET, LIMIT, KinkPlace, changed
from hierfl.inspect.kinks.one_sided import LEAST_STEP, ROUGH_DISTANCES
from hierfl.inspect.window import Line

OUTLIER, NEIGHBOURS = 8.0, 8
LEAP = 3e-7  # of a slope, relative to 1 + |slope|


@dataclass(frozen=True)
class SlopeLeaps:
    """Looks for leaps between points ``t`` of a line; places closer than the separation are taken for one."""

    points: Points
    line: Line
    separation: float

    def leaps(self, t: np.ndarray, slope: np.ndarray, known: np.ndarray) -> tuple[list[KinkPlace], int]:
        """Narrow down the cells in which the slope changes by more than beside them, where no known place explains it.

        Returns the places, and how many were too many to be looked at.
        """
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
        leaps = []
        while spans:
            fine = np.array([np.linspace(a, b, 7) for a, b, _ in spans])
            slopes = self.slopes(fine.ravel()).reshape(fine.shape)
            halves = []
            for row, values, (_, _, threshold) in zip(fine, slopes, spans):
                sizes = _leap(values)
                cell = int(np.argmax(sizes))
                if sizes[cell] <= threshold:
                    continue
                if row[1] - row[0] <= BRACKET * self.line.radius:
                    leaps.append(KinkPlace(0.5 * (row[cell] + row[cell + 1]), row[1] - row[0], frozenset()))
                else:
                    halves.append((row[max(0, cell - 1)], row[min(6, cell + 2)], threshold))
            spans = halves
        return [place for place in leaps if not self._is_sampling(place)], dropped

    def breaks(self, t: np.ndarray, value: np.ndarray, slope: np.ndarray, known: np.ndarray) -> list[KinkPlace]:
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
            for row, threshold, f, df in zip(
                fine, (s[2] for s in spans), values.reshape(fine.shape), slopes.reshape(fine.shape)
            ):
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

    def slopes(self, t: np.ndarray) -> np.ndarray:
        """Evaluate the derivatives of f along the line at places (k,)."""
        return self._tangents(t)[1]

    def _tangents(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate (f, its slopes) at places (k,)."""
        at = self.line.at(t)
        return self.points.slopes(at, np.broadcast_to(self.line.direction, at.shape))


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


def outliers(points: Points, line: Line, t: np.ndarray, sampled: Sampled, coarse: bool) -> list[KinkPlace]:
    """Narrow down the cells whose second difference of values sticks out.

    Parameters
    ----------
    points, line
        What is looked at.
    t, sampled
        Places on the line (k,), and f there.
    coarse
        Whether values are only as good as a conic solver's.
    """
    value = np.where(sampled.reason == 0, sampled.value, np.nan)
    bend = np.abs(value[:-2] - 2 * value[1:-1] + value[2:])
    floor = 1e-9 * (1.0 + np.nanmax(np.abs(value), initial=0.0))
    spans = []
    for i in np.flatnonzero(np.isfinite(bend)):
        near = np.concatenate([bend[max(0, i - NEIGHBOURS) : max(0, i - 1)], bend[i + 2 : i + 2 + NEIGHBOURS]])
        usual = np.nanmedian(near) if np.isfinite(near).any() else 0.0
        if bend[i] > OUTLIER * usual + floor:
            spans.append((t[i], t[i + 2]))
    least = (ROUGH_DISTANCES[0] if coarse else 1e-7) * line.radius
    while spans and max(b - a for a, b in spans) > least:
        fine = np.array([np.linspace(a, b, 5) for a, b in spans])
        inside = points.values(line.at(fine.ravel())).value.reshape(fine.shape)
        second = np.abs(inside[:, :-2] - 2 * inside[:, 1:-1] + inside[:, 2:])
        chosen = np.argmax(np.where(np.isfinite(second), second, -1.0), axis=1)
        spans = [(row[k], row[k + 2]) for row, k in zip(fine, chosen)]
    return [KinkPlace(0.5 * (a + b), b - a, frozenset()) for a, b in spans]
