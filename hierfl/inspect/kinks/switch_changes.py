"""Places on a line where a switch changes: where it crosses zero, touches it, or many of a sample's do at once.

Switches (``hierfl.inspect.kinks.switches``) say exactly where a branch changes, and by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierfl.inspect.implicit.points import Points, Sampled
from hierfl.inspect.kinks.kink_places import BRACKET, LIMIT, KinkPlace, changed
from hierfl.inspect.kinks.switches import ROUNDING
from hierfl.inspect.line import Line

TOUCH = 1e-7  # of a switch's value, relative to that at the neighbouring points
VALUES_LIMIT = 4_000_000
SHARE = 0.02  # of a distribution's sample: as many rows that change branch at one place are no accident


@dataclass(frozen=True)
class SwitchChanges:
    """Looks for places at which switches change, between points ``t`` of a line that have been sampled."""

    points: Points
    line: Line

    def crossings(self, t: np.ndarray, sampled: Sampled) -> tuple[list[KinkPlace], int]:
        """Bisect the cells in which a switch changes sign, all at once, a distribution's sample left out.

        Returns the places, and how many were too many to be looked at.
        """
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
                    closed.append(KinkPlace(m, b - a, changed(left, right, names)))
                    continue
                halves += [(p, q, s, e) for p, q, s, e in ((a, m, left, here), (m, b, here, right)) if (s != e).any()]
            open_ = []
            dropped += max(0, len(halves) - LIMIT)
            for a, b, left, right in halves[:LIMIT]:
                if b - a <= width:
                    closed.append(KinkPlace(0.5 * (a + b), max(b - a, blur), changed(left, right, names)))
                else:
                    open_.append((a, b, left, right))
        return closed, dropped

    def touches(self, t: np.ndarray, sampled: Sampled) -> list[KinkPlace]:
        """Find where a switch that has one sign at neighbouring points comes to zero between them."""
        names = np.flatnonzero(~self.points.switches.sampled)
        if len(t) < 3 or not names.size or len(t) * self.points.switches.entries > VALUES_LIMIT:
            return []
        value = self._denoised(self.points.switches_of(self.line.at(t), sampled))[:, names]
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

    def shared(self, t: np.ndarray, sampled: Sampled) -> list[KinkPlace]:
        """Find where many rows of a distribution's sample change branch at one place: a kink of the expectation."""
        names = np.flatnonzero(self.points.switches.sampled)
        names = names[: sampled.signature.shape[1]]
        if not names.size:
            return []
        signature, good = sampled.signature[:, names], sampled.reason == 0
        least = max(8, int(SHARE * names.size))
        changes = (np.diff(signature, axis=0) != 0) & (good[1:] & good[:-1])[:, None]
        cells = np.flatnonzero(changes.sum(axis=1) >= least)
        spans, shared = [(t[i], t[i + 1], signature[i], signature[i + 1]) for i in cells], []
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
            shared += [KinkPlace(0.5 * (a + b), b - a, changed(s, e, names)) for a, b, s, e in halves if b - a <= width]
            spans = [half for half in halves if half[1] - half[0] > width]
        return shared

    def _narrowed(self, spans: list[tuple[float, float, int, float, float]], names: np.ndarray) -> list[KinkPlace]:
        """Narrow spans (low, high, switch, its sign, its size at the ends) down to where the switch is least."""
        touching, crossings, width = [], [], BRACKET * self.line.radius
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
                    touching.append(
                        KinkPlace(float(row[least]), float(row[-1] - row[0]), frozenset({int(names[entry])}))
                    )
            spans = open_
        return touching + self._zeros(crossings[:LIMIT])

    def _zeros(self, brackets: list[tuple[float, float, int]]) -> list[KinkPlace]:
        """Bisect to where single switches change sign, each within (low, high)."""
        if not brackets:
            return []
        low, high = (np.array([bracket[k] for bracket in brackets]) for k in (0, 1))
        which, each = np.array([entry for _, _, entry in brackets]), np.arange(len(brackets))
        left = self._switch_values(low)[each, which] > 0
        while np.max(high - low) > BRACKET * self.line.radius:
            middle = 0.5 * (low + high)
            same = (self._switch_values(middle)[each, which] > 0) == left
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return [KinkPlace(0.5 * (a + b), b - a, frozenset({int(e)})) for a, b, e in zip(low, high, which)]

    def _switch_values(self, t: np.ndarray) -> np.ndarray:
        """Evaluate the switches at places (k,), rounding errors around zero taken for zero: (k, switches)."""
        return self._denoised(self.points.switch_values(self.line.at(t)))

    def _denoised(self, value: np.ndarray) -> np.ndarray:
        size = np.abs(value)
        noise = self.points.switches.tolerance * (1.0 + size) + ROUNDING * np.max(
            size, axis=1, keepdims=True, initial=0.0
        )
        return np.where(size <= noise, 0.0, value)
