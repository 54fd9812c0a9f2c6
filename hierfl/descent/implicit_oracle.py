"""f and its gradient at points of X, the lower level solved exactly; a point without them is not the end of a search."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.implicit_differentiation import evaluated_with_gradient
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.lower_level.diagnosis import require_defined
from hierfl.compiler.starting_points import on_upper_set
from hierfl.descent.answers import FAILURES, VALUE, Answers, OracleAnswer, random_words, set_random_words
from hierfl.errors import DivergedError, EmptyLowerSetError, HierflError, LowerLevelError, NoGradientError

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
