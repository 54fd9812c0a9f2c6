"""f and its gradient at points of X, the lower level solved exactly; a point without them is not the end of a search.

What a search was answered is kept, question by question: given the same answers again it comes to the same place, and asks on from there.

Where f has no gradients they are made of differences of it, n + 1 values a point, as far apart as the values are exact to: so far that what
rounding, or a lower level that is iterated on, leaves in them is no more in the slope than f's curvature over that distance (Nocedal and
Wright, 2006, section 8.1). How exact they are is seen from the differences of high order of a few values next to each other, which a smooth f
does not change (Moré and Wild, 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import comb
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt64

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.implicit_differentiation import evaluated_with_gradient
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.lower_level.diagnosis import require_defined
from hierfl.compiler.starting_points import on_upper_set
from hierfl.errors import DivergedError, EmptyLowerSetError, HierflError, LowerLevelError, NoGradientError
from hierfl.language.function import uses_black_box

FAILURES: tuple[type[HierflError], ...] = (EmptyLowerSetError, LowerLevelError, DivergedError, NoGradientError)
VALUE = len(FAILURES)
WORD = 2**64


class OracleAnswer(NamedTuple):
    """f and its gradient at a point of X, or the place of an error in ``FAILURES``; and the state of the random numbers after it.

    ``y`` is where an iteration on the lower level begins next, (owners, size); (0,) without one.
    """

    kind: int
    x: Float[np.ndarray, " n"]
    value: float
    slope: Float[np.ndarray, " n"]
    random: UInt64[np.ndarray, " 4"]
    y: np.ndarray


@dataclass
class Answers:
    """The answers so far; those after the first ``replayed`` are given again before anything new is asked."""

    all: list[OracleAnswer] = field(default_factory=list)
    replayed: int = 0

    @classmethod
    def of(cls, kept: Sequence[np.ndarray]) -> Answers:
        """Those of :meth:`kept`, to be given again."""
        return cls([OracleAnswer(int(kind), x, float(value), *rest) for kind, x, value, *rest in zip(*kept)])

    @property
    def replaying(self) -> bool:
        """Whether there is an answer that was not given again."""
        return self.replayed < len(self.all)

    def again(self) -> OracleAnswer:
        self.replayed += 1
        return self.all[self.replayed - 1]

    def add(self, answer: OracleAnswer) -> None:
        self.all.append(answer)
        self.replayed += 1

    def kept(self, rounds: int) -> list[Any]:
        """The answers of the first rounds, as arrays."""
        return [np.array(column) for column in zip(*self.all[:rounds])]


def random_words(random: np.random.Generator) -> UInt64[np.ndarray, " 4"]:
    """The state of PCG-64 as numbers; its increment is the seed's."""
    state: Any = random.bit_generator.state
    words = [*divmod(state["state"]["state"], WORD), state["has_uint32"], state["uinteger"]]
    return np.array(words, np.uint64)


def set_random_words(random: np.random.Generator, words: UInt64[np.ndarray, " 4"]) -> None:
    """Go on with the random numbers from such a state."""
    state: Any = random.bit_generator.state
    high, low, has, last = map(int, words)
    state["state"]["state"] = high * WORD + low
    state["has_uint32"], state["uinteger"] = has, last
    random.bit_generator.state = state


# --- f and its gradient ------------------------------------------------------------------------------------------------

NEARBY = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)  # relative: where a gradient is looked for if there is none at a point
AVERAGED = 8
LARGEST = 1e40  # of |f|, beyond which a point has no value for a search


class KnownPoint(NamedTuple):
    """f at a point of X, oriented for minimisation, its gradient there or next to it, and the evaluation.

    Where it was answered before that is None, and ``warm`` is where an iteration on the lower level began then.
    """

    x: Float[np.ndarray, " n"]
    value: float
    slope: Float[np.ndarray, " n"]
    evaluation: Evaluation | None
    warm: np.ndarray | None = None


