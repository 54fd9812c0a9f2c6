"""FedAC, accelerated local SGD, for a federation-scope lower level (Yuan and Ma, 2020, FedAC-I)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.near_names import suggests_names
from hierfl.solvers.lower.federated import STARTS, BoundFederated, Rule, Sequences, tabulate_counts
from hierfl.solvers.lower.lower_solver import require_scope
from hierfl.solvers.papers.theory import lower_constants
from hierfl.solvers.parts.requirements import require_choice, require_count, require_number
from hierfl.solvers.parts.step_schedules import Schedule, require_schedule
from hierfl.solvers.parts.step_tables import constant


def _point(own: Sequences, sizes: Array) -> Array:
    (y, ahead), beta = own, sizes[2] + 1
    return y / beta + (1 - 1 / beta) * ahead


def _step(own: Sequences, g: Array, t: Array, sizes: Array) -> Sequences:
    y, middle, (eta, gamma, alpha) = own[0], _point(own, sizes), sizes
    return (1 - 1 / alpha) * y + middle / alpha - gamma * g, middle - eta * g


ACCELERATED = Rule(lambda y: (y, y), _point, _step, lambda own: own[1], by_round=True, sequences=2)


@suggests_names
@dataclass(frozen=True)
class FedAC:
    """FedAC-I: y_md = y/beta + (1 - 1/beta) y_ag; y_ag = y_md - eta g; y = (1 - 1/alpha) y + y_md/alpha - gamma g.

    gamma = max(sqrt(eta/(mu H)), eta), alpha = 1/(gamma mu), beta = alpha + 1; both sequences are averaged. On a set Y(x)
    both are projected, which the source does not treat.

    Parameters
    ----------
    rounds, steps
        Lower rounds, and H, a client's local steps in each: numbers or schedules of the round.
    step_size
        eta in (0, 1/L]; None is 1/L with a certified L.
    strong_convexity
        mu; None is a certified one.
    batch_size
        Rows of a minibatch; None uses all rows in every step.
    start
        Where y begins in every round of the upper level: ``"warm"`` where it ended at the last x, or ``"zero"``. The papers leave
        y_{0,r} to the server.

    Raises
    ------
    SettingError
        If a constant that is left to be certified cannot be.
    """

    rounds: Schedule = 5
    steps: Schedule = 10
    step_size: float | None = None
    strong_convexity: float | None = None
    batch_size: int | None = 32
    start: str = "warm"

    def __post_init__(self) -> None:
        require_choice(self.start, "start of FedAC", STARTS)
        require_schedule(self.rounds, "rounds of FedAC", counts=True)
        require_schedule(self.steps, "steps of FedAC", counts=True)
        require_count(self.batch_size, "batch_size of FedAC", or_none=True)
        for name in ("step_size", "strong_convexity"):
            if getattr(self, name) is not None:
                require_number(getattr(self, name), f"{name} of FedAC", 0, np.inf)

    def bind(self, problem: CompiledProblem, rounds: int, steps: int) -> BoundFederated:
        """The solver for one problem."""
        require_scope(self, ("federation",), problem)
        lower_rounds = tabulate_counts(self.rounds, rounds, "rounds of FedAC")
        local = tabulate_counts(self.steps, rounds, "steps of FedAC")
        mu, eta = self.strong_convexity, self.step_size
        if mu is None or eta is None:
            certified, smooth = lower_constants(problem, "FedAC", of_each=True)
            mu, eta = mu or certified, eta or 1 / smooth
        gammas = np.maximum(np.sqrt(eta / (mu * local)), eta)
        sizes = np.stack([np.full(rounds, eta), gammas, 1 / (gammas * mu)], axis=1)
        return BoundFederated(problem, self, ACCELERATED, constant(lower_rounds), constant(local), sizes)
