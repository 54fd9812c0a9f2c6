"""Places on a line where a switch changes: where it crosses zero, touches it, or many of a sample's do at once.

f is known on the smooth pieces of a line between such places, from y and how it moves there: nothing is solved again. Where y moves evenly, lines
through neighbouring pieces meet at the very place between them, and what is on them is exact up to there. Elsewhere a piece is told by its cubic
between two points close to each other, and by the line next to a point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from hierfl.inspect.implicit.points import Followed, Points, Sampled
from hierfl.inspect.kinks.kink import BRACKET, LIMIT, KinkPlace, changed
from hierfl.inspect.kinks.switches import ROUNDING, TOLERANCE
from hierfl.inspect.window import Line, bisected

ON_THE_LINE = 1e-12  # of the size of x
NEXT_TO = 100.0  # widths of a place, within which a piece is its line
NODES_LIMIT = 20_000_000  # scalars of points that are put down
STILL = 1e-9  # of the quickest switch: what moves no more stays
NEAR = 1e-4  # of the radius, within which a piece is its cubic

EVEN = 1e-11  # of y and of switches: by what lines of neighbouring pieces that are exact miss each other where they meet


class Motion(NamedTuple):
    """A point of a piece: y there, how it moves, and how far back and ahead it does so; how f and the switches move."""

    t: float
    signature: np.ndarray
    y: np.ndarray
    rate: np.ndarray
    behind: float
    ahead: float
    slope: float
    switch_rates: np.ndarray

    def y_at(self, t: float) -> np.ndarray:
        """y at a place of the line, if it moves evenly up to there."""
        return self.y + (t - self.t) * self.rate

    def meets(self, other: Motion, t: float) -> bool:
        """Whether the lines of two points meet at a place."""
        one, two = self.y_at(t), other.y_at(t)
        return bool((np.abs(one - two) <= EVEN * (1.0 + np.abs(one).max(initial=0.0))).all())


@dataclass(frozen=True, eq=False)
class Branches:
    """What is known of the pieces along a line, put down as it is found."""

    points: Points
    line: Line
    nodes: dict[float, Motion] = field(default_factory=dict)
    places: dict[tuple[float, float], tuple[float, bool]] = field(default_factory=dict)  # by neighbours, where one piece ends, and whether their lines meet there
    _first: list[tuple[np.ndarray, Sampled, Followed]] = field(default_factory=list)  # the slice's own points

    def look(self, t: np.ndarray) -> tuple[Sampled, np.ndarray, list[Motion | None]]:
        """(f, the switches, how all moves where that is told) at places (k,), which are put down."""
        known = self._first and np.array_equal(t, self._first[0][0])
        sampled, moves = self._first[0][1:] if known else self.points.followed(self.line.at(t), self.line.direction)
        if not self._first:
            self._first.append((t, sampled, moves))
        motions: list[Motion | None] = [None] * len(t)
        for k in np.flatnonzero(~np.isnan(moves.ahead + moves.behind) & (sampled.reason == 0)):
            place, reach = (float(t[k]), sampled.signature[k]), (float(moves.behind[k]), float(moves.ahead[k]))
            motion = Motion(*place, sampled.answers[k], moves.rates[k], *reach, float(moves.slope[k]), moves.switch_rates[k])
            size = np.abs(motion.switch_rates)
            least = max(STILL * float(size.max(initial=0.0)), TOLERANCE / self.line.radius)
            if (size[sampled.signature[k] == 0] > least).any():  # one that counts as zero leaves it: the signature is of one piece, the motion of another
                continue
            motions[k] = motion
            if len(self.nodes) * (motion.y.size + len(motion.switch_rates)) <= NODES_LIMIT:
                self.nodes[motion.t] = motion
        return sampled, moves.switches, motions

    def slopes(self, points: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(f, its derivatives along directions) at points (k, n): from the pieces where they are known, else asked for."""
        away = points - self.line.centre
        times = away @ self.line.direction
        beside, size = away - times[:, None] * self.line.direction, 1.0 + np.abs(self.line.centre).max(initial=0.0)
        on_the_line = np.abs(beside).max(initial=0.0) <= ON_THE_LINE * size and (directions == self.line.direction).all()
        known = self._known(times) if on_the_line else {}
        value, slope = np.full(len(points), np.nan), np.full(len(points), np.nan)
        told = np.array(list(known), int)
        if told.size:
            y, rate = (np.stack(parts) for parts in zip(*known.values()))
            value[told], slope[told] = self.points.slopes_of(points[told], directions[told], y, rate)
        others = np.setdiff1d(np.arange(len(points)), told)
        if others.size:
            value[others], slope[others] = self.points.slopes(points[others], directions[others])
        return value, slope

    def _known(self, times: np.ndarray) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """(y, how it moves) at those places of the line where they are known, by number."""
        nodes = [self.nodes[t] for t in sorted(self.nodes)]
        after = np.searchsorted([node.t for node in nodes], times).tolist()
        inside = ((k, t, place) for k, (t, place) in enumerate(zip(times.tolist(), after)) if 0 < place < len(nodes))
        found = {k: self._between(t, nodes[place - 1], nodes[place]) for k, t, place in inside}
        return {k: answer for k, answer in found.items() if answer is not None}

    def _between(self, t: float, left: Motion, right: Motion) -> tuple[np.ndarray, np.ndarray] | None:
        """The same between two neighbouring points."""
        if (left.t, right.t) not in self.places:
            return self._cubic(t, left, right) if (left.signature == right.signature).all() else None
        place, even = self.places[left.t, right.t]
        node = left if t < place else right
        return (node.y_at(t), node.rate) if even or abs(t - node.t) <= NEXT_TO * BRACKET * self.line.radius else None

    def _cubic(self, t: float, left: Motion, right: Motion) -> tuple[np.ndarray, np.ndarray] | None:
        """By the cubic through both points, where it is close to one of them; by the line of the nearer, where that meets the other."""
        one, two = (left, right) if t - left.t <= right.t - t else (right, left)
        if one.meets(two, two.t):
            return one.y_at(t), one.rate
        if abs(t - one.t) > NEAR * self.line.radius:
            return None
        h, s = two.t - one.t, (t - one.t) / (two.t - one.t)
        far = (two.y - one.y_at(two.t), h * (two.rate - one.rate))  # what the line of the nearer misses
        y = one.y_at(t) + s * s * ((3 - 2 * s) * far[0] + (s - 1) * far[1])
        return y, one.rate + (s * (6 - 6 * s) * far[0] + s * (3 * s - 2) * far[1]) / h


