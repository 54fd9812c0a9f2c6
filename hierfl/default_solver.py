"""Which solver ``problem.solve()`` takes when none is named, and why."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.host.standard_form import NoStandardFormError
from hierfl.compiler.starting_points import start_point
from hierfl.descent.implicit_oracle import ImplicitOracle
from hierfl.errors import HierflError, IncompatibleSolverError, NoGradientError
from hierfl.jaxtools.interruption import CutShort, impatient
from hierfl.jaxtools.precision import double_precision
from hierfl.run_settings import RunSettings
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers.fedrzo import FedRZO
from hierfl.solvers.implicit_bundle import ImplicitBundle
from hierfl.solvers.implicit_gradient import ImplicitGradient
from hierfl.solvers.zohfl import ZOHFL

# scalars, for which models and exact values are quick
MOST_VARIABLES, MOST_RESPONSES, MOST_DATA = 64, 20_000, 2_000_000
CONES = "X is written with cones that its models do not have"


class DefaultSolver(NamedTuple):
    """A solver, and the reason for it in a line."""

    solver: Any
    why: str


@double_precision
def choose_solver(compiled: CompiledProblem, settings: RunSettings) -> DefaultSolver:
    """The bundle method where f has gradients, is small and all data are here; else the papers' algorithm, with a step that it finds.

    That is ZO-HFL for client scope, FedRZO for others and private X_i.
    """
    try:
        with impatient():
            against = _against_exact(compiled, settings)
    except CutShort:  # no round will be made
        against = "whether f has exact gradients was not found out in time"
    if against == CONES and compiled.private_set is None:
        return DefaultSolver(ImplicitGradient(step_size="auto"), f"f has exact gradients, but {against}")
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
    if compiled.upper.size > MOST_VARIABLES:
        return f"x has {compiled.upper.size:,} scalars, more than {MOST_VARIABLES}"
    if (responses := _responses(compiled)) > MOST_RESPONSES:
        return f"all responses y have {responses:,} scalars, more than {MOST_RESPONSES:,}"
    if (data := _data(compiled)) > MOST_DATA:
        return f"the clients hold {data:,} scalars of data, more than {MOST_DATA:,}"
    try:
        ImplicitBundle().bind(compiled, settings.most_rounds)
        ImplicitOracle(compiled, settings.seed).require(start_point(compiled, settings.x0))
    except (IncompatibleSolverError, NoGradientError) as error:
        return CONES if isinstance(error.__cause__, NoStandardFormError) else "f has no gradients"
    except HierflError:
        pass  # f has no value at the start: the run says so
    return None


def _responses(compiled: CompiledProblem) -> int:
    owners = {"federation": 1, "client": compiled.num_clients}.get(str(compiled.scope))
    if owners is None:
        clients = compiled.static_data.clients
        owners = 0 if compiled.scope is None else clients.tables[compiled.row_table(clients)].size
    return owners * compiled.lower.size


def _data(compiled: CompiledProblem) -> int:
    tables = compiled.static_data.clients.tables
    return sum(int(np.prod(values.shape)) for table in tables for values in table.values.values())
