"""What an algorithm asks of a lower-level solver once it is bound to a problem."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from jax import Array
from jaxtyping import Float, Int

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError
from hierfl.language.expectation import RowAggregate
from hierfl.solvers.parts.step_schedules import Tabulated, settings_key

ANSWERING = {
    "federation": "LocalSGD, FedAC, LFD or Exact",
    "client": "ProjectedSGD, ProjectionMethod, Extragradient or Exact",
    "sample": "ProjectionMethod, Extragradient, ProjectedSGD or Exact",
}  # the solvers of each scope, the first to be tried first


class Clock(NamedTuple):
    """When an answer is asked for: the round, and the local step counted over all rounds. Schedules run on it."""

    round: Int[Array, ""] | int
    step: Int[Array, ""] | int


class LowerAnswer(NamedTuple):
    """The federation's answers at several points, with their natural residuals, and the gaps of Y(x) there."""

    y: Float[Array, "points size"]
    residual: Float[Array, " points"]
    gap: Float[Array, " points"]


class LowerSolver(Protocol):
    """A lower-level solver's settings, given to an algorithm as ``lower=...``.

    Bound to a problem it has pure functions for traced code, those of its scopes. ``client(x, party, start, clock, key)`` and ``sample(x, party, row,
    start, clock)`` give (y, natural residual) of a client's y, and of one sample's. ``federation(clients, points, start, clock, key, calls)`` is the
    ``LowerAnswer`` that all compute together at each of the points (P, n), with common random numbers; points with numbers (``calls``) have samples of
    their own. ``evaluations(clock, client)``, where it is known beforehand, are those of F in one call by one client (in federation scope of all),
    those of the look at the residual too.
    """

    def bind(self, problem: CompiledProblem, rounds: int, steps: int) -> object:
        """The solver for one problem; ``steps`` local steps are made over all rounds."""


def bind_lower(lower: LowerSolver, problem: CompiledProblem, rounds: int, steps: int) -> Any:
    """The lower solver on the problem, None where it has no lower level; errors as by its ``bind``.

    Programs know a bound solver by its tables, or else by itself: such a one is kept for the next solve.
    """
    if not problem.lower.size:
        return None
    bound = lower.bind(problem, rounds, steps)
    if isinstance(bound, Tabulated):
        return bound
    return problem.programs.keep(("bound lower", settings_key(lower), rounds, steps, problem.parameter_values), lambda: bound, of_run=True)


def require_federated(lower: object, solver: object) -> None:
    """Check that the lower solver lets all clients compute one y together. Raises ``IncompatibleSolverError``, naming those that do."""
    if not hasattr(lower, "federation"):
        raise IncompatibleSolverError(
            f"{type(solver).__name__} asks all clients together for the y of a federation-scope lower level, but its lower solver answers for one client alone: use {ANSWERING['federation']}."
        )


def beyond_steps(problem: CompiledProblem) -> str:
    """What is asked of answers that steps towards one of them do not tell: prices, or which of several is selected; "" for nothing."""
    level, method = problem.declaration.lower_level, problem.exact.method
    if level is None:
        return ""
    selection = None if method is not None and method.structure.strict else getattr(level, "selection", None)  # of several
    return ", ".join(price.name() for price in level.prices) or (f"selection={selection!r}" if selection else "")


def solved_by_default(problem: CompiledProblem) -> bool:
    """Whether the lower level is answered exactly unless a solver is named: where it holds no data of a client, and where steps do not do."""
    return problem.scope == "sample" or problem.several or not problem.lower_samples or bool(beyond_steps(problem))


def batch_by_default(problem: CompiledProblem) -> dict[str, Any]:
    """The ``batch_size`` of steps whose settings nobody gave, where it is not their own: all rows, where an aggregate is of these, of which no batch tells."""
    return {"batch_size": None} if any(isinstance(one, RowAggregate) for one in problem.declaration.roles.aggregates) else {}


def require_scope(solver: object, scopes: tuple[str, ...], problem: CompiledProblem) -> None:
    """Check that a solver that steps towards a y treats the declared scope, and what is asked of y.

    Raises ``IncompatibleSolverError``, naming the solvers that do.
    """
    if asked := beyond_steps(problem):
        raise IncompatibleSolverError(
            f"{type(solver).__name__} steps towards a y that is best below, and does not tell {asked}, for which the level has to be solved: use lower=Exact()."
        )
    scope = problem.scope
    alone = scope == "federation" and problem.num_clients == 1 and "client" in scopes  # the two scopes are then one
    if scope is not None and scope not in scopes and not alone:
        raise IncompatibleSolverError(
            f"{type(solver).__name__} answers lower levels of {' and '.join(scopes)} scope, but this one has {scope} scope: "
            f"use lower={ANSWERING[scope]}."
        )
