"""Stretches of a line: where f has no value, where it is that of one of several lower solutions, where x is not feasible; and their bands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.house_style import COLOURS, GAPS
from hierfl.inspect.implicit.points import REASONS, Points, Sampled, owner_called
from hierfl.inspect.window import Line, bisected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EDGE = 1e-7  # in radii: to within this an edge is found


class Gap(NamedTuple):
    """f has no value for t in [low, high]; ``reason`` says why."""

    low: float
    high: float
    reason: str

    def __str__(self) -> str:
        return f"t in [{self.low:.6g}, {self.high:.6g}]: {self.reason}"


class Violated(NamedTuple):
    """For t in [low, high] y(x) violates the upper ``constraint``, so that x is not feasible."""

    low: float
    high: float
    constraint: str

    def __str__(self) -> str:
        return f"t in [{self.low:.6g}, {self.high:.6g}]: {self.constraint} is violated"


class Tie(NamedTuple):
    """For t in [low, high] an owner's lower level has several solutions that f tells apart.

    Which is ``taken`` depends on the method. Where the declaration has ``selected`` among them, whether it has is not known.
    """

    low: float
    high: float
    owner: str
    selected: bool
    taken: str

    def __str__(self) -> str:
        where = f"t = {self.low:.6g}" if self.high == self.low else f"t in [{self.low:.6g}, {self.high:.6g}]"
        if self.selected:
            return f"{where}: whether the lower level of {self.owner} has one solution or several is not known, so that none is chosen"
        return f"{where}: the lower level of {self.owner} has several solutions, and y is {self.taken}"


def gaps_between(points: Points, line: Line, t: np.ndarray, sampled: Sampled) -> tuple[Gap, ...]:
    """Find the gaps between places ``t`` of a line that have been sampled."""
    found = _stretches(line, t, sampled.reason, lambda places: points.values(line.at(places)).reason)
    return tuple(Gap(low, high, REASONS[reason]) for low, high, reason in found)


def ties_between(points: Points, line: Line, t: np.ndarray, sampled: Sampled) -> tuple[Tie, ...]:
    """Find the ties between places ``t`` of a line that have been sampled."""
    found = _stretches(line, t, sampled.tied, lambda places: points.values(line.at(places)).tied)
    selected, method = getattr(points.compiled.declaration.lower_level, "selection", None) is not None, points.compiled.exact.method
    taken = "" if method is None else method.of_several
    return tuple(Tie(low, high, owner_called(points.compiled, who - 1), selected, taken) for low, high, who in found)


def violated_between(points: Points, line: Line, t: np.ndarray, sampled: Sampled) -> tuple[Violated, ...]:
    """Find where an upper constraint that mentions y does not hold between places ``t`` of a line that have been sampled."""

    def of(place: int, places: np.ndarray) -> np.ndarray:
        at = line.at(places)
        return points.violated(at, points.values(at))[:, place]

    found, flags = list[Violated](), points.violated(line.at(t), sampled)
    for place, one in enumerate(points.compiled.coupled.conditions):
        stretches = _stretches(line, t, flags[:, place], partial(of, place))
        found += [Violated(low, high, one.text) for low, high, _ in stretches]
    return tuple(sorted(found))


def _stretches(
    line: Line, t: np.ndarray, codes: np.ndarray, ask: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[float, float, int]]:
    """(low, high, code) of every stretch with one code but 0, whose edges are bisected, all at once."""
    changes = np.flatnonzero(np.diff(codes) != 0)
    here, there = (np.repeat([t[changes], t[changes + 1]], 2, axis=1)[k] for k in (0, 1))
    other = np.arange(len(here)) % 2 == 1  # each edge is looked for from both of its sides
    inside, outside = np.where(other, there, here), np.where(other, here, there)
    wanted = np.repeat(codes[changes], 2)
    wanted[1::2] = codes[changes + 1]
    inside, _ = bisected(inside, outside, lambda places: ask(places) == wanted, EDGE * line.radius)
    ends = [t[0], *inside, t[-1]]
    starts = [0, *(changes + 1), len(codes)]
    for number, (first, _) in enumerate(pairwise(starts)):
        if codes[first] != 0:
            yield float(ends[2 * number]), float(ends[2 * number + 1]), int(codes[first])


TIE_SHADE = 0.15
HATCHES = ("\\\\\\", "|||", "---", "+++")


def draw_stretches(panel: Axes, gaps: Sequence[Gap], ties: Sequence[Tie], violated: Sequence[Violated]) -> None:
    """Draw bands behind f: grey where it has no value, shaded where it is that of one of several lower solutions, hatched where x is not feasible.

    Each reason, and each constraint, has a look of its own and a name in the legend; ties at single places are lines.
    """
    reasons, texts = list(dict.fromkeys(gap.reason for gap in gaps)), list(dict.fromkeys(one.constraint for one in violated))
    bands: list[tuple[float, float, str, dict[str, Any]]] = []
    for gap in gaps:
        grey, hatch = GAPS[reasons.index(gap.reason) % len(GAPS)]
        bands.append((gap.low, gap.high, f"no value: {gap.reason}", {"facecolor": grey, "hatch": hatch, "edgecolor": "white"}))
    bands += [(tie.low, tie.high, "several lower solutions", {"color": COLOURS[6], "alpha": TIE_SHADE}) for tie in ties]
    for one in violated:
        number = texts.index(one.constraint)
        hatch, colour = HATCHES[number % len(HATCHES)], COLOURS[(3 + number) % len(COLOURS)]
        hatched = {"facecolor": "none", "hatch": hatch, "edgecolor": colour, "alpha": 0.4}
        bands.append((one.low, one.high, f"violated: {one.constraint}", hatched))
    named: set[str] = set()
    for low, high, name, look in bands:
        label: dict[str, Any] = {} if name in named else {"label": name}
        named.add(name)
        if high > low:
            panel.axvspan(low, high, linewidth=0, zorder=0, **look, **label)
        else:
            panel.axvline(low, zorder=0, **{**look, "alpha": 2 * TIE_SHADE}, **label)
