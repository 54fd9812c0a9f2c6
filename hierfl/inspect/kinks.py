"""Kinks and jumps of f along a line: found where a switch changes, confirmed by one-sided slopes.

A cell of the grid in which a switch (``hierfl.inspect.switches``) changes is bisected; so is one whose second difference
sticks out, for what has no switch. Each place found is then judged by the slopes on either side at two distances: a kink's
jump stays as one comes closer, that of a steep but smooth piece shrinks. Where implicit gradients exist the slopes are exact
derivatives, else one-sided differences of exact values. The place itself is where the two sides' parabolas meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hierfl.inspect.one_sided import HOST_DISTANCE, OneSided, Sides
from hierfl.inspect.points import Points, Sampled
from hierfl.inspect.switches import Cause

BRACKET = 1e-9  # widths and distances are in units of the window's radius
MERGE = 1e-6
BRACKET_LIMIT = 4000
OUTLIER, NEIGHBOURS = 8.0, 8


@dataclass(frozen=True)
class Kink:
    """f has two slopes at ``t``: ``left_slope`` before it and ``right_slope`` after, along the line.

    ``causes`` are the constraints and atoms that change there; empty where nothing that hierfl can see into does.
    """

    t: float
    x: Any
    value: float
    left_slope: float
    right_slope: float
    causes: tuple[Cause, ...]

    @property
    def convex(self) -> bool:
        """Whether f bends up."""
        return self.right_slope > self.left_slope

    @property
    def cause(self) -> str:
        """The first cause in words, and how many more."""
        return _in_words(self.causes)

    def __str__(self) -> str:
        bend = "up" if self.convex else "down"
        return f"t = {round(self.t, 9) + 0.0:.6g}: slope {self.left_slope:.6g} to {self.right_slope:.6g}, bends {bend}; {self.cause}"


@dataclass(frozen=True)
class Jump:
    """f itself jumps at ``t``, from ``left`` to ``right``: y(x) is not continuous there."""

    t: float
    x: Any
    left: float
    right: float
    causes: tuple[Cause, ...]

    @property
    def cause(self) -> str:
        """The first cause in words, and how many more."""
        return _in_words(self.causes)

    def __str__(self) -> str:
        return f"t = {round(self.t, 9) + 0.0:.6g}: f jumps from {self.left:.6g} to {self.right:.6g}; {self.cause}"


@dataclass(frozen=True)
class SampledKinks:
    """Rows of a distribution's quasi-random sample change branch along the line: tiny kinks of the sample's mean.

    The expectation itself may have none of them, so they are counted and not looked at one by one.
    """

    count: int
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.count} changes of branch of a distribution's quasi-random sample, for t in [{self.low:.4g}, {self.high:.4g}]: "
            f"tiny kinks that the expectation smooths as the sample grows"
        )


class Resolution(NamedTuple):
    """What could be told apart: least slope jump (relative to 1 + |slope|), least separation in t, and what is opaque.

    ``dropped`` is how many places where a switch changes were too many to be looked at.
    """

    slope_jump: float
    separation: float
    opaque: tuple[str, ...]
    dropped: int = 0

    def __str__(self) -> str:
        text = f"slope jumps above {self.slope_jump:.0e} (1 + |slope|), {self.separation:.1e} apart or more"
        if self.opaque:
            text += f"; inside {', '.join(self.opaque)} only what stands out on the window's grid"
        if self.dropped:
            text += f"; at least {self.dropped} further changes of branch were not looked at: take a smaller window"
        return text


class Kinks(Sequence[Kink]):
    """The kinks of a slice in order, with its jumps, and what was aggregated or could not be resolved."""

    def __init__(
        self, kinks: Sequence[Kink], jumps: Sequence[Jump], sampled: SampledKinks | None, resolution: Resolution
    ) -> None:
        self._kinks = tuple(kinks)
        self.jumps, self.sampled, self.resolution = tuple(jumps), sampled, resolution

    def __len__(self) -> int:
        return len(self._kinks)

    def __getitem__(self, place: Any) -> Any:
        return self._kinks[place]

    def __str__(self) -> str:
        lines = [*map(str, self._kinks), *map(str, self.jumps)] or ["no kinks"]
        if self.sampled is not None:
            lines.append(str(self.sampled))
        return "\n".join([*lines, f"resolved: {self.resolution}"])

    __repr__ = __str__


class Line(NamedTuple):
    """x(t) = centre + t direction, t in [-radius, radius]."""

    centre: np.ndarray
    direction: np.ndarray
    radius: float

    def at(self, t: Any) -> np.ndarray:
        """Points ``(k, n)``."""
        return np.asarray(self.centre + np.asarray(t)[..., None] * self.direction)


class _Candidate(NamedTuple):
    """A place where f may have a kink, to within ``width``, and the switches that change there."""

    t: float
    width: float
    entries: frozenset[int]


@dataclass(frozen=True)
class KinkSearch:
    """Looks for kinks on a line."""

    points: Points
    line: Line

    def find(self, t: np.ndarray, sampled: Sampled) -> Kinks:
        """All kinks and jumps in the window whose grid ``t`` has been sampled."""
        good = sampled.reason == 0
        changes = (np.diff(sampled.signature, axis=0) != 0) & (good[1:] & good[:-1])[:, None]
        blurred = changes & self.points.switches.sampled if changes.size else changes
        sharp = (changes & ~blurred).any(axis=1)
        found, dropped = self._by_switches(t, sampled, sharp)
        explained = blurred.any(axis=1) | sharp
        found += self._by_outliers(t, sampled, explained)
        candidates = self._merged(found)
        switches, radius = self.points.switches, self.line.radius
        unseen = (
            (f"{switches.entries:,} atoms and constraints",) if switches.entries > sampled.signature.shape[1] else ()
        )
        opaque = (*switches.opaque, *unseen)
        spacing = float(t[1] - t[0])
        resolution = Resolution(self._eye.least_jump, MERGE * radius if not opaque else spacing, opaque, dropped)
        if not candidates:
            return Kinks((), (), _aggregate(t, blurred), resolution)
        kinks, jumps = self._judged(candidates)
        return Kinks(kinks, jumps, _aggregate(t, blurred), resolution)

    # --- where to look -------------------------------------------------------------------------------------------

    def _by_switches(self, t: np.ndarray, sampled: Sampled, sharp: np.ndarray) -> tuple[list[_Candidate], int]:
        """Bisect the cells in which a switch changes, all at once, leaving out a distribution's sample; and how many were dropped."""
        names = np.flatnonzero(~self.points.switches.sampled)
        names = names[: sampled.signature.shape[1]]  # none where the signatures were too long to be kept
        signature = sampled.signature[:, names]
        open_: list[tuple[float, float, np.ndarray, np.ndarray]] = [
            (t[i], t[i + 1], signature[i], signature[i + 1]) for i in np.flatnonzero(sharp)
        ]
        width = BRACKET * self.line.radius
        closed: list[_Candidate] = []
        dropped = 0
        while open_:
            middle = np.array([0.5 * (a + b) for a, b, _, _ in open_])
            between = self.points.values(self.line.at(middle))
            halves = []
            for (a, b, left, right), m, here, reason in zip(open_, middle, between.signature[:, names], between.reason):
                if reason != 0:  # as close as f can be had
                    closed.append(_Candidate(m, b - a, _changed(left, right, names)))
                    continue
                halves += [(p, q, s, e) for p, q, s, e in ((a, m, left, here), (m, b, here, right)) if (s != e).any()]
            open_ = []
            dropped += max(0, len(halves) - BRACKET_LIMIT)
            for a, b, left, right in halves[:BRACKET_LIMIT]:
                if b - a <= width:
                    closed.append(_Candidate(0.5 * (a + b), b - a, _changed(left, right, names)))
                else:
                    open_.append((a, b, left, right))
        return closed, dropped

    def _by_outliers(self, t: np.ndarray, sampled: Sampled, explained: np.ndarray) -> list[_Candidate]:
        """Narrow down the cells whose second difference sticks out and in which no switch changes."""
        value = np.where(sampled.reason == 0, sampled.value, np.nan)
        bend = np.abs(value[:-2] - 2 * value[1:-1] + value[2:])
        floor = 1e-9 * (1.0 + np.nanmax(np.abs(value), initial=0.0))
        spans = []
        for i in np.flatnonzero(np.isfinite(bend)):
            near = np.concatenate([bend[max(0, i - NEIGHBOURS) : max(0, i - 1)], bend[i + 2 : i + 2 + NEIGHBOURS]])
            usual = np.nanmedian(near) if np.isfinite(near).any() else 0.0
            if bend[i] > OUTLIER * usual + floor and not explained[i : i + 2].any():
                spans.append((t[i], t[i + 2]))
        least = (HOST_DISTANCE if self.points.on_host else 1e-7) * self.line.radius
        while spans and max(b - a for a, b in spans) > least:
            fine = np.array([np.linspace(a, b, 5) for a, b in spans])
            inside = self.points.values(self.line.at(fine.ravel())).value.reshape(fine.shape)
            second = np.abs(inside[:, :-2] - 2 * inside[:, 1:-1] + inside[:, 2:])
            chosen = np.argmax(np.where(np.isfinite(second), second, -1.0), axis=1)
            spans = [(row[k], row[k + 2]) for row, k in zip(fine, chosen)]
        return [_Candidate(0.5 * (a + b), b - a, frozenset()) for a, b in spans]

    def _merged(self, found: list[_Candidate]) -> list[_Candidate]:
        """Candidates in order, those closer than the resolution taken together."""
        merged: list[_Candidate] = []
        for one in sorted(found):
            if merged and one.t - merged[-1].t <= MERGE * self.line.radius:
                last = merged[-1]
                merged[-1] = _Candidate(last.t, max(last.width, one.width), last.entries | one.entries)
            else:
                merged.append(one)
        return merged

    # --- what is there -------------------------------------------------------------------------------------------

    def _judged(self, candidates: list[_Candidate]) -> tuple[list[Kink], list[Jump]]:
        """What is at the candidates: first found more exactly from afar, then looked at from nearby."""
        places = np.array([c.t for c in candidates])
        widths = np.array([c.width for c in candidates])
        gaps = np.diff(places, prepend=-np.inf, append=np.inf)
        distance = np.minimum(self._eye.distance * self.line.radius, 0.1 * np.minimum(gaps[:-1], gaps[1:]))
        far = self._look(places, np.maximum(distance, 2 * widths))
        places = places + far.crossing(distance)
        near = self._look(places, np.maximum(self._eye.closer * distance, widths))
        steps = near.steps(distance)
        bends = near.bends(far, self._eye.least_jump) & ~steps
        places = places + np.where(bends, near.crossing(distance), 0.0)
        jumps, kinks = [], []
        for i in np.flatnonzero(steps):
            left, right = near.value[i].tolist()
            jumps.append(
                Jump(float(places[i]), self._x(places[i]), left, right, self._causes(candidates[i], places[i]))
            )
        for i in np.flatnonzero(bends):
            value, (before, after) = float(near.value[i].mean()), near.slope[i].tolist()
            causes = self._causes(candidates[i], places[i])
            kinks.append(Kink(float(places[i]), self._x(places[i]), value, before, after, causes))
        return kinks, jumps

    def _causes(self, candidate: _Candidate, place: float) -> tuple[Cause, ...]:
        """What changes at a place, constraints first."""
        switches = self.points.switches
        entries = candidate.entries or (self._beside(place) if switches.entries else frozenset())
        found = dict.fromkeys(switches.place(entry) for entry in sorted(entries))
        return tuple(sorted(found, key=lambda cause: not cause.is_constraint))

    def _beside(self, place: float) -> frozenset[int]:
        """The switches that have another sign at a place than beside it."""
        width = 10 * MERGE * self.line.radius
        at = self.line.at(np.array([place - width, place, place + width]))
        before, here, after = self.points.values(at).signature
        return _changed(before, after) | _changed(before, here)

    @property
    def _eye(self) -> OneSided:
        return OneSided(self.points)

    def _look(self, places: np.ndarray, distance: np.ndarray) -> Sides:
        directions = np.broadcast_to(self.line.direction, (len(places), self.line.direction.size))
        return self._eye.look(self.line.at(places), directions, distance)

    def _x(self, t: float) -> Any:
        return self.points.compiled.upper.unflatten(self.line.at(t))


def _changed(left: np.ndarray, right: np.ndarray, names: np.ndarray | None = None) -> frozenset[int]:
    places = np.flatnonzero(left != right)
    return frozenset((places if names is None else names[places]).tolist())


def _aggregate(t: np.ndarray, blurred: np.ndarray) -> SampledKinks | None:
    cells = np.flatnonzero(blurred.any(axis=1))
    if not cells.size:
        return None
    return SampledKinks(int(np.sum(blurred)), float(t[cells[0]]), float(t[cells[-1] + 1]))


def _in_words(causes: tuple[Cause, ...]) -> str:
    if not causes:
        return "no constraint or atom in sight changes"
    more = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
    return f"{causes[0]}{more}"