TOUCH = 1e-7  # of a switch's value, relative to that at the neighbouring points
FAR = 100.0  # widths that two places of one branch are apart, for a line through them
BESIDE = np.array([-0.45, 0.45])  # widths
CLOSE = 0.05  # of the way along a line
PATIENCE = 8  # misses
BETWEEN = 0.47  # of the way between two branches: half-way there may be a kink where they are as far apart as others
MET = 0.2  # widths that two branches may be apart where they meet
VALUES_LIMIT, CUTS = 4_000_000, 2  # values of switches that are in memory together; at a cell
SHARE = 0.02  # of a distribution's sample: as many rows that change branch at one place are no accident


class _End(NamedTuple):
    """A place on the line: whether f has a value there, the signs of the switches and their values (NaN where those are not kept)."""

    t: float
    good: bool
    signature: np.ndarray
    value: np.ndarray
    motion: Motion | None = None

    def leaves(self, other: _End | None, changing: np.ndarray, zero: float) -> np.ndarray:
        """Where the line of this branch, or one through here and another place of it, takes each changing switch to zero."""
        if self.motion is None and not (other is not None and self.value.shape == other.value.shape == changing.shape):
            return np.zeros(0)
        sign, mine = self.signature[changing], self.value[changing]
        with np.errstate(all="ignore"):
            if self.motion is not None:
                rate = self.motion.switch_rates[changing]
            else:
                rate = (mine - other.value[changing]) / (self.t - other.t)  # type: ignore[union-attr]
            root = self.t - (mine - zero * sign) / rate
        return np.asarray(root[(sign != 0) & np.isfinite(root)])


