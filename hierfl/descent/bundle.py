"""What is known of f from the points that have been asked: linear pieces, and one curvature for all of them.

The model of f around the best point x is  v(d) + d' B d / 2  with  v(d) = max_i g_i' d - |e_i|,  where e_i is the error at x of the
linear piece of the point x_i. For a convex f without curvature these are its cutting planes; elsewhere a piece that lies above f at x
is lowered below it, as in bundle methods for nonconvex functions (Lukšan and Vlček, 1998; Mäkelä, 2002).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hierfl.descent.decision_rows import DecisionRows
from hierfl.descent.implicit_oracle import KnownPoint

FIRST = 1.0  # length of the first step, relative to max(1, |x| / 10)
SHORT = 1e-6  # relative: steps that models are not written in units of
ALIKE = 1e-12  # relative: slopes that are one
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
        answer = self._lowest(rows)
        if answer is None and self._forgotten_at is not self.centre:
            self._forgotten_at = self.centre
            self.pieces = [self.centre]
            self._restart()
            answer = self._lowest(rows)
        if answer is None:
            return None
        self.length = max(self._measured(answer.d), SHORT * (1.0 + self._measured(self.centre.x)))
        return answer

    def looser_step(self, rows: DecisionRows, share: float) -> ModelStep | None:
        """The minimiser on X of the model with a share of its curvature; None where that program is not solved."""
        return self._lowest(rows, share)

    def _measured(self, d: Float[np.ndarray, " n"]) -> float:
        """The length of a step in the variables' units."""
        return float(np.linalg.norm(d / self.units))

    def _lowest(self, rows: DecisionRows, share: float = 1.0) -> ModelStep | None:
        slopes, errors = self._highest()
        whole = 1.0 + self._measured(self.centre.x)
        lengths = self.length, float(np.sqrt(self.length * whole)), whole  # in one of them the program is well scaled
        for length in lengths:
            answer = rows.lowest(share * self.curvature, self.centre.x, slopes, errors, length, self.units)
            if answer is not None:
                return ModelStep(answer[0], max(0.0, -answer[1]))
        return None

    def _highest(self) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, " k"]]:
        """Slopes and errors of the pieces, of those with one slope the highest alone."""
        errors = np.array([abs(self._error(piece)) for piece in self.pieces])
        slopes = np.array([piece.slope for piece in self.pieces])
        kept: list[int] = []
        for place in np.argsort(errors, kind="stable"):
            apart = np.abs(slopes[kept] - slopes[place]).max(axis=1, initial=0.0)
            if not kept or apart.min() > ALIKE * (1.0 + np.abs(slopes[place]).max()):
                kept.append(int(place))
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
        if self.guessed and piece.slope.any() and not self.centre.slope.any():
            self._restart()

    def move(self, to: KnownPoint) -> None:
        """Go to a better point."""
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
