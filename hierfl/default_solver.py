"""Which solver ``problem.solve()`` takes when none is named, and why."""

from __future__ import annotations

from typing import Any, NamedTuple

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.starting_points import start_point
from hierfl.descent.implicit_oracle import ImplicitOracle
from hierfl.errors import HierflError, IncompatibleSolverError, NoGradientError
from hierfl.jaxtools.interruption import CutShort, impatient
from hierfl.jaxtools.precision import double_precision
from hierfl.run_settings import RunSettings
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers.fedrzo import FedRZO
from hierfl.solvers.implicit_bundle import ImplicitBundle
from hierfl.solvers.zohfl import ZOHFL


class DefaultSolver(NamedTuple):
    """A solver, and the reason for it in a line."""

    solver: Any
    why: str


@double_precision
def choose_solver(compiled: CompiledProblem, settings: RunSettings) -> DefaultSolver:
    """The bundle method where f has gradients and all data are here, whatever its size; else the papers' algorithm, with a step that it finds.

    That is ZO-HFL for client scope, FedRZO for others and private X_i.
    """
    try:
        with impatient():
            against = _against_exact(compiled, settings)
    except CutShort:  # no round will be made
        against = "whether f has exact gradients was not found out in time"
    if against is None:
        return DefaultSolver(
            ImplicitBundle(), "f has exact gradients and all data are in this process; it is a local method"
        )
    if compiled.scope == "client" and compiled.private_set is None:
        return DefaultSolver(ZOHFL(step_size="auto"), f"it is the papers' algorithm for client scope, and {against}")
    return DefaultSolver(FedRZO(step_size="auto"), f"it is the papers' algorithm, and {against}")


def _against_exact(compiled: CompiledProblem, settings: RunSettings) -> str | None:
    """What speaks against the bundle method; None where nothing does."""
    runtime = settings.runtime or InProcess()
    if not isinstance(runtime, InProcess) or runtime != InProcess():
        return f"{runtime} asks for another way of running than exact values have"
    if compiled.elsewhere:
        return "clients hold their data elsewhere"
    if settings.queries != "projected":
        return f"queries={settings.queries!r} asks for points outside X"
    try:
        ImplicitBundle().bind(compiled, settings.most_rounds)
        ImplicitOracle(compiled, settings.seed).require(start_point(compiled, settings.x0))
    except (IncompatibleSolverError, NoGradientError) as error:
        return f"f has no gradients: {str(error).partition(': use ')[0]}"
    except HierflError:
        pass  # f has no value at the start: the run says so
    return None
