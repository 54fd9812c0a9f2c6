"""Branch and bound on the lower level's optimality conditions, for problems whose data are all here: an optimum that is proved.

The one method for whole numbers among x. Its only round is a search for ``problem.reference(certificate="global")``, which says what is solved,
by whom, and how the bound is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.descent.implicit_oracle import Answers
from hierfl.errors import SettingError
from hierfl.inspect.implicit.reference import Reference
from hierfl.inspect.proved.proof import AGREES, NOT_PROVED, evaluated, proved_reference
from hierfl.jaxtools.interruption import rest
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Visit
from hierfl.runtime.records import History
from hierfl.solvers.parts.best_point import BestPoint, BoundSearch
from hierfl.solvers.parts.requirements import require_number


@suggests_names
@dataclass(frozen=True)
class BranchAndBound:
    """Settings of branch and bound.

    Parameters
    ----------
    gap
        The run ends when f is as near to the proved bound, relative to 1 and to |f|.

    Raises
    ------
    SettingError
        For a setting out of range.
    IncompatibleSolverError
        If the problem is no program that SCIP takes, and x are not few whole numbers; names what is not, and what to write.

    Examples
    --------
    >>> from hierfl.solvers import BranchAndBound
    >>> build = cp.Variable(2, boolean=True, name="build")
    >>> sites = hf.Problem(hf.Minimize(clients=cp.sum(build) + 3 * cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y), [y >= 1 - build]))
    >>> sites.solve(BranchAndBound(), progress=False).x
    array([1., 1.])
    """

    gap: float = 1e-6
    treats_whole_numbers: ClassVar[bool] = True
    keeps_conditions: ClassVar[bool] = True  # upper constraints that mention y, which are rows of its program

    def __post_init__(self) -> None:
        require_number(self.gap, "gap", 0, 1)

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundBranchAndBound:
        if queries != "projected":
            raise SettingError(f"queries={queries!r}: BranchAndBound asks for points of X only; leave it out.")
        return BoundBranchAndBound(problem, self)


@dataclass(frozen=True, eq=False)
class BoundBranchAndBound(BoundSearch):
    """The method on one problem."""

    settings: BranchAndBound
    slope_of: ClassVar[str] = ""

    def descends(self, rounds: int) -> bool:
        return False

    def gradient_at_most(self, before: Any, after: Any, history: History, first: int) -> float:
        return float("inf")

    def visits(self, start: Float[np.ndarray, " n"], seed: int, answers: Answers) -> Iterator[Visit]:
        """One visit, the search.

        Raises ``IncompatibleSolverError``, ``MissingPackageError``, ``LowerLevelError`` or ``DivergedError`` as ``Problem.reference``.
        """
        problem = self.problem
        begin = None if (problem.upper.whole & (start != np.round(start))).any() else problem.upper.unflatten(start)
        found = proved_reference(problem, gap=self.settings.gap, time_limit=None, seed=seed, x0=begin, progress=False)
        rest()  # also at a limit: what was found is told
        x = problem.upper.flatten(found.x, "x")
        record = {
            "objective": found.value,
            "bound": float("nan" if found.bound is None else found.bound),
            "lower_residual": found.certificate.lower_residual,
            **self.sent(),
        }
        there = evaluated(problem, x)
        yield Visit(BestPoint(x, None), record, self._status(there, found), there)

    def _status(self, there: Evaluation | None, found: Reference) -> str:
        """Why the run ends: with an optimum only if f is what was proved, and y not another one of several lower solutions."""
        if there is None:
            return f"{NOT_PROVED}: its program ends with f = {found.value:.10g} at this x, where the lower level, solved by itself, gives f no value"
        if abs(self.problem.sign * there.value - found.value) <= AGREES * (1.0 + abs(found.value)):
            return found.status
        return (
            f"{NOT_PROVED}: the best of several lower solutions has f = {found.value:.10g}, and another is meant; selection='optimistic' means the best"
        )
