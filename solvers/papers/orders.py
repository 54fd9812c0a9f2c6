"""What a run takes: orders of complexity as the papers' tables print them, and the lower level's effort by the tables of its solver.

[NN] Table 1 and [2S] Tables 1 to 3, and [HFL] Theorem 1 (iii), (iv): symbols, and their values for a problem's m, K and kappa. Constants
and logarithms are left out there, as here: values compare methods, and are no numbers of rounds. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, log1p
from typing import Any

import numpy as np

from hierfl.analysis.theorems import Prescription
from hierfl.solvers.lower import LFD, FedAC, LocalSGD, ProjectionMethod
from hierfl.solvers.lower.lower_solver import Effort
from hierfl.solvers.parts.directions import shifts_of
from hierfl.solvers.parts.step_schedules import rows
from hierfl.solvers.parts.zeroth_order_steps import ZerothOrderSteps


@dataclass(frozen=True)
class Order:
    """An order in the papers' symbols, and its value at (m, K)."""

    symbols: str
    value: Callable[[float, float], float]

    def said(self, m: float, horizon: float | None) -> str:
        """The symbols, with the value where the horizon is known."""
        if horizon is None or not isfinite(horizon):
            return f"O({self.symbols})"
        return f"O({self.symbols}) ~ {self.value(m, horizon):.3g}"


UPPER_ROUNDS = Order("(m K)^(3/4)", lambda m, k: (m * k) ** 0.75)
HFL_ROUNDS = "O((L_0 sqrt(n) / eta + L_0^2 n + n^2 / eta^2)^2 eps^-2)"
HFL_STEPS = "O((L_0 sqrt(n) / eta + L_0^2 n + n^2 / eta^2)^3 eps^-3)"


def lower_rounds(lower: object) -> Order | None:
    """Rounds of communication in a call of a federated lower solver ([2S] Table 2); T of the last round, T_r = m^-1 (r + 1)^(2/3)."""
    if isinstance(lower, LocalSGD):
        return Order("m", lambda m, k: m)
    if isinstance(lower, FedAC):
        return Order("m^(1/3)", lambda m, k: m ** (1 / 3))
    if isinstance(lower, LFD):
        return Order(
            "m^(1/3) T^(1/3)", lambda m, k: m ** (1 / 3) * (UPPER_ROUNDS.value(m, k) ** (2 / 3) / m) ** (1 / 3)
        )
    return None


def total_rounds(lower: object) -> Order | None:
    """Rounds of communication of both levels together ([NN] Table 1, [2S] Tables 2 and 3); None where no table has the solver."""
    if isinstance(lower, LocalSGD):
        return Order("m^(7/4) K^(3/4)", lambda m, k: m**1.75 * k**0.75)
    if isinstance(lower, FedAC):
        return Order("m^(13/12) K^(3/4)", lambda m, k: m ** (13 / 12) * k**0.75)
    if isinstance(lower, LFD):
        return Order("(m K)^(11/12)", lambda m, k: (m * k) ** (11 / 12))
    return UPPER_ROUNDS if type(lower) is ProjectionMethod else None


def lower_projections(lower: object, mu: float, smooth: float) -> Order | None:
    """Projections of Algorithm 5 of [2S] over all rounds (its Table 3)."""
    if type(lower) is not ProjectionMethod:
        return None
    ratio = (mu / smooth) ** 2 if 0 < smooth < inf else 0.0
    growth = -log1p(-ratio) if ratio < 1 else inf
    return Order("m K / ln(1 / (1 - kappa^-2))", lambda m, k: m * k / growth if growth > 0 else inf)


def horizon_of(printed: Prescription | None) -> float | None:
    """K of a theorem as printed, where its hypotheses are proved."""
    return None if printed is None else printed.iterations


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