class ImplicitOracle:
    """Answers with f and its gradient; ``failure`` is the last error, and ``empty`` whether it was that Y(x) is empty.

    ``answers`` keeps what was answered; those that it has already are given again. ``asked`` counts the points at which the lower level
    was solved for an answer, those next to a kink among them.
    """

    def __init__(self, problem: CompiledProblem, seed: int, answers: Answers | None = None) -> None:
        self.problem = problem
        self.random = np.random.default_rng(seed)
        self.failure: HierflError | None = None
        self.answers = answers
        self.asked = 0
        self._latest: np.ndarray | None = None  # y where it was asked last, which is near where it is asked next, if y is iterated on
        self._evaluated: tuple[KnownPoint, Evaluation] | None = None

    @property
    def empty(self) -> bool:
        """Whether the last point without an answer had an empty Y(x)."""
        return isinstance(self.failure, EmptyLowerSetError)

    @property
    def outside(self) -> bool:
        """Whether f is not defined at the last point without an answer: Y(x) is empty, or a term has no value."""
        return isinstance(self.failure, (EmptyLowerSetError, DivergedError))

    @property
    def without_gradient(self) -> bool:
        """Whether the last point without an answer had a value but no gradient."""
        return isinstance(self.failure, NoGradientError)

    def __call__(self, x: Float[np.ndarray, " n"]) -> KnownPoint | None:
        """The answer at x, which rounding may have put outside X; None where f has no value, and ``failure`` then says why."""
        if self.answers is not None and self.answers.replaying:
            return self._again(self.answers)
        inside = self.inside(x)
        try:
            point = self._required(inside)
        except FAILURES as error:
            self.failure = error
            kind = next(place for place, failure in enumerate(FAILURES) if isinstance(error, failure))
            self._keep(kind, inside, float("nan"), np.full(inside.size, np.nan))
            return None
        self._keep(VALUE, inside, point.value, point.slope)
        return point

    def _again(self, answers: Answers) -> KnownPoint | None:
        answer = answers.again()
        set_random_words(self.random, answer.random)
        before, self._latest = self._latest, answer.y if answer.y.size else None
        if answer.kind != VALUE:
            self.failure = FAILURES[answer.kind]("as it was answered before")
            return None
        return KnownPoint(answer.x, answer.value, answer.slope, None, before)

    def _keep(self, kind: int, x: np.ndarray, value: float, slope: np.ndarray) -> None:
        if self.answers is not None:
            y = np.zeros(0) if self._latest is None else self._latest
            self.answers.add(OracleAnswer(kind, x, value, slope, random_words(self.random), y))

    def evaluation(self, point: KnownPoint) -> Evaluation:
        """The evaluation at a known point, made again where the point was answered before."""
        if point.evaluation is not None:
            return point.evaluation
        if self._evaluated is None or self._evaluated[0] is not point:
            self._evaluated = point, self.problem.exact.at(point.x, point.warm)
        return self._evaluated[1]

    def require(self, x: Float[np.ndarray, " n"]) -> KnownPoint:
        """The answer at a point of X.

        Raises ``EmptyLowerSetError``, ``LowerLevelError``, ``DivergedError`` where f has no value. Raises
        ``NoGradientError`` where f has no gradient at x, nor at any of some points next to it.
        """
        if self.answers is not None and self.answers.replaying:
            point = self._again(self.answers)
            assert point is not None  # a run without a value at its start has not begun
            return point
        point = self._required(x)
        self._keep(VALUE, x, point.value, point.slope)
        return point

    def _required(self, x: Float[np.ndarray, " n"]) -> KnownPoint:
        self.asked += 1
        evaluation, slope = evaluated_with_gradient(self.problem, x, self._latest)
        method, solution = self.problem.exact.method, evaluation.solution
        if method is not None and method.iterative and solution is not None and np.isfinite(solution.y).all():
            self._latest = np.asarray(solution.y)
        self._require_in_reach(x, evaluation)
        if not np.isfinite(slope).all():
            slope = self._slope_nearby(x)
        return KnownPoint(x, float(evaluation.value), slope, evaluation)

    def _slope_nearby(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The gradient next to a kink: almost every point has one."""
        failures: list[LowerLevelError] = []
        for radius in NEARBY:
            near = np.mean([self.around(x, radius) for _ in range(AVERAGED)], axis=0)  # off the bounds that x is on
            self.asked += 1
            try:
                slope = evaluated_with_gradient(self.problem, near)[1]
            except EmptyLowerSetError:
                continue
            except LowerLevelError as error:
                failures.append(error)
                continue
            if np.isfinite(slope).all():
                return slope
        if len(failures) == len(NEARBY):  # f has no value there either
            raise failures[-1]
        raise NoGradientError(f"f has no gradient at x = {np.array2string(x, threshold=8)}, nor next to it.")

    def around(self, x: Float[np.ndarray, " n"], radius: float) -> Float[np.ndarray, " n"]:
        """A random point of X next to x, ``radius`` relative to 1 + |x|."""
        return self.inside(x + radius * (1.0 + np.linalg.norm(x)) * self.direction(x.size))

    def direction(self, size: int) -> Float[np.ndarray, " n"]:
        """A random vector, about of length 1."""
        return self.random.standard_normal(size) / np.sqrt(size)

    def upper_limits(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]] | None:
        """Bounds that are all of X, infinite where there are none; None where X is no box."""
        known = self.problem.known_upper_set
        if known.kind not in ("free", "box"):
            return None
        low, high = known.limits(self.problem.laid_out().clients.public)
        return np.asarray(low), np.asarray(high)

    def inside(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        if self.problem.known_upper_set.kind == "free":
            return x
        return on_upper_set(self.problem, x[None])[0]

    def _require_in_reach(self, x: Float[np.ndarray, " n"], evaluation: Evaluation) -> None:
        if abs(float(evaluation.value)) <= LARGEST:
            return
        require_defined(self.problem, x, evaluation)
        raise DivergedError(
            f"f is {self.problem.sign * float(evaluation.value):.3g} at x = {np.array2string(x, threshold=8)}, too large to descend on: "
            f"give x0, bound X, or write it in other units."
        )


# --- differences -----------------------------------------------------------------------------------------------------------

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
