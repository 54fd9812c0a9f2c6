"""Kinks along the edges of a grid in a plane: samples of the curves along which f has kinks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.spatial import cKDTree

from hierfl.inspect.implicit.points import Points, Sampled
from hierfl.inspect.kinks.kink import EACH_PLACE, MERGE
from hierfl.inspect.kinks.one_sided import OneSided, judge
from hierfl.inspect.kinks.switches import TOLERANCE, Switches
from hierfl.inspect.window import Plane, grid_of

CLOSE_ON_EDGE = 1e-9  # in radii: to within this a change on an edge is found


class GridEdges(NamedTuple):
    """Edges of a grid: both ends' coordinates (k, 2), and the signs there of the switches ``names``, (k, switches)."""

    low: np.ndarray
    high: np.ndarray
    before: np.ndarray
    after: np.ndarray
    names: np.ndarray

    @classmethod
    def of(cls, switches: Switches, s: np.ndarray, sampled: Sampled) -> GridEdges:
        """The edges along which a switch changes, of the grid (s, s) where f has been sampled; a distribution's sample left out."""
        count = len(s)
        names = np.flatnonzero(~switches.sampled)[: sampled.signature.shape[1]]
        signature = sampled.signature[:, names]
        names = names[(signature != signature[0]).any(axis=0)]
        signature = sampled.signature[:, names].reshape(count, count, -1)
        good = (sampled.reason == 0).reshape(count, count)
        ends = []
        for axis in (0, 1):
            a = (slice(None, -1), slice(None)) if axis == 0 else (slice(None), slice(None, -1))
            b = (slice(1, None), slice(None)) if axis == 0 else (slice(None), slice(1, None))
            here = np.argwhere((signature[a] != signature[b]).any(axis=2) & good[a] & good[b])
            there = np.add(here, (1 - axis, axis))
            ends.append((s[here], s[there], signature[tuple(here.T)], signature[tuple(there.T)]))
        low, high, before, after = (np.concatenate(parts) for parts in zip(*ends))
        return cls(low, high, before, after, names)

    @property
    def length(self) -> float:
        """The length of an edge, the same for all."""
        return float(np.linalg.norm(self.high[0] - self.low[0]))

    def halvings(self, plane: Plane) -> int:
        """How often an edge is halved to find a change on it."""
        return int(np.ceil(np.log2(self.length / (CLOSE_ON_EDGE * plane.radius))))

    def effort(self, plane: Plane) -> int:
        """Estimate how many points a search for kinks along the edges looks at, for a progress bar."""
        return len(self.low) * (self.halvings(plane) + EACH_PLACE)

    def crossings(self, points: Points, plane: Plane) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find (places (k, 2), unit vectors along their edges (k, 2), how far the next place or end is (k,)).

        All changes on an edge are bisected, each half for itself.
        """
        length = self.length
        unit = (self.high - self.low) / length
        edge, left, right = np.arange(len(unit)), self.before, self.after
        start, width = np.zeros(len(unit)), length
        for _ in range(self.halvings(plane)):
            width *= 0.5
            middle = points.values(plane.at(self.low[edge] + (start + width)[:, None] * unit[edge]))
            here = middle.signature[:, self.names]
            first, second = (left != here).any(axis=1), (here != right).any(axis=1)
            edge = np.concatenate([edge[first], edge[second]])
            start = np.concatenate([start[first], start[second] + width])
            left, right = np.concatenate([left[first], here[second]]), np.concatenate([here[first], right[second]])
        order = np.lexsort((start, edge))
        edge, at = edge[order], start[order] + 0.5 * width
        apart = np.where(np.diff(edge) == 0, np.diff(at), np.inf)
        apart = np.where(apart > MERGE * plane.radius, apart, np.inf)  # both ends of one switch's zero
        beside = np.minimum(np.append(np.inf, apart), np.append(apart, np.inf))
        return self.low[edge] + at[:, None] * unit[edge], unit[edge], np.minimum(beside, length)


def kinks_along(edges: GridEdges, points: Points, plane: Plane, s: np.ndarray, sampled: Sampled) -> np.ndarray:
    """Find the places (k, 2) of the edges where f has a kink or a jump along the edge.

    Parameters
    ----------
    edges
        Those of the grid (s, s) along which a switch changes; there is at least one.
    points
        What evaluates f.
    plane, s, sampled
        The plane, the coordinates of the grid along either direction (p,), and f on the grid.
    """
    at, along, apart = edges.crossings(points, plane)
    width, directions = np.full(len(at), CLOSE_ON_EDGE * plane.radius), along @ plane.directions
    eye = OneSided.of(points, sampled, grid_of(plane, s), directions[0], plane.radius)
    seen = judge(eye, plane.at(at), directions, plane.radius, width, 0.1 * apart)
    kinks = (at + seen.shift[:, None] * along)[seen.kinks | seen.jumps]
    zero = max(MERGE, 4 * TOLERANCE) * plane.radius
    twice = cKDTree(kinks).query_pairs(zero, output_type="ndarray") if len(kinks) else np.zeros((0, 2), int)
    return np.delete(kinks, twice[:, 1], axis=0)
