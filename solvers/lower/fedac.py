"""FedAC, accelerated local SGD, for a federation-scope lower level (Yuan and Ma, 2020, FedAC-I)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled import CompiledProblem
from hierfl.compiler.program import Array
from hierfl.solvers.checks import require_count, require_number
from hierfl.solvers.lower.contract import require_scope
from hierfl.solvers.lower.federated import BoundFederated, Rule, Sequences, tabulate_counts
from hierfl.solvers.theory import lower_constants


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

    Raises
    ------
    SettingError
        If a constant that is left to be certified cannot be.
    """

    rounds: Any = 5
    steps: Any = 10
    step_size: float | None = None
    strong_convexity: float | None = None
    batch_size: int | None = 32

    def __post_init__(self) -> None:
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
            certified, smooth = lower_constants(problem, "FedAC")
            mu, eta = mu or certified, eta or 1 / smooth
        return BoundFederated(problem, _accelerated(mu, eta, local), lower_rounds, local, self.batch_size)


def _accelerated(mu: float, eta: float, local: np.ndarray) -> Rule:
    gammas = np.maximum(np.sqrt(eta / (mu * local)), eta)
    alphas = 1 / (gammas * mu)

    def point(own: Sequences, r: Array) -> Array:
        y, ahead = own
        beta = jnp.asarray(alphas, float)[r] + 1
        return y / beta + (1 - 1 / beta) * ahead

    def step(own: Sequences, g: Array, t: Array, r: Array) -> Sequences:
        y, alpha, middle = own[0], jnp.asarray(alphas, float)[r], point(own, r)
        return (1 - 1 / alpha) * y + middle / alpha - jnp.asarray(gammas, float)[r] * g, middle - eta * g

    return Rule(lambda y: (y, y), point, step, lambda own: own[1])
