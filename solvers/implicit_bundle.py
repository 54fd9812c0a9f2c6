"""A bundle method on the implicit function: exact values and gradients, no step sizes, for problems whose data are all here.

Where ``ImplicitGradient`` takes a step of a given size, this method minimises a model of f over X: kinks of f are pieces of the model,
and the constraints on x are constraints of its steps (``hierfl.descent``). In many variables, or where X has cones that such a model
does not, the model is a limited-memory one that knows kinks along variables, and X is projected on. One round is one question to all clients: the value of their
terms at a trial point, and the gradient. The method needs the lower level solved exactly and every answer at hand, so that it runs in
this process only; in a federation whose clients are elsewhere ``ImplicitGradient`` asks the same question by messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.implicit_differentiation import Hypergradient
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.descent.answers import Answers
from hierfl.descent.decision_rows import DecisionRows
from hierfl.descent.implicit_oracle import ImplicitOracle
from hierfl.descent.limited_search import KINKS, LimitedDescent
from hierfl.descent.search import Descent
from hierfl.errors import HierflError, SettingError
from hierfl.near_names import suggests_names
from hierfl.run_standing import STUCK
from hierfl.runtime.contract import Visit
from hierfl.runtime.records import History
from hierfl.solvers.parts.best_point import BestPoint, BoundSearch
from hierfl.solvers.parts.requirements import require_gradients, require_number

# variables up to which models have all pieces and a whole matrix, whose steps cost as their third power: at once, and where f asks for them
FEW, MANY = 30, 200


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
    prices_means: ClassVar[bool] = True  # which all data at hand tell at every point

    def __post_init__(self) -> None:
        require_number(self.accuracy, "accuracy", 0, 1)

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundImplicitBundle:
        """The algorithm for one problem."""
        if queries != "projected":
            raise SettingError(f"queries={queries!r}: ImplicitBundle asks for points of X only; leave it out.")
        require_gradients(self, problem)
        Hypergradient.of(problem)
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

        Raises
        ------
        EmptyLowerSetError, LowerLevelError, DivergedError, NoGradientError
            If f has no value, or no gradient, at the start.
        """
        oracle = ImplicitOracle(self.problem, seed, answers)
        try:
            first = oracle.require(start)
        except HierflError as error:
            error.add_note("The run begins there: give x0, a point of X where f has a value and a gradient.")
            raise
        accuracy, rows = self.settings.accuracy, self.rows
        if rows is not None and start.size <= FEW:
            descent: Descent | LimitedDescent = Descent(oracle, rows, first, accuracy)
        else:
            descent = LimitedDescent(oracle, first, accuracy, in_pieces=rows is not None)
        asks, answer, told = descent.asks(), None, 0
        while True:
            try:
                x = asks.send(answer)
            except StopIteration as end:
                if rows is not None and isinstance(descent, LimitedDescent) and end.value in (KINKS, STUCK):
                    descent = Descent(oracle, rows, descent.best, accuracy)
                    asks, answer = descent.asks(), None
                    continue
                yield self._visit(descent, end.value, oracle.asked - told, told == 0)
                return
            yield self._visit(descent, None, oracle.asked - told, told == 0)
            told = oracle.asked
            answer = oracle(x)

    def _visit(self, descent: Descent | LimitedDescent, ended: str | None, asked: int, first: bool) -> Visit:
        """What the latest answer has come to, for which the lower level was solved at so many points; ``first`` before there was any visit."""
        best, problem = descent.best, self.problem
        if descent.oracle.answers is not None and descent.oracle.answers.replaying:
            return Visit(BestPoint(best.x, None), {}, ended)
        solution = descent.oracle.evaluation(best).solution
        state = BestPoint(best.x, None if solution is None else np.asarray(solution.y))
        record = {
            "objective": problem.sign * best.value,
            "gradient_norm": descent.steepness,
            "step_size": descent.share,
            "lower_residual": 0.0 if solution is None else float(np.max(solution.residual)),
            "lower_solves": 0 if solution is None else asked * np.size(solution.residual),
            "gradients": asked * (problem.num_clients * (problem.client_program is not None) + (problem.server_program is not None)),
            **self.sent(asked),
            "lower_scalars_up": problem.lower_scalars if first and problem.scope == "federation" else 0,  # the data, once, of a y that clients share
        }
        return Visit(state, record, ended)
