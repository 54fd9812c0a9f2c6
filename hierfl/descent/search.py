"""A bundle method with variable metric for the implicit function on X, which needs no settings.

Each step minimises a model of f on X, so that kinks of f and the boundary of X are seen as what they
are, and a line search takes care where the model is wrong. When the model promises no more, gradients at random points nearby are
asked for as well before the point is called at rest: at a kink one gradient may be zero although f falls to one side (gradient
sampling: Burke, Lewis and Overton, 2005); and f is asked far beyond the model's step, since a curvature that is too large, in a valley
or in small units, hides what is left. For convex f this is a proximal bundle method, which converges to the minimum; for
others it ends at points that the model cannot tell from stationary ones, and no theorem is claimed.

The model of f around the best point x is  v(d) + d' B d / 2  with  v(d) = max_i g_i' d - |e_i|,  where e_i is the error at x of the
linear piece of the point x_i. For a convex f without curvature these are its cutting planes; elsewhere a piece that lies above f at x
is lowered below it, as in bundle methods for nonconvex functions (Lukšan and Vlček, 1998; Mäkelä, 2002).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hierfl.descent.decision_rows import DecisionRows
from hierfl.descent.implicit_oracle import ImplicitOracle, KnownPoint
from hierfl.run_standing import EDGE, STUCK

FIRST = 1.0  # length of the first step, relative to max(1, |x| / 10)
SHORT = 1e-6  # relative: steps that models are not written in units of
SAME_SLOPE = 1e-12  # relative: slopes that are one
DAMPING = 0.1  # Powell's: the least curvature along a step, of what the model had
SPREAD = 1e-8  # least of the model's curvatures, in the variables' units and relative to its largest
KEPT = 20  # pieces, beside three for each variable
RECENT = 5  # pieces that curvature is learnt from, beside two for each variable
KINK = 10.0  # how much more than another piece's a gradient changes, for its distance, across a kink


class ModelStep(NamedTuple):
    """The model's minimiser x + d, and how much lower its piecewise linear part is there."""

    d: Float[np.ndarray, " n"]
    decrease: float


