"""What the lower level of a run takes, by the tables of its solver: nothing is run."""

from __future__ import annotations

from typing import Any

import numpy as np

from hierfl.solvers.lower.lower_solver import Effort
from hierfl.solvers.parts.estimators import shifts_of
from hierfl.solvers.parts.step_tables import rows
from hierfl.solvers.parts.zeroth_order_steps import ZerothOrderSteps


def predicted_effort(algorithm: Any, rounds: int) -> Effort | None:
    """Add up the calls of ``rounds`` rounds; the upper level's rounds of communication are not among them.

    None where nobody knows beforehand: an exact lower solver goes on to a residual, absent clients of client and sample scope are drawn (in
    federation scope the lower solver asks everybody), and minibatches of all
    rows (``batch_size=None``) in sample scope are as long as each client's data.
    """
    lower, problem = algorithm.lower, algorithm.problem
    if not hasattr(lower, "effort") or not (algorithm.federated or algorithm.cohorts.everybody):
        return None
    points = points_of(algorithm.settings)
    if algorithm.federated:
        calls = [lower.effort(r) for r in range(rounds)]
        return Effort(
            points * sum(call.gradients for call in calls),
            points * sum(call.projections for call in calls) * _projects(problem),
            sum(call.rounds for call in calls),
        )
    owners = 1 if problem.scope == "client" else algorithm.oracle.batch_size
    if owners is None:
        return None
    calls = [lower.effort(r, k, client) for r, k, client in _steps(algorithm, rounds)]
    return Effort(
        points * owners * sum(call.gradients for call in calls),
        points * owners * sum(call.projections for call in calls) * _projects(problem),
    )


def points_of(settings: Any) -> int:
    """At how many points an estimate asks for y."""
    estimator = getattr(settings, "estimator", "central")  # ZO-HFL's
    return len(shifts_of(settings.directions, 1.0, estimator)[0])


def _steps(algorithm: Any, rounds: int) -> list[tuple[int, int, int]]:
    """(round, local step over all rounds, client) of every estimate; a client without local steps still tells f_i once."""
    clients = range(algorithm.problem.num_clients)
    if not isinstance(algorithm, ZerothOrderSteps):
        return [(r, r, client) for r in range(rounds) for client in clients]
    steps, found = algorithm.steps, []
    for r, own in enumerate(rows(steps.counts, 0, rounds)):
        counts = np.broadcast_to(own, algorithm.problem.num_clients)
        found += [
            (r, int(steps.first_steps[r]) + t, client) for client in clients for t in range(max(1, counts[client]))
        ]
    return found


def _projects(problem: Any) -> int:
    """1 where Y(x) is not all of the space, else 0."""
    return int(problem.lower_set is not None and problem.lower_set.kind != "free")
