"""A bundle method on the implicit function: exact values and gradients, or differences of values, no step sizes, for problems whose data are all here.

Where ``ImplicitGradient`` takes a step of a given size, this method minimises a model of f over X: kinks of f are pieces of the model,
and the constraints on x are constraints of its steps (``hierfl.descent``). In many variables, or where X has cones that such a model
does not, the model is a limited-memory one that knows kinks along variables, and X is projected on. One round is one question to all clients: the value of their
terms at a trial point, and the gradient. The method needs the lower level solved exactly and every answer at hand, so that it runs in
this process only; in a federation whose clients are elsewhere ``ImplicitGradient`` asks the same question by messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.implicit_differentiation import Hypergradient
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.descent.basin_hopping import BasinHopping, Search
from hierfl.descent.decision_rows import DecisionRows
from hierfl.descent.implicit_oracle import Answers, DifferenceOracle, ImplicitOracle, KnownPoint
from hierfl.descent.limited_search import LimitedDescent
from hierfl.descent.search import Descent
from hierfl.errors import HierflError, RestWarning, SettingError, warn
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Visit
from hierfl.runtime.records import History
from hierfl.solvers.parts.best_point import BestPoint, BoundSearch
from hierfl.solvers.parts.requirements import require_choice, require_count, require_gradients, require_number

# variables up to which models have all pieces and a whole matrix, whose steps cost as their third power: at once, and where f asks for them
FEW, MANY = 30, 200


REFUTED = 10.0  # times the accuracy, by which f has to be better than a bound to show that it is none


@suggests_names
@dataclass(frozen=True)
class ImplicitBundle:
    """Settings of the bundle method.

    Parameters
    ----------
    accuracy
        The run is at rest when no more than this is to be gained by the model's step, relative to |f| and to its fall, which after a
        large one is measured anew from there; and when neither gradients of points nearby promise more, nor f falls far beyond the
        model's step against its gradient, along a variable, or by models of less curvature. So variables in very different units are
        found out; units that differ along other directions may not be.
    gradients
        ``"exact"``, or ``"differences"`` of values, n + 1 a point, for terms that have no gradients. The run is at rest then when no more is to be
        gained than the distance over which they are taken, the root of what the values err by (1e-8 where the lower level is solved by a formula or an active set).
    hops
        How often, once it is at rest, it begins again at a random point of X around the best one (monotonic basin hopping; Leary, 2000).
    bound
        A value of f than which none is better; the run is at rest as soon as f is as near to it as ``accuracy``, relative to 1 and to |f|.

    Raises
    ------
    SettingError
        For a setting out of range.
    IncompatibleSolverError
        When bound to a problem without derivatives: a nonsmooth lower level without an active set, a BlackBox.

    Examples
    --------
    >>> from hierfl.solvers import ImplicitBundle
    >>> problem.solve(ImplicitBundle(), rounds=100, progress=False).x.round(1)
    array([-1., -1.])
    """

    accuracy: float = 1e-9
    gradients: Literal["exact", "differences"] = "exact"
    hops: int = 0
    bound: float | None = None
    prices_means: ClassVar[bool] = True  # which all data at hand tell at every point

    def __post_init__(self) -> None:
        require_number(self.accuracy, "accuracy", 0, 1)
        require_choice(self.gradients, "gradients", ("exact", "differences"))
        require_count(self.hops, "hops", least=0)
        if self.bound is not None:
            require_number(self.bound, "bound", -np.inf, np.inf)

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundImplicitBundle:
        if queries != "projected":
            raise SettingError(f"queries={queries!r}: ImplicitBundle asks for points of X only; leave it out.")
        if self.gradients == "exact":
            require_gradients(self, problem)
            Hypergradient.of(problem)  # raises where y(x) has no derivative, before there is a run
        return BoundImplicitBundle(problem, self, _rows(problem))


def _rows(problem: CompiledProblem) -> DecisionRows | None:
    """X as rows, for models that know all pieces; None where steps are those of a limited memory."""
    if problem.upper.size > MANY:
        return None
    try:
        return DecisionRows.of(problem)
    except NoStandardFormError:
        return None


@dataclass(frozen=True, eq=False)
class BoundImplicitBundle(BoundSearch):
    """The method on one problem."""

    settings: ImplicitBundle
    rows: DecisionRows | None
    slope_of: ClassVar[str] = "of its model of f on X"

    def descends(self, rounds: int) -> bool:
        return True

    def gradient_at_most(self, before: Any, after: Any, history: History, first: int) -> float:
        """The length of the model's gradient at the latest best point, that of X's constraints included; no estimate."""
        return float(history["gradient_norm"][-1])

    def visits(self, start: Float[np.ndarray, " n"], seed: int, answers: Answers) -> Iterator[Visit]:
        """One visit for every point that is asked for, the start first; of points that were answered before only where the run stands.

        Raises ``EmptyLowerSetError``, ``LowerLevelError``, ``DivergedError`` or ``NoGradientError`` if f has no value, or no gradient, at
        the start.
        """
        exact = self.settings.gradients == "exact"
        oracle = ImplicitOracle(self.problem, seed, answers) if exact else DifferenceOracle(self.problem, seed, answers, start=start)
        try:
            first = oracle.require(start)
        except HierflError as error:
            error.add_note("The run begins there: give x0, a point of X where f has a value and a gradient.")
            raise
        hopping = BasinHopping(oracle, first, lambda point, pieces: self._search(oracle, point, pieces), self.settings.hops, self._goal)
        asks, answer, told, at_start = hopping.asks(), None, 0, True  # a visit that is replayed was told when it was made
        while True:
            self._hold_bound(hopping, first if answer is None else answer)
            try:
                x = asks.send(answer)
            except StopIteration as end:
                yield self._visit(hopping, end.value, oracle.asked - told, at_start)
                return
            yield self._visit(hopping, None, oracle.asked - told, at_start)
            told, at_start = oracle.asked, False
            answer = oracle(x)

    @property
    def _goal(self) -> float:
        """The value of f, oriented for minimisation, at which nothing more is to be gained."""
        bound = self.settings.bound
        return -np.inf if bound is None else self.problem.sign * bound + self.settings.accuracy * (1.0 + abs(bound))

    def _hold_bound(self, hopping: BasinHopping, best: KnownPoint) -> None:
        """Warn where f is lower than the bound that was given, beyond what both err by, and go on without it."""
        bound, sign = self.settings.bound, self.problem.sign
        if bound is None or hopping.goal == -np.inf or best.value >= sign * bound - REFUTED * self.settings.accuracy * (1.0 + abs(bound)):
            return
        hopping.goal = -np.inf
        at = np.array2string(best.x, threshold=8, precision=6)
        warn(RestWarning(f"bound={bound!r} is none: f is {sign * best.value:.8g} at x = {at}. The run goes on without it."))

    def _search(self, oracle: ImplicitOracle, first: KnownPoint, pieces: bool) -> Search:
        """A search from a point, by a model of all pieces where that is asked for, or x has few variables, if X has rows."""
        accuracy = self.settings.accuracy
        if isinstance(oracle, DifferenceOracle):
            accuracy = max(accuracy, oracle.distance)
        if self.rows is not None and (pieces or first.x.size <= FEW):
            return Descent(oracle, self.rows, first, accuracy)
        return LimitedDescent(oracle, first, accuracy, in_pieces=self.rows is not None)

    def _visit(self, hopping: BasinHopping, ended: str | None, asked: int, first: bool) -> Visit:
        """What the latest answer has come to, for which the lower level was solved at so many points; ``first`` before there was any visit."""
        best, problem, oracle = hopping.best, self.problem, hopping.oracle
        if oracle.answers is not None and oracle.answers.replaying:
            return Visit(BestPoint(best.x, None), {}, ended)
        evaluation = oracle.evaluation(best)
        solution = evaluation.solution
        sides = problem.terms_of(problem.num_clients)
        state = BestPoint(best.x, None if solution is None else np.asarray(solution.y))
        record = {
            "objective": problem.sign * best.value,
            "gradient_norm": hopping.search.steepness if best.value > hopping.goal else 0.0,
            "step_size": hopping.search.share,
            "lower_residual": 0.0 if solution is None else float(np.max(solution.residual)),
            "lower_solves": 0 if solution is None else asked * np.size(solution.residual),
            "gradients" if self.settings.gradients == "exact" else "values": asked * sides,
            **self.sent(asked, self.settings.gradients == "exact"),
            "lower_scalars_up": problem.lower_scalars if first and problem.scope == "federation" else 0,  # the data, once, of a y that clients share
        }
        return Visit(state, record, ended, evaluation)