class Bundle:
    """The pieces, the best point (``centre``), the curvature B, and the units that lengths of steps are measured in."""

    def __init__(self, first: KnownPoint) -> None:
        self.centre, self.pieces = first, [first]
        self.units = np.ones(first.x.size)
        self.length = 1.0  # of the latest step
        self._forgotten_at: KnownPoint | None = None  # the best point at which the other pieces were given up
        self._restart()

    def _restart(self) -> None:
        """Curvature with which the steepest piece alone makes a step of the first length."""
        steepest = max(float(np.linalg.norm(self.units * piece.slope)) for piece in self.pieces)
        length = FIRST * max(1.0, 0.1 * self._measured(self.centre.x))
        self.curvature = max(steepest, 1e-12) / length * np.diag(self.units**-2)
        self.length = length
        self.guessed = True

    def step(self, rows: DecisionRows) -> ModelStep | None:
        """The model's minimiser on X; where its program is not solved, of the best point's piece alone, once for every best point."""
        answer = self.lowest(rows)
        if answer is None and self._forgotten_at is not self.centre:
            self._forgotten_at = self.centre
            self.pieces = [self.centre]
            self._restart()
            answer = self.lowest(rows)
        if answer is None:
            return None
        self.length = max(self._measured(answer.d), SHORT * (1.0 + self._measured(self.centre.x)))
        return answer

    def _measured(self, d: Float[np.ndarray, " n"]) -> float:
        """The length of a step in the variables' units."""
        return float(np.linalg.norm(d / self.units))

    def lowest(self, rows: DecisionRows, share: float = 1.0, reach: float = np.inf) -> ModelStep | None:
        """The minimiser on X of the model with a share of its curvature, of the pieces within reach; None where that program is not solved."""
        slopes, errors = self._highest([piece for piece in self.pieces if not self._is_beyond(piece, reach)])
        whole = 1.0 + self._measured(self.centre.x)
        lengths = self.length, float(np.sqrt(self.length * whole)), whole  # in one of them the program is well scaled
        for length in lengths:
            answer = rows.lowest(share * self.curvature, self.centre.x, slopes, errors, length, self.units)
            if answer is not None:
                return ModelStep(answer[0], max(0.0, -answer[1]))
        return None

    def forget_refuted(self, by: KnownPoint, above: float, reach: float) -> bool:
        """Give up pieces from beyond reach that are above f at a point nearby, as none of a convex f is; whether there were some."""
        kept = [
            piece
            for piece in self.pieces
            if not (self._is_beyond(piece, reach) and piece.value + float((by.x - piece.x) @ piece.slope) > by.value + above)
        ]
        some = len(kept) < len(self.pieces)
        self.pieces = kept
        return some

    def _is_beyond(self, piece: KnownPoint, reach: float) -> bool:
        return float(np.linalg.norm(piece.x - self.centre.x)) > reach

    def _highest(self, pieces: list[KnownPoint]) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, " k"]]:
        """Slopes and errors of some pieces, of those with one slope the highest alone."""
        errors = np.array([abs(self._error(piece)) for piece in pieces])
        slopes = np.array([piece.slope for piece in pieces])
        along = slopes @ np.cos(np.arange(slopes.shape[1]) ** 2.0)  # in no special direction, where slopes that differ do so too
        order = np.argsort(along)
        apart = np.diff(along[order], prepend=-np.inf) > SAME_SLOPE * (1.0 + np.abs(slopes[order]).max(axis=1))
        kinds = np.cumsum(apart)
        lowest = np.lexsort((errors[order], kinds))
        kept = np.sort(order[lowest[np.diff(kinds[lowest], prepend=0) > 0]])
        return slopes[kept], errors[kept]

    def _error(self, piece: KnownPoint) -> float:
        """How far a linear piece is below f at the best point."""
        return self.centre.value - piece.value - float((self.centre.x - piece.x) @ piece.slope)

    def cuts(self, piece: KnownPoint, step: ModelStep) -> bool:
        """Whether the model with this piece no longer promises the step's decrease."""
        return -abs(self._error(piece)) + float(piece.slope @ step.d) >= -0.5 * step.decrease

    def add(self, piece: KnownPoint) -> None:
        """Keep what was learnt; the oldest pieces are forgotten."""
        self.pieces = [*self.pieces[-(3 * piece.x.size + KEPT) :], piece]
        if all(kept is not self.centre for kept in self.pieces):
            self.pieces.append(self.centre)
        if self.guessed and piece.slope.any() and not any(kept.slope.any() for kept in self.pieces if kept is not piece):
            self._restart()

    def move(self, to: KnownPoint) -> None:
        self.centre = to
        self.add(to)

    def stiffen(self, factor: float) -> None:
        """Ask for shorter steps."""
        self.curvature = factor * self.curvature

    def flatten(self, place: int, curvature: float) -> None:
        """Take a variable's curvature to be this much, and its unit longer in proportion."""
        share = np.ones(self.units.size)
        share[place] = np.sqrt(curvature / self.curvature[place, place])
        self.curvature = share[:, None] * self.curvature * share
        self.units = self.units / share

    def learn(self, before: KnownPoint) -> None:
        """Learn curvature from the way to the best point, by Powell's damped BFGS update.

        Across a kink the gradient changes more than it curves: then the pair is that of the piece whose gradient differs least for
        its distance, another one of the same smooth piece.
        """
        new = self.centre
        far = 1e-12 * (1.0 + self._measured(new.x))
        pairs = [
            ((new.x - piece.x) / self.units, (new.slope - piece.slope) * self.units)
            for piece in [before, *self.pieces[-(2 * new.x.size + RECENT) :]]
            if self._measured(new.x - piece.x) > far
        ]
        if not pairs:
            return
        quotients = [float(np.linalg.norm(y) / np.linalg.norm(s)) for s, y in pairs]
        s, y = pairs[0] if quotients[0] <= KINK * min(quotients) else pairs[int(np.argmin(quotients))]
        curvature = self.units[:, None] * self.curvature * self.units
        product = curvature @ s
        model, seen = float(s @ product), float(s @ y)
        share = 1.0 if seen >= DAMPING * model else (1.0 - DAMPING) * model / (model - seen)
        y = share * y + (1.0 - share) * product
        updated = curvature - np.outer(product, product) / model + np.outer(y, y) / float(s @ y)
        values, vectors = np.linalg.eigh(0.5 * (updated + updated.T))
        curvature = (vectors * np.maximum(values, SPREAD * values[-1])) @ vectors.T
        self.curvature = curvature / self.units[:, None] / self.units
        self.guessed = False


