"""What is at the places of ``kink_places``: a kink, a jump, or a smooth piece that only bends steeply.

f is looked at from either side, from ever closer: a kink's jump of the slope stays, that of a steep but smooth piece shrinks.
Where implicit gradients exist the slopes are exact derivatives, else one-sided differences of exact values; the place itself
is then where the two sides' parabolas meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hierfl.inspect.kink_places import MERGE, Place, Places, changed
from hierfl.inspect.kinks import Jump, Kink, Kinks, Line, Resolution, SampledKinks
from hierfl.inspect.one_sided import OneSided, Sides
from hierfl.inspect.points import Points, Sampled
from hierfl.inspect.switches import Cause

ROUNDING = 4e-12  # of x: no step is shorter


@dataclass(frozen=True)
class KinkSearch:
    """Looks for kinks on a line."""

    points: Points
    line: Line

    def find(self, t: np.ndarray, sampled: Sampled) -> Kinks:
        """All kinks and jumps in the window whose grid ``t`` has been sampled."""
        switches = self.points.switches
        unseen = (
            (f"{switches.entries:,} atoms and constraints",) if switches.entries > sampled.signature.shape[1] else ()
        )
        look = Places(self.points, self.line)
        places, dropped = look.on(t, sampled)
        eye, spacing = self._eye(sampled), float(t[1] - t[0])
        resolution = Resolution(
            eye.least_jump,
            look.separation,
            eye.distances[-1] * self.line.radius,
            spacing,
            (*switches.opaque, *unseen),
            dropped,
        )
        kinks, jumps = self._judged(places, eye) if places else ([], [])
        shared = frozenset(entry for place in places for entry in place.entries)
        return Kinks(kinks, jumps, self._aggregate(t, sampled, shared), resolution)

    def _judged(self, places: list[Place], eye: OneSided) -> tuple[list[Kink], list[Jump]]:
        """What is at the places."""
        at, widths = np.array([p.t for p in places]), np.array([p.width for p in places])
        apart = np.diff(at, prepend=-np.inf, append=np.inf)
        reach = 0.1 * np.minimum(apart[:-1], apart[1:])
        least = np.maximum(2 * widths, ROUNDING * (1.0 + np.max(np.abs(self.line.centre), initial=0.0)))
        distances = [np.maximum(np.minimum(d * self.line.radius, reach), least) for d in eye.distances]
        sides: list[Sides] = []
        for distance in distances:
            if eye.by_differences and sides:
                at = at + sides[-1].crossing(distances[0])
            sides.append(self._look(eye, at, distance))
        near, far = sides[-1], sides[-2]
        steps = near.steps(far, distances[-1])
        bends = near.bends(far, eye.least_jump) & ~steps
        at = at + np.where(bends, near.crossing(np.maximum(distances[-1], widths)), 0.0)
        kinks = [self._kink(places[i], float(at[i]), near, int(i)) for i in np.flatnonzero(bends)]
        jumps = [self._jump(places[i], float(at[i]), near, int(i)) for i in np.flatnonzero(steps)]
        return kinks, jumps

    def _kink(self, place: Place, t: float, near: Sides, i: int) -> Kink:
        before, after = near.slope[i].tolist()
        return Kink(t, self._x(t), float(near.value[i].mean()), before, after, self._causes(place, t))

    def _jump(self, place: Place, t: float, near: Sides, i: int) -> Jump:
        left, right = near.value[i].tolist()
        return Jump(t, self._x(t), left, right, self._causes(place, t))

    def _causes(self, place: Place, t: float) -> tuple[Cause, ...]:
        """What changes at a place, constraints first."""
        switches = self.points.switches
        entries = place.entries or (self._beside(t) if switches.entries else frozenset())
        found = dict.fromkeys(switches.place(entry) for entry in sorted(entries))
        return tuple(sorted(found, key=lambda cause: not cause.is_constraint))

    def _beside(self, t: float) -> frozenset[int]:
        """The switches that have another sign at a place than beside it."""
        width = 10 * MERGE * self.line.radius
        before, here, after = self.points.values(self.line.at(np.array([t - width, t, t + width]))).signature
        return changed(before, after) | changed(before, here)

    def _eye(self, sampled: Sampled) -> OneSided:
        residual = sampled.residual[sampled.reason == 0]
        return OneSided(self.points, bool(np.max(residual, initial=0.0) < 1e-12))

    def _look(self, eye: OneSided, at: np.ndarray, distance: np.ndarray) -> Sides:
        directions = np.broadcast_to(self.line.direction, (len(at), self.line.direction.size))
        return eye.look(self.line.at(at), directions, distance)

    def _x(self, t: float) -> Any:
        return self.points.compiled.upper.unflatten(self.line.at(t))

    def _aggregate(self, t: np.ndarray, sampled: Sampled, shared: frozenset[int]) -> SampledKinks | None:
        """The changes of branch of a distribution's sample, but for those that many rows share."""
        blurred = self.points.switches.sampled[: sampled.signature.shape[1]].copy()
        blurred[[entry for entry in shared if entry < len(blurred)]] = False
        good = sampled.reason == 0
        changes = (np.diff(sampled.signature, axis=0) != 0) & (good[1:] & good[:-1])[:, None] & blurred
        cells = np.flatnonzero(changes.any(axis=1))
        if not cells.size:
            return None
        return SampledKinks(int(np.sum(changes)), float(t[cells[0]]), float(t[cells[-1] + 1]))
