"""f on the smooth pieces of a line between places that are known, from y and how it moves there: nothing is solved again.

Where y moves evenly, lines through neighbouring pieces meet at the very place between them, and what is on them is exact up to there. Elsewhere
a piece is told by its cubic between two points close to each other, and by the line next to a point.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hierfl.inspect.implicit.points import Followed, Points, Sampled
from hierfl.inspect.kinks.kink import BRACKET
from hierfl.inspect.kinks.switches import TOLERANCE
from hierfl.inspect.window import Line

ON_THE_LINE = 1e-12  # of the size of x
NEXT_TO = 100.0  # widths of a place, within which a piece is its line
NODES_LIMIT = 20_000_000  # scalars of points that are put down
STILL = 1e-9  # of the quickest switch: what moves no more stays
NEAR = 1e-4  # of the radius, within which a piece is its cubic

EVEN = 1e-11  # of y and of switches: by what lines of neighbouring pieces that are exact miss each other where they meet


class Motion(NamedTuple):
    """A point of a piece: y there, how it moves, and how far back and ahead it does so; how f and the switches move."""

    y: np.ndarray
    rate: np.ndarray
    behind: float
    ahead: float
    slope: float
    switch_rates: np.ndarray

    def y_at(self, time: float) -> np.ndarray:
        """y some way from here, along the line."""
        return self.y + time * self.rate

    def meets(self, other: Motion, mine: float, others: float) -> bool:
        """Whether the lines of two points meet, some way from either."""
        one, two = self.y_at(mine), other.y_at(others)
        return bool((np.abs(one - two) <= EVEN * (1.0 + np.abs(one).max(initial=0.0))).all())


class _Node(NamedTuple):
    t: float
    signature: np.ndarray
    motion: Motion


class _Asked(NamedTuple):
    t: np.ndarray
    sampled: Sampled
    moves: Followed


class _Place(NamedTuple):
    """Where one piece ends and the next begins; ``even`` where their lines meet there."""

    t: float
    even: bool


@dataclass(frozen=True, eq=False)
class Branches:
    """What is known of the pieces along a line, put down as it is found."""

    points: Points
    line: Line
    width: float
    nodes: dict[float, _Node] = field(default_factory=dict)
    places: dict[tuple[float, float], _Place] = field(default_factory=dict)
    _first: list[_Asked] = field(default_factory=list)  # the slice's own points

    @classmethod
    def of(cls, points: Points, line: Line) -> Branches | None:
        """Nothing yet; None where y is not followed."""
        return cls(points, line, BRACKET * line.radius) if points.follows else None

    def look(self, t: np.ndarray) -> tuple[Sampled, np.ndarray, list[Motion | None]]:
        """(f, the switches, how all moves where that is told) at places (k,), which are put down."""
        known = self._first and np.array_equal(t, self._first[0].t)
        sampled, moves = self._first[0][1:] if known else self.points.followed(self.line.at(t), self.line.direction)
        if not self._first:
            self._first.append(_Asked(t, sampled, moves))
        motions: list[Motion | None] = [None] * len(t)
        for k in np.flatnonzero(~np.isnan(moves.ahead + moves.behind) & (sampled.reason == 0)):
            reach = float(moves.behind[k]), float(moves.ahead[k])
            motion = Motion(sampled.answers[k], moves.rates[k], *reach, float(moves.slope[k]), moves.switch_rates[k])
            if self._is_at_an_end(sampled.signature[k], motion):
                continue
            motions[k] = motion
            if len(self.nodes) * (motion.y.size + len(motion.switch_rates)) <= NODES_LIMIT:
                self.nodes[float(t[k])] = _Node(float(t[k]), sampled.signature[k], motion)
        return sampled, moves.switches, motions

    def _is_at_an_end(self, signature: np.ndarray, motion: Motion) -> bool:
        """Whether a switch that counts as zero leaves it: the signature is of one piece, and the motion of another."""
        size = np.abs(motion.switch_rates)
        least = max(STILL * float(size.max(initial=0.0)), TOLERANCE / self.line.radius)
        return bool((size[signature == 0] > least).any())

    def slope_at(self, t: float) -> float:
        """The derivative of f at a place that was looked at; NaN elsewhere."""
        return self.nodes[t].motion.slope if t in self.nodes else np.nan

    def end(self, left: float, right: float, t: float, even: bool) -> None:
        """Put down that all that changes between two points does so at t."""
        self.places[left, right] = _Place(t, even)

    def slopes(self, points: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(f, its derivatives along directions) at points (k, n): from the pieces where they are known, else asked for."""
        away = points - self.line.centre
        times = away @ self.line.direction
        known = self._known(times) if self._are_on_the_line(away, times, directions) else {}
        value, slope = np.full(len(points), np.nan), np.full(len(points), np.nan)
        told = np.array(list(known), int)
        if told.size:
            y, rate = (np.stack(parts) for parts in zip(*known.values()))
            value[told], slope[told] = self.points.slopes_of(points[told], directions[told], y, rate)
        others = np.setdiff1d(np.arange(len(points)), told)
        if others.size:
            value[others], slope[others] = self.points.slopes(points[others], directions[others])
        return value, slope

    def _are_on_the_line(self, away: np.ndarray, times: np.ndarray, directions: np.ndarray) -> bool:
        beside = np.abs(away - times[:, None] * self.line.direction).max(initial=0.0)
        size = 1.0 + np.abs(self.line.centre).max(initial=0.0)
        return bool(beside <= ON_THE_LINE * size) and bool((directions == self.line.direction).all())

    def _known(self, times: np.ndarray) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """(y, how it moves) at those places of the line where they are known, by number."""
        nodes = [self.nodes[t] for t in sorted(self.nodes)]
        after = np.searchsorted([node.t for node in nodes], times)
        found = {}
        for k, (t, place) in enumerate(zip(times.tolist(), after.tolist())):
            if 0 < place < len(nodes):
                answer = self._between(t, nodes[place - 1], nodes[place])
                if answer is not None:
                    found[k] = answer
        return found

    def _between(self, t: float, left: _Node, right: _Node) -> tuple[np.ndarray, np.ndarray] | None:
        """The same between two neighbouring points."""
        place = self.places.get((left.t, right.t))
        if place is None and (left.signature == right.signature).all():
            return self._cubic(t, left, right)
        if place is None:
            return None
        node = left if t < place.t else right
        if not place.even and abs(t - node.t) > NEXT_TO * self.width:
            return None
        return node.motion.y_at(t - node.t), node.motion.rate

    def _cubic(self, t: float, left: _Node, right: _Node) -> tuple[np.ndarray, np.ndarray] | None:
        """By the cubic through both points, where it is close to one of them; by the line of the nearer, where that meets the other."""
        node, other = (left, right) if t - left.t <= right.t - t else (right, left)
        one, two = node.motion, other.motion
        if one.meets(two, other.t - node.t, 0.0):
            return one.y_at(t - node.t), one.rate
        if abs(t - node.t) > NEAR * self.line.radius:
            return None
        h, s = other.t - node.t, (t - node.t) / (other.t - node.t)
        far = (two.y - one.y_at(h), h * (two.rate - one.rate))  # what the line of the nearer misses
        y = one.y_at(t - node.t) + s * s * ((3 - 2 * s) * far[0] + (s - 1) * far[1])
        return y, one.rate + (s * (6 - 6 * s) * far[0] + s * (3 * s - 2) * far[1]) / h