AT_REST = "at rest"
UNBOUNDED = "f seems unbounded below"
# of a step: the least decrease, its share where f has no value, the longest one in radii so far, and the shares tried at most
ENOUGH, MISSING, FAR = 0.1, 0.2, 10.0
STEEP = 1e6  # times f and what is promised, that f rises by where its slope says nothing of here
SHORTEST, FURTHEST = 1e-10, 64.0
ALIKE, ROUNDING = 10.0, 1e-15  # how many times itself f may fall in the last epoch; what of a fall is nothing
NOTHING = 1e-20  # of what a first step promised, to a later one
BOTTOM = -1e18  # of f, oriented for minimisation, in units of 1 + |f| at the start
# radii, relative, within which a point is looked around before it is called at rest, and how many points are asked there
LOOKS, NEIGHBOURS = (1e-3, 1e-5), 6
# before rest, along each variable: how far beyond the model's step, in it, what decrease counts, in the accuracy's, and the furthest, in 1 + |x|
BEYOND, COUNTS, FURTHER = 64.0, 4.0, 1e4
# shares of the curvature that longer steps are made with then, and how many steps from a point, beside two for each variable
LOOSER, MOST = (1e-3, 1e-6), 10

# of 1 + |x|, how long the model's steps may be at rest; of f, what it may rise by on the way there, which is rounding
SETTLED, EQUAL = 1e-8, 1e-15

Asks = Generator[np.ndarray, KnownPoint | None, str]
Asked = Generator[np.ndarray, KnownPoint | None, bool]