class _Cell(NamedTuple):
    """Part of the line over which a switch changes; ``before`` and ``after`` are further places of the branches at its ends."""

    left: _End
    right: _End
    before: _End | None
    after: _End | None
    misses: int = 0  # how often lines have left most of it
    curved: bool = False  # whether they have led to a place of the branch that they were to leave

    @classmethod
    def of(cls, left: _End, right: _End, near: Sequence[_End], width: float, misses: int = 0) -> _Cell:
        """Between two neighbours, of which others are ``near``, in order."""

        def of_branch(end: _End, others: Iterable[_End]) -> _End | None:
            for other in others:
                if not other.good or (other.signature != end.signature).any():
                    return None
                if abs(other.t - end.t) > FAR * width:
                    return other
            return None

        before = of_branch(left, (end for end in reversed(near) if end.t < left.t))
        after = of_branch(right, (end for end in near if end.t > right.t))
        return cls(left, right, before, after, misses)

    @property
    def length(self) -> float:
        return self.right.t - self.left.t

    @property
    def middle(self) -> float:
        return 0.5 * (self.left.t + self.right.t)

    def meeting(self, width: float, zero: float) -> float:
        """Where a switch is zero itself, not only counted as it, by the line that led here; the middle where none did."""
        for counted, itself in zip(self.edges(zero), self.edges(0.0)):
            if abs(counted - self.middle) <= width:
                return itself
        return self.middle

    def edges(self, zero: float) -> tuple[float, float]:
        """Where the branch of the left end ends, and that of the right one begins, by their lines; infinite where these do not say."""
        changing, edges = self.left.signature != self.right.signature, []
        for end, other, way in ((self.left, self.before, 1.0), (self.right, self.after, -1.0)):
            roots = end.leaves(other, changing, zero)
            if end.motion is not None:
                roots = np.append(roots, end.t + way * (end.motion.ahead if way > 0 else end.motion.behind))
            edges.append(end.t + way * (way * (roots - end.t))[way * (roots - end.t) > 0].min(initial=np.inf))
        return float(edges[0]), float(edges[1])

    @property
    def gap(self) -> float:
        """What is between the branches of both ends; the whole cell where that is not known."""
        exit_, entry = self.edges(0.0)
        return entry - exit_ if self.is_followed and self.left.t < exit_ and entry < self.right.t else self.length

    @property
    def is_followed(self) -> bool:
        return self.left.motion is not None and self.right.motion is not None

    def met(self, width: float) -> float | None:
        """The place where the branches of both ends meet, which is all there is in between; None where they do not."""
        if self.left.motion is None or self.right.motion is None or abs(self.gap) > MET * width:
            return None
        t = 0.5 * sum(self.edges(0.0))
        return t if self.left.motion.meets(self.right.motion, t) else None

    def cuts(self, width: float, zero: float) -> np.ndarray:
        """Where to look next: between the branches of both ends; just beside the places where their lines say that they end; or half-way.

        Lines that have missed are those of a curve, and next time there is a place of its branch close to its end.
        """
        if (self.left.motion or self.right.motion) and self.misses <= PATIENCE:
            exit_, entry = self.edges(0.0)
            if self.is_followed and not self.curved and exit_ + MET * width < entry:
                exit_, entry = max(exit_, self.left.t), min(entry, self.right.t)
                return np.array([exit_ + BETWEEN * (entry - exit_)])
            around = self._around(width, 0.0) or self._around(width, zero)
            if around:
                return np.array(around)
        cuts: list[float] = []
        for end, edge in zip((self.left, self.right), self.edges(zero)):
            if self.left.t < edge < self.right.t:
                cuts += (edge + BESIDE * width).tolist()
                cuts += [edge - CLOSE * (edge - end.t)] * (self.misses > 0)
        inside = [cut for cut in sorted(cuts) if self.left.t < cut < self.right.t]
        apart = [cut for k, cut in enumerate(inside) if k == 0 or cut - inside[k - 1] > 0.5 * width]
        return np.array(apart if apart and self.misses <= PATIENCE else [self.middle])

    def _around(self, width: float, zero: float) -> list[float]:
        """Places on either side of where the branches of both ends meet, by lines of which the shorter one is trusted more."""
        exit_, entry = self.edges(zero)
        inside = self.left.t < exit_ < self.right.t, self.left.t < entry < self.right.t
        if not any(inside):  # what changes does so next to the other end
            beyond = [self.left.t + CLOSE * self.length] * (-np.inf < entry) + [self.right.t - CLOSE * self.length] * (exit_ < np.inf)
            return beyond if self.length > width / CLOSE else []
        if not all(inside):
            return []
        trust = (self.right.t - entry) ** 2 / ((exit_ - self.left.t) ** 2 + (self.right.t - entry) ** 2)
        middle = trust * exit_ + (1.0 - trust) * entry
        reach = max(BESIDE[1] * width, 2.0 * abs(entry - exit_) * min(trust, 1.0 - trust))
        return [cut for cut in (middle - reach, middle + reach) if self.left.t < cut < self.right.t]

    def parts(self, inner: list[_End], width: float) -> list[_Cell]:
        """Cut at places inside, and keep the parts over which a switch changes."""
        near = [end for end in (self.before, self.left, *inner, self.right, self.after) if end is not None]
        pairs = (pair for pair in pairwise([self.left, *inner, self.right]) if (pair[0].signature != pair[1].signature).any())
        cells = [_Cell.of(left, right, near, width, self.misses) for left, right in pairs]
        gap, curved = abs(self.gap), self.curved or len(cells) <= len(inner)
        return [cell._replace(misses=cell.misses + int(abs(cell.gap) > 0.6 * gap), curved=curved) for cell in cells]


