"""f at points of X, with differences of it where it has no gradients: n + 1 values a point.

They are as far apart as the values are exact to: so far that what rounding, or a lower level that is iterated on, leaves in them is
no more in the slope than f's curvature over that distance (Nocedal and Wright, 2006, section 8.1). How exact they are is seen from the
differences of high order of a few values next to each other, which a smooth f does not change (Moré and Wild, 2011).
"""

from __future__ import annotations

from functools import cached_property
from math import comb

import numpy as np
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.starting_points import on_upper_set
from hierfl.descent.answers import Answers
from hierfl.descent.implicit_oracle import ImplicitOracle, KnownPoint
from hierfl.errors import DivergedError, EmptyLowerSetError, LowerLevelError, NoGradientError
from hierfl.language.function import uses_black_box

# of 1 + |x|, how far away, and at how many places, noise is looked for, that a kink hides; how far apart values lie there, and how many
AWAY, PLACES, ROW = 1e-3, 2, 6
NEXT, FURTHER = (1e-7, 1.6e-5), 1.6e-3  # those that are rounded to some digits may be alike, or go evenly, where they are very near
ROUNDING, COARSEST = 1e-16, 1e-4  # of 1 + |f|: the least noise, and the largest that differences are taken beside
UNSEEN = 1e-8  # of 1 + |f|: the noise where values are alike all around, or missing
THIN = 1e-4  # of the moves that X leaves, what is none


class DifferenceOracle(ImplicitOracle):
    """Answers with f and a slope made of its values.

    Each variable is moved to the side on which more of the move is left in X; the slope is the shortest one that explains
    what the values changed by, so that it lies along X where X has no inside. Where f has no value nearby less is known of it.
    """

    def __init__(self, problem: CompiledProblem, seed: int, answers: Answers | None = None, *, start: Float[np.ndarray, " n"]) -> None:
        super().__init__(problem, seed, answers)
        self._start, self._seed = start, seed

    @cached_property
    def distance(self) -> float:
        """How far apart values are, relative to 1 + |x|: the root of their noise, relative to 1 + |f|."""
        return float(np.sqrt(self._noise()))

    def _required(self, x: Float[np.ndarray, " n"]) -> KnownPoint:
        evaluation = self._evaluated_at(x)
        value = float(evaluation.value)
        lengths = self.distance * (1.0 + np.abs(x))
        sides = np.stack([on_upper_set(self.problem, x + sign * np.diag(lengths)) - x for sign in (1.0, -1.0)], axis=1)
        kept = np.linalg.norm(sides, axis=2)
        moves, changes = [], []
        for both, (ahead, behind), length in zip(sides, kept, lengths):
            for move in both if ahead >= 0.5 * behind else both[::-1]:
                if move.any() and np.isfinite(change := self._value(x + move) - value):
                    moves.append(move / length)  # variables may be of different sizes
                    changes.append(change / length)
                    break
        if not kept.any():  # X is a point
            return KnownPoint(x, value, np.zeros(x.size), evaluation)
        if not moves:
            raise NoGradientError(f"f has a value at x = {np.array2string(x, threshold=8)}, but at no point of X next to it.")
        return KnownPoint(x, value, np.linalg.lstsq(np.array(moves), np.array(changes), rcond=THIN)[0], evaluation)

    def _evaluated_at(self, x: Float[np.ndarray, " n"]) -> Evaluation:
        """f at a point of X, with its errors."""
        self.asked += 1
        evaluation = self.problem.exact.at(x)
        self._require_in_reach(x, evaluation)
        return evaluation

    def _value(self, x: Float[np.ndarray, " n"]) -> float:
        try:
            return float(self._evaluated_at(x).value)
        except (EmptyLowerSetError, LowerLevelError, DivergedError):
            return np.nan

    def _noise(self) -> float:
        """What the values err by, relative to 1 + |f|: by the lower level's residual and, of black boxes, by what they show nearby."""
        evaluation, random = self.problem.exact.at(self._start), np.random.default_rng(self._seed)
        solution = evaluation.solution
        left = ROUNDING if solution is None else max(ROUNDING, float(np.max(solution.residual, initial=0.0)))
        if uses_black_box(self.problem.declaration.objective.terms) is not None:
            shown = [self._shown_along(random.standard_normal(self._start.size)) for _ in range(PLACES)]
            seen = [noise for noise in shown if noise is not None]
            left = max(left, min(seen) / (1.0 + abs(float(evaluation.value))) if seen else UNSEEN)
        return min(left, COARSEST)

    def _shown_along(self, way: Float[np.ndarray, " n"]) -> float | None:
        """The standard deviation of the noise, from the highest differences of values in a row along a direction; None where these tell nothing."""
        way = way * (1.0 + np.linalg.norm(self._start)) / np.linalg.norm(way)
        sides = [self.inside(self._start + sign * AWAY * way) - self._start for sign in (1.0, -1.0)]
        way = way if np.linalg.norm(sides[0]) >= np.linalg.norm(sides[1]) else -way  # into X
        shown = [self._shown_by(way, apart) for apart in NEXT]
        if not any(shown):
            shown.append(self._shown_by(way, FURTHER))
        told = [noise for noise in shown if noise]
        return max(told) if told and None not in shown else None

    def _shown_by(self, way: Float[np.ndarray, " n"], apart: float) -> float | None:
        """The same by values that lie so far apart: 0 where they are all alike, None where some are missing."""
        table = np.array([self._value(self.inside(self._start + (AWAY + place * apart) * way)) for place in range(ROW)])
        if not np.isfinite(table).all():
            return None
        estimates = []
        for order in range(1, ROW):
            table = np.diff(table)
            estimates.append(float(np.sqrt(np.mean(table**2) / comb(2 * order, order))))
        return min(estimates[2:]) if estimates[0] else 0.0