class Descent:
    """A search: ``asks()`` yields points of X, is sent what f is there (None: no value), and returns why it ended.

    ``bundle`` is what is known of f, ``bundle.centre`` the best point; ``steepness`` the length of the latest model's gradient there, the constraints of X
    included, of f's before the first step; ``share`` that of the latest step that was tried; ``promises`` how much lower the model says that f gets.
    """

    def __init__(self, oracle: ImplicitOracle, rows: DecisionRows, first: KnownPoint, accuracy: float) -> None:
        self.oracle, self.rows, self.accuracy = oracle, rows, accuracy
        self.bundle = Bundle(first)
        self.begun, self._first_value = first.x, first.value
        self._since, self._epoch = first.value, 1  # f where the latest epoch began
        self._most = 0.0  # that a first step promised
        self._promised: float | None = None  # by the first step in these units
        self.steepness, self.share = float(np.linalg.norm(first.slope)), 0.0
        self.promises = np.inf
        self._longer, self._longer_from = 0, first  # longer steps tried from a point
        self._far_from: KnownPoint | None = None  # the point that was looked far from
        self._missed = False  # whether f had no value on the latest step
        self._bounded = False  # whether the rows say where Y(x) is empty

    @property
    def best(self) -> KnownPoint:
        return self.bundle.centre

    @property
    def _scale(self) -> float:
        """What f is measured by: its size, its fall in this epoch, and what the first step promised."""
        value = self.bundle.centre.value
        return abs(value) + abs(self._since - value) + (self._promised or 0.0)

    def _fell_far(self) -> bool:
        """Whether f fell so far in this epoch that what is small beside that is not beside f; another epoch begins then.

        A minimum of zero is small beside nothing: what is rounding beside all of the fall is taken for zero.
        """
        value = self.bundle.centre.value
        nothing = abs(value) <= ROUNDING * abs(self._first_value - value)
        if (nothing and self._epoch > 1) or abs(self._since - value) + (self._promised or 0.0) <= ALIKE * abs(value):
            return False
        self._epoch += 1
        self._since, self._promised = value, 0.0
        return True

    @property
    def _all_gained(self) -> bool:
        """Whether f is as good as zero beside all of its fall, after an epoch that ended at rest."""
        value = self.bundle.centre.value
        return self._epoch > 1 and abs(value) <= self.accuracy * abs(self._first_value - value)

    def asks(self) -> Asks:
        """Descend until nothing more is promised."""
        looks = stuck = 0
        while True:
            if self.bundle.centre.value < BOTTOM * (1.0 + abs(self._first_value)):
                return UNBOUNDED
            step = self.bundle.step(self.rows)
            if step is None:
                return AT_REST if self._all_gained else STUCK
            self.steepness = float(np.linalg.norm(self.bundle.curvature @ step.d))
            self.promises = step.decrease
            if self._promised is None:
                self._promised = step.decrease
                self._most = max(self._most, step.decrease)
            if step.decrease <= max(self.accuracy * self._scale, NOTHING * self._most):
                if self._fell_far():
                    yield from self._look_far(step)
                    continue
                if looks < len(LOOKS):
                    yield from self._look_around(LOOKS[looks])
                    looks += 1
                    continue
                if (yield from self._look_nearer()):
                    continue
                best = self.bundle.centre
                far = self._far_from is not best and (yield from self._look_far(step))
                self._far_from = best
                if not (far or (yield from self._look_longer()) or (yield from self._settle())):
                    return AT_REST
                looks = looks if self.bundle.centre is best else 0
                continue
            before = self.bundle.centre
            if (yield from self._along(step)):
                stuck = 0
                looks = looks if self.bundle.centre is before else 0
            elif self._sees_the_edge():
                continue
            elif stuck:
                if self._all_gained:
                    return AT_REST
                return EDGE if self._missed and self.oracle.outside else STUCK
            else:
                stuck += 1
                yield from self._look_around(LOOKS[-1])

    def _along(self, step: ModelStep) -> Asked:
        """Try the step, and shorter ones, until f is lower or the model has learnt; whether either came about."""
        x, value = self.bundle.centre.x, self.bundle.centre.value
        reach = FAR * (1.0 + float(np.linalg.norm(x - self.begun)))
        share = min(1.0, reach / max(float(np.linalg.norm(step.d)), 1e-300))
        whole, self._missed = share == 1.0, False
        while share > SHORTEST:
            self.share = share
            tried = yield x + share * step.d
            if tried is None:
                self._missed = True
                if self.oracle.empty and not self._bounded:
                    return False
                share *= MISSING
            elif tried.value <= value - ENOUGH * share * step.decrease:
                before = self.bundle.centre
                self.bundle.move(tried)
                if whole and share == 1.0:
                    yield from self._further(x, step)
                self.bundle.learn(before)
                return True
            elif tried.value - value > STEEP * (step.decrease + self._scale):
                share *= MISSING
            else:
                cuts = self.bundle.cuts(tried, step)
                self.bundle.add(tried)
                if cuts:
                    if share < 1.0:
                        self.bundle.stiffen(min(4.0, 1.0 / share))
                    return True
                share *= 0.5 if share == 1.0 else 0.3
        return False

    def _further(self, x: np.ndarray, step: ModelStep) -> Generator[np.ndarray, KnownPoint | None, None]:
        """Double a step from x along which f still falls steeply, as far as X reaches; along a curved boundary of X too."""
        share = 2.0
        while share <= FURTHEST and float(self.bundle.centre.slope @ step.d) < -0.5 * step.decrease:
            to = x + share * step.d
            inside = self.oracle.inside(to)
            if self.rows.polyhedral and np.linalg.norm(inside - to) > 1e-9 * (1.0 + np.linalg.norm(to)):
                return
            self.share = share
            tried = yield inside
            if tried is None:
                return
            if tried.value >= self.bundle.centre.value:
                self.bundle.add(tried)
                return
            self.bundle.move(tried)
            share *= 2.0

    def _look_around(self, radius: float) -> Generator[np.ndarray, KnownPoint | None, None]:
        """Learn the gradients of random points of X nearby."""
        self.share = 0.0
        x = self.bundle.centre.x
        count = min(self.begun.size + 1, NEIGHBOURS)
        directions = [self.oracle.direction(x.size) for _ in range((count + 1) // 2)]
        reach = radius * (1.0 + float(np.linalg.norm(x)))
        for away in [sign * d for d in directions for sign in (1.0, -1.0)]:  # both sides of a kink
            tried = yield self.oracle.inside(x + reach * away)
            if tried is None:
                continue
            if tried.value < self.bundle.centre.value:
                self.bundle.move(tried)
            else:
                self.bundle.add(tried)

    def _look_nearer(self) -> Asked:
        """Whether pieces from far away that alone call this rest are refuted, where the others promise that f falls."""
        x = self.bundle.centre.x
        reach = LOOKS[0] * (1.0 + float(np.linalg.norm(x)))
        step = self.bundle.lowest(self.rows, reach=reach)
        if step is None or step.decrease <= self.accuracy * self._scale:
            return False
        self.share = min(1.0, reach / max(float(np.linalg.norm(step.d)), 1e-300))
        tried = yield x + self.share * step.d
        if tried is None:
            return False
        refuted = self.bundle.forget_refuted(tried, ENOUGH * self.share * step.decrease, reach)
        if tried.value < self.bundle.centre.value:
            self.bundle.move(tried)
        else:
            self.bundle.add(tried)
        return refuted

    def _look_far(self, step: ModelStep) -> Asked:
        """Whether f falls as the model's gradient says much further than the model goes: against it, or along a variable.

        The model begins with one curvature for all directions, and calls rest where the steps of a variable in small units promise
        nothing. That variable's unit is changed then.
        """
        self.share = 0.0
        gradient, before = -self.bundle.curvature @ step.d, self.bundle.centre
        steep = float(np.linalg.norm(gradient))
        if not steep:
            return False
        falls = bool((yield from self._far_along(-gradient / steep, steep, float(np.linalg.norm(step.d)))))
        if falls:
            self.bundle.learn(before)
        for place, slope in enumerate(gradient):
            if not slope:
                continue
            way = np.zeros(self.begun.size)
            way[place] = -np.sign(slope)
            gone = yield from self._far_along(way, abs(slope), abs(slope) / self.bundle.curvature[place, place])
            if gone:
                self.bundle.flatten(place, abs(slope) / gone)
                self._promised = None  # it was made in other units
                falls = True
        return falls

    def _look_longer(self) -> Asked:
        """Whether models with much less curvature promise more, and f falls as they do, or they learn that it does not.

        Across kinks a curvature that was learnt, or guessed, in small units hides how far the pieces themselves fall.
        """
        before, x = self.bundle.centre, self.bundle.centre.x
        for share in LOOSER:
            step = self.bundle.lowest(self.rows, share)
            if step is None or step.decrease <= self.accuracy * self._scale:
                continue
            if self._longer_from is not self.bundle.centre:
                self._longer_from, self._longer = self.bundle.centre, 0
            if self._longer == 2 * x.size + MOST:
                return False
            self._longer += 1
            tried = yield x + step.d
            if tried is None:
                continue
            if tried.value <= before.value - ENOUGH * step.decrease:
                self.bundle.move(tried)
                self.bundle.stiffen(share)
                return True
            if self.bundle.cuts(tried, step):
                self.bundle.add(tried)
                return True
        return False

    def _settle(self) -> Asked:
        """Go on while the model's steps are long and f does not rise: where f is flat, x is far from rest when f has nothing to gain.

        Whether the model promises more then, as where f begins to fall off a ridge.
        """
        for _ in range(2 * self.begun.size + MOST):
            before, step = self.bundle.centre, self.bundle.step(self.rows)
            length = 0.0 if step is None else float(np.linalg.norm(step.d))
            if step is None or length <= SETTLED * (1.0 + float(np.linalg.norm(before.x))):
                return False
            if step.decrease > self.accuracy * self._scale and step.decrease > NOTHING * self._most:
                return True
            self.share, most = 1.0, before.value + EQUAL * abs(before.value)
            tried = yield before.x + step.d
            if tried is not None and tried.value > most:  # the share that is best by the slopes at both ends
                falls, rises = float(before.slope @ step.d), float(tried.slope @ step.d)
                if not falls < 0 < rises:
                    return False
                self.share = falls / (falls - rises)
                tried = yield before.x + self.share * step.d
            if tried is None or tried.value > most:
                return False
            self.bundle.move(tried)
            self.bundle.learn(before)
            self.steepness = float(np.linalg.norm(self.bundle.curvature @ step.d))
        return False

    def _far_along(
        self, way: np.ndarray, steep: float, length: float
    ) -> Generator[np.ndarray, KnownPoint | None, float]:
        """How far f falls along a unit vector at least half as steeply as that, from much more than a length on."""
        gone, length = 0.0, max(BEYOND * length, COUNTS * self.accuracy * self._scale / steep)
        while length <= FURTHER * (1.0 + float(np.abs(way) @ np.abs(self.bundle.centre.x))):
            to, value = self.bundle.centre.x + length * way, self.bundle.centre.value
            if np.abs(self.oracle.inside(to) - to).max() > 1e-9 * length:
                break
            tried = yield to
            if tried is None or not tried.value < value - 0.5 * steep * length:
                break
            self.bundle.move(tried)
            gone += length
            length *= BEYOND
        return gone

    def _sees_the_edge(self) -> bool:
        """Whether the rows have just learnt where Y(x) is not empty."""
        if self._bounded or not self.oracle.empty:
            return False
        self._bounded = True
        rows = DecisionRows.with_answers(self.oracle.problem)
        if rows is None:
            return False
        self.rows = rows
        return True