@dataclass(frozen=True)
class SwitchChanges:
    """Looks for places at which switches change, between points ``t`` of a line that have been sampled."""

    points: Points
    line: Line
    branches: Branches | None = None

    def crossings(self, t: np.ndarray, sampled: Sampled) -> tuple[list[KinkPlace], int]:
        """Narrow the cells in which a switch changes sign, all at once, a distribution's sample left out.

        Where the switches are known on two places of one branch, the line through them says where the branch ends: exactly, where y is
        piecewise affine, and by secants elsewhere. A cell that this leaves longer than its half is halved.

        Returns the places, and how many were too many to be looked at.
        """
        names = np.flatnonzero(~self.points.switches.sampled)
        names = names[: sampled.signature.shape[1]]  # none where the signatures were too long to be kept
        ends = self._ends(t, sampled, names)
        open_ = [
            _Cell.of(left, right, ends[max(0, i - 1) : i + 3], self._width)
            for i, (left, right) in enumerate(pairwise(ends))
            if left.good and right.good and (left.signature != right.signature).any()
        ]
        closed, waiting, dropped = [], open_[:0], 0
        most = max(1, VALUES_LIMIT // (CUTS * max(1, self.points.switches.entries)))  # cells whose switches are in memory together
        blur = ROUNDING * float(np.nanmax(np.abs(sampled.answers), initial=0.0))  # within which a switch counts as zero
        while open_ := open_ + waiting:
            open_, waiting = open_[:most], open_[most:]
            left_open = []
            for cell in open_:
                place, even = cell.met(self._width), True
                if place is None and cell.length <= self._width:
                    place, even = cell.meeting(self._width, TOLERANCE), False
                if place is None:
                    left_open.append(cell)
                    continue
                width = MET * self._width if even else cell.length
                closed.append(KinkPlace(place, max(width, blur), changed(cell.left.signature, cell.right.signature, names)))
                if self.branches is not None:
                    self.branches.places[cell.left.t, cell.right.t] = place, even
            cuts = [cell.cuts(self._width, TOLERANCE) for cell in left_open]
            between = iter(self._ends(np.concatenate(cuts), None, names) if cuts else [])
            open_ = []
            for cell, cut in zip(left_open, cuts):
                inner = list(islice(between, len(cut)))
                lost = next((end for end in inner if not end.good), None)
                if lost is not None and cell.length > FAR * self._width:  # perhaps at the very place alone
                    near = lost.t + np.array([-0.1, 0.1]) * FAR * self._width
                    beside = self._ends(near[(near > cell.left.t) & (near < cell.right.t)], None, names)
                    inner, lost = (beside, None) if beside and all(end.good for end in beside) else (inner, lost)
                if lost is not None:  # as close as f can be had
                    changes = changed(cell.left.signature, cell.right.signature, names)
                    closed.append(KinkPlace(lost.t, cell.length, changes))
                else:
                    open_ += cell.parts(inner, self._width)
            allowed = max(0, LIMIT - len(closed) - len(waiting))
            dropped += max(0, len(open_) - allowed)
            open_ = open_[:allowed]
        return closed, dropped

    @property
    def _width(self) -> float:
        """To within what a place is found."""
        return BRACKET * self.line.radius

    def _ends(self, t: np.ndarray, sampled: Sampled | None, names: np.ndarray) -> list[_End]:
        """Make ends of cells at places, which may have been evaluated, with the values of their switches where those are not too many."""
        motions: list[Motion | None] = [None] * len(t)
        if self.branches is not None:
            sampled, value, motions = self.branches.look(t)
        else:
            sampled = self.points.values(self.line.at(t)) if sampled is None else sampled
            if not names.size or len(t) * self.points.switches.entries > VALUES_LIMIT:
                value = np.full((len(t), 1), np.nan)
            else:
                value = self.points.switch_values(self.line.at(t), sampled)[:, names]
        signature, good = sampled.signature[:, names], sampled.reason == 0
        return [_End(*each) for each in zip(t.tolist(), good.tolist(), signature, value, motions)]

    def touches(self, t: np.ndarray, sampled: Sampled) -> tuple[list[KinkPlace], int]:
        """(where a switch that has one sign at neighbouring points comes to zero between them, how many such places were not looked at)."""
        names = np.flatnonzero(~self.points.switches.sampled)
        if len(t) < 3 or not names.size:
            return [], 0
        size = max(3, VALUES_LIMIT // self.points.switches.entries)  # points whose switches are in memory together
        spans = [span for start in range(1, len(t) - 1, size) for span in self._bottoms(t, sampled, names, start, min(start + size, len(t) - 1))]
        places, dropped = self._narrowed(spans[:LIMIT], names)
        return places, dropped + max(0, len(spans) - LIMIT)

    def _bottoms(self, t: np.ndarray, sampled: Sampled, names: np.ndarray, first: int, end: int) -> list[tuple[float, float, int, float, float]]:
        """(low, high, switch, its sign, its size at the ends) around points from ``first`` on at which a switch is near to a zero between neighbours."""
        wide = slice(max(0, first - 2), end + 2)
        value = self._switch_values(t[wide], Sampled(*(part[wide] for part in sampled)))[:, names]
        margin = np.full((1, len(names)), np.nan)
        value = np.vstack([margin] * (first < 2) + [value] + [margin] * (end + 2 > len(t)))
        sign = np.sign(value[2:-2])
        two_before, before, size, after, two_after = (sign * value[k : len(value) - 4 + k] for k in range(5))
        with np.errstate(all="ignore"):
            bottom = size - (after - before) ** 2 / (8 * (before - 2 * size + after))  # of a parabola
            tip = np.fmin(2 * before - two_before, 2 * after - two_after)  # of two lines that meet
            near = (size > 0) & (size <= before) & (size <= after) & (before + after > 2 * size)
            near &= np.fmin(bottom, tip) <= 0.05 * np.maximum(before, after)
        spans = [(first + i, i, e) for i, e in np.argwhere(near)]
        return [(t[k - 1], t[k + 1], e, sign[i, e], max(before[i, e], after[i, e])) for k, i, e in spans]

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
            there = self.points.values(self.line.at(middle))
            cut = [each for each, known in zip(zip(spans, middle, there.signature[:, names]), there.reason == 0) if known]
            halves = [half for (a, b, left, right), m, here in cut for half in ((a, m, left, here), (m, b, here, right))]
            halves = [half for half in halves if np.sum(half[2] != half[3]) >= least]
            width = self._width
            shared += [KinkPlace(0.5 * (a + b), b - a, changed(s, e, names)) for a, b, s, e in halves if b - a <= width]
            spans = [half for half in halves if half[1] - half[0] > width]
        return shared

    def _narrowed(self, spans: list[tuple[float, float, int, float, float]], names: np.ndarray) -> tuple[list[KinkPlace], int]:
        """Narrow spans (low, high, switch, its sign, its size at the ends) down to where the switch is least; (places, how many were too many)."""
        touching, crossings, width = [], [], self._width
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
                    where = float(row[least]), float(row[-1] - row[0])
                    touching.append(KinkPlace(*where, frozenset({int(names[entry])})))
            spans = open_
        return touching + self._zeros(crossings[:LIMIT]), max(0, len(crossings) - LIMIT)

    def _zeros(self, brackets: list[tuple[float, float, int]]) -> list[KinkPlace]:
        """Bisect to where single switches change sign, each within (low, high)."""
        if not brackets:
            return []
        low, high, which = map(np.array, zip(*brackets))
        each = np.arange(len(brackets))
        left = self._switch_values(low)[each, which] > 0
        low, high = bisected(low, high, lambda t: (self._switch_values(t)[each, which] > 0) == left, self._width)
        return [KinkPlace(0.5 * (a + b), b - a, frozenset({int(e)})) for a, b, e in zip(low, high, which)]

    def _switch_values(self, t: np.ndarray, sampled: Sampled | None = None) -> np.ndarray:
        """Evaluate the switches at places (k,), rounding errors around zero taken for zero: (k, switches)."""
        value = self.points.switch_values(self.line.at(t), sampled)
        size = np.abs(value)
        noise = TOLERANCE * (1.0 + size) + ROUNDING * np.max(size, axis=1, keepdims=True, initial=0.0)
        return np.where(size <= noise, 0.0, value)
