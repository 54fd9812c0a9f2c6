"""The gaps of a slice: where f has no value, and why."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hierfl.inspect.implicit.points import REASONS, Points
from hierfl.inspect.line import Line
from hierfl.inspect.pictures.drawable import Gap

GAP_WIDTH = 1e-7  # in radii: to within this an edge is found


def gaps_between(points: Points, line: Line, t: np.ndarray, reason: np.ndarray) -> tuple[Gap, ...]:
    """Find the edges of the gaps between places ``t`` of a line, whose reasons for having no value are known."""
    gaps = []
    edges = [0, *(np.flatnonzero(np.diff(reason) != 0) + 1), len(reason)]
    for first, last in pairwise(edges):
        if reason[first] != 0:
            low = t[first] if first == 0 else _edge(points, line, t[first], t[first - 1])
            high = t[-1] if last == len(reason) else _edge(points, line, t[last - 1], t[last])
            gaps.append(Gap(float(low), float(high), REASONS[reason[first]]))
    return tuple(gaps)


def _edge(points: Points, line: Line, inside: float, outside: float) -> float:
    """Bisect to where the reason at ``inside`` ends, towards ``outside``."""
    reason = points.values(line.at(np.array([inside]))).reason[0]
    while abs(outside - inside) > GAP_WIDTH * line.radius:
        middle = 0.5 * (inside + outside)
        same = points.values(line.at(np.array([middle]))).reason[0] == reason
        inside, outside = (middle, outside) if same else (inside, middle)
    return float(inside)
