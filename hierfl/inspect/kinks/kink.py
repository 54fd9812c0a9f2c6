"""Kinks and jumps of f along a line, and what could be told apart; ``kink_search`` finds them, at places where there may be one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hierfl.inspect.kinks.switches import Cause

BRACKET = 1e-9  # widths and distances are in units of the window's radius
MERGE = 1e-6
LIMIT = 4000  # places looked at side by side
EACH_PLACE = 16  # points at which each place is looked at from either side


class KinkPlace(NamedTuple):
    """A place where f may have a kink, to within ``width``, and the switches that change there."""

    t: float
    width: float
    entries: frozenset[int]


def changed(left: np.ndarray, right: np.ndarray, names: np.ndarray | None = None) -> frozenset[int]:
    """The switches that differ between two signatures."""
    places = np.flatnonzero(left != right)
    return frozenset((places if names is None else names[places]).tolist())


def merged(places: Iterable[KinkPlace], separation: float, zero: float) -> list[KinkPlace]:
    """Put places in order, and take those together that are closer than the separation.

    A switch counts as zero within a tolerance: the two ends of that stretch, up to ``zero`` from each other, are one place.
    """
    together: list[KinkPlace] = []
    for place in sorted(places):
        last = together[-1] if together else None
        same = last is not None and bool(last.entries & place.entries)
        if last is None or place.t - last.t > (max(separation, zero) if same else separation):
            together.append(place)
        elif same:  # half-way between both ends
            width = max(last.width, place.width, place.t - last.t)
            together[-1] = KinkPlace(0.5 * (last.t + place.t), width, last.entries | place.entries)
        else:  # where the slope leaps, or the sharper of the two
            sharper = min(last, place, key=lambda one: (len(one.entries) > 0, one.width))
            together[-1] = sharper._replace(entries=last.entries | place.entries)
    return together


NAMED = 3  # causes that are written out
ROUNDING = 1e-13  # of the larger slope at a kink: less is written as none


class _Caused:
    causes: tuple[Cause, ...]

    @property
    def cause(self) -> str:
        """The first few of the causes in words, and how many more there are."""
        if not self.causes:
            return "no constraint or atom in sight changes"
        named = " and ".join(map(str, self.causes[:NAMED]))
        return named if len(self.causes) <= NAMED else f"{named} and {len(self.causes) - NAMED} more"


@dataclass(frozen=True, repr=False)
class Kink(_Caused):
    """f has two slopes at ``t``: ``left_slope`` before it and ``right_slope`` after, along the line, possibly infinite.

    ``causes`` are the constraints and atoms that change there, or what hierfl cannot see into where none does; empty without either.
    """

    t: float
    x: Any
    value: float
    left_slope: float
    right_slope: float
    causes: tuple[Cause, ...]

    @property
    def convex(self) -> bool:
        """Whether f bends up here."""
        return self.right_slope > self.left_slope

    @property
    def bend(self) -> str:
        """``"up"``, ``"down"``, or ``"vertical"`` where both slopes are the same infinity."""
        return "vertical" if self.left_slope == self.right_slope else "up" if self.convex else "down"

    @property
    def sharpness(self) -> float:
        """The amount by which the slope jumps; infinite where one of the slopes is."""
        return np.inf if self.bend == "vertical" else abs(self.right_slope - self.left_slope)

    def __str__(self) -> str:
        bend = "is vertical" if self.bend == "vertical" else f"bends {self.bend}"
        sides = (self.left_slope, self.right_slope)
        size = max((abs(slope) for slope in sides if np.isfinite(slope)), default=0.0)
        left, right = (0.0 if abs(slope) <= ROUNDING * size else slope for slope in sides)
        return f"{_place(self.t, self.x)}: slope {left:.6g} to {right:.6g}, {bend}; {self.cause}"

    __repr__ = __str__


@dataclass(frozen=True)
class Jump(_Caused):
    """f itself jumps at ``t``, from ``left`` to ``right``: y(x) is not continuous there."""

    t: float
    x: Any
    left: float
    right: float
    causes: tuple[Cause, ...]

    def __str__(self) -> str:
        return f"{_place(self.t, self.x)}: f jumps from {self.left:.6g} to {self.right:.6g}; {self.cause}"


@dataclass(frozen=True)
class SampledKinks:
    """Nodes that stand for a distribution change branch along the line: tiny kinks of their mean.

    The expectation itself may have none of them, so they are counted and not looked at one by one.
    """

    count: int
    low: float
    high: float

    def __str__(self) -> str:
        what = f"{self.count} changes of branch of points that stand for a distribution, for t in [{self.low:.4g}, {self.high:.4g}]"
        return f"{what}: tiny kinks that the expectation smooths as the points grow in number"


class Resolution(NamedTuple):
    """What could be told apart: least slope jump (relative to 1 + |slope|), least separation in t, and what is opaque.

    Smooth bends narrower than ``bend`` in t are taken for kinks. Inside what is ``opaque`` kinks are told from the slopes on
    the window's points, and jumps from the values, ``spacing`` apart: several between neighbouring points are taken for
    none if they cancel. Slopes that grow up to a distance of ``bend`` are taken for infinite. Gaps narrower than the spacing
    are not seen, nor is a constraint of Y(x) that lets go and holds again between two points where f's values and slopes there do not show it. ``dropped`` is how many places
    were too many to be looked at.
    """

    slope_jump: float
    separation: float
    bend: float
    spacing: float
    opaque: tuple[str, ...]
    dropped: int = 0

    def __str__(self) -> str:
        text = f"slope jumps above {self.slope_jump:.0e} (1 + |slope|), {self.separation:.1e} apart or more"
        if self.opaque:
            text += f"; inside {', '.join(self.opaque)} only what stands out on points {self.spacing:.1e} apart"
        if self.dropped:
            text += f"; at least {self.dropped} further places were not looked at: take a smaller window"
        return text


class Kinks(Sequence[Kink]):
    """The kinks of a slice in order, with its jumps, and what was aggregated or could not be resolved.

    ``unknown`` says why nothing is known of them; empty where they were looked for to the end.
    """

    def __init__(
        self, kinks: Sequence[Kink], jumps: Sequence[Jump], sampled: SampledKinks | None, resolution: Resolution, unknown: str = ""
    ) -> None:
        self._kinks = tuple(kinks)
        self.jumps, self.sampled, self.resolution, self.unknown = tuple(jumps), sampled, resolution, unknown

    @classmethod
    def none(cls, why: str) -> Kinks:
        """None that are known, and why."""
        return cls((), (), None, Resolution(np.inf, np.inf, np.inf, np.inf, ()), why)

    def __len__(self) -> int:
        return len(self._kinks)

    def __getitem__(self, place: Any) -> Any:
        return self._kinks[place]

    def __str__(self) -> str:
        if self.unknown:
            return self.unknown
        lines = [*map(str, self._kinks), *map(str, self.jumps)] or ["no kinks"]
        if self.sampled is not None:
            lines.append(str(self.sampled))
        return "\n".join([*lines, f"resolved: {self.resolution}"])

    __repr__ = __str__


def _place(t: float, x: Any) -> str:
    """Where on the line, and which x that is, if x is one number."""
    at = f" (x = {round(float(x), 9) + 0.0:.6g})" if np.ndim(x) == 0 and not isinstance(x, dict) else ""
    return f"t = {round(t, 9) + 0.0:.6g}{at}"
