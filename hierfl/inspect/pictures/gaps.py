"""The gaps of a slice, where f has no value, and its ties, where it is that of one of several lower solutions; with their edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from hierfl.inspect.implicit.points import REASONS, Points, Sampled, owner_called
from hierfl.inspect.line import Line
from hierfl.inspect.pictures.drawable import Gap, Tie

EDGE = 1e-7  # in radii: to within this an edge is found


def gaps_between(points: Points, line: Line, t: np.ndarray, sampled: Sampled) -> tuple[Gap, ...]:
    """Find the gaps between places ``t`` of a line that have been sampled."""
    found = _stretches(line, t, sampled.reason, lambda places: points.values(line.at(places)).reason)
    return tuple(Gap(low, high, REASONS[reason]) for low, high, reason in found)


def ties_between(points: Points, line: Line, t: np.ndarray, sampled: Sampled) -> tuple[Tie, ...]:
    """Find the ties between places ``t`` of a line that have been sampled."""
    found = _stretches(line, t, sampled.tied, lambda places: points.values(line.at(places)).tied)
    selected = getattr(points.compiled.declaration.lower_level, "selection", None) is not None
    return tuple(Tie(low, high, owner_called(points.compiled, who - 1), selected) for low, high, who in found)


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
    while len(inside) and np.max(np.abs(outside - inside)) > EDGE * line.radius:
        middle = 0.5 * (inside + outside)
        same = ask(middle) == wanted
        inside, outside = np.where(same, middle, inside), np.where(same, outside, middle)
    ends = [t[0], *inside, t[-1]]
    starts = [0, *(changes + 1), len(codes)]
    for number, (first, _) in enumerate(pairwise(starts)):
        if codes[first] != 0:
            yield float(ends[2 * number]), float(ends[2 * number + 1]), int(codes[first])
