"""Local SGD for a federation-scope lower level ([NN] Algorithm 3; [2S] for x-dependent Y(x))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.near_names import suggests_names
from hierfl.solvers.lower.federated import STARTS, BoundFederated, Rule, Sequences, tabulate_counts
from hierfl.solvers.lower.lower_solver import require_scope
from hierfl.solvers.papers.theory import SCHEDULES, lower_constants, require_left_out
from hierfl.solvers.parts.requirements import require_choice, require_count
from hierfl.solvers.parts.step_schedules import Decay, Schedule, require_schedule, tabulate
from hierfl.solvers.parts.step_tables import constant

PRACTICAL_STEP = Decay(0.1, 0.5)


def _descent(by_round: bool) -> Rule:
    def step(own: Sequences, g: Array, t: Array, sizes: Array) -> Sequences:
        return (own[0] - (sizes if by_round else sizes[t]) * g,)

    return Rule(lambda y: (y,), lambda own, sizes: own[0], step, lambda own: own[0], by_round)


BY_STEP, BY_ROUND = _descent(by_round=False), _descent(by_round=True)


@dataclass(frozen=True)
class LocalDescent:
    """Settings of local descent with periodic averaging, and what is required of them."""

    rounds: Schedule = 5
    steps: Schedule = 10
    step_size: Schedule = PRACTICAL_STEP
    batch_size: int | None = 32
    schedule: str = "practical"
    start: str = "warm"
    schedules: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_choice(self.start, f"start of {name}", STARTS)
        require_schedule(self.rounds, f"rounds of {name}", counts=True)
        require_schedule(self.steps, f"steps of {name}", counts=True)
        require_schedule(self.step_size, f"step_size of {name}")
        require_count(self.batch_size, f"batch_size of {name}", or_none=True)
        require_choice(self.schedule, f"schedule of {name}", self.schedules)
        require_left_out(self, "rounds", "steps", "step_size")

    def bind(self, problem: CompiledProblem, rounds: int, steps: int) -> BoundFederated:
        """The solver for one problem."""
        require_scope(self, ("federation",), problem)
        if self.schedule == "practical":
            return self._as_given(problem, rounds)
        sizes, total = self._by_algorithm_3(problem, rounds)
        lower_rounds, local = self._shared_out(total, problem.num_clients)
        return BoundFederated(problem, self, BY_ROUND, constant(lower_rounds), constant(local), sizes)

    def _as_given(self, problem: CompiledProblem, rounds: int) -> BoundFederated:
        """By the rounds, steps and step sizes that the settings give."""
        name = type(self).__name__
        lower_rounds = tabulate_counts(self.rounds, rounds, f"rounds of {name}")
        local = tabulate_counts(self.steps, rounds, f"steps of {name}")
        longest = int(np.max(lower_rounds * local, initial=1))
        sizes = tabulate(self.step_size, longest, f"step_size of {name}")
        return BoundFederated(problem, self, BY_STEP, constant(lower_rounds), constant(local), sizes)

    def _by_algorithm_3(self, problem: CompiledProblem, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """(step sizes 1/(mu a_r), numbers of local steps 2 a_r ln(a_r)) of the upper rounds, from certified constants of every client.

        Raises ``SettingError``, naming the constant that could not be proved.
        """
        mu, smooth = lower_constants(problem, type(self).__name__, of_each=True)
        a = np.maximum(max(problem.num_clients, 4 * smooth / mu), np.arange(rounds)) + 1
        return 1 / (mu * a), 2 * a * np.log(a)

    def _shared_out(self, total: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """(lower rounds, local steps in each) of the upper rounds, for so many local steps in all."""
        raise NotImplementedError


@suggests_names
@dataclass(frozen=True)
class LocalSGD(LocalDescent):
    """Local (projected) SGD with periodic averaging.

    Parameters
    ----------
    rounds
        Lower rounds in one round of the upper level: number or schedule of the round.
    steps
        Local steps of a client in a lower round: number or schedule of the round.
    step_size
        Number or schedule of the local step t, counted over the lower rounds of one call; default 0.1 / (t + 1)^(1/2).
    batch_size
        Rows of a minibatch; None uses all rows in every step.
    schedule
        ``"practical"`` uses the settings above; ``"theory"`` those of Algorithm 3, from certified constants: with
        kappa = L/mu and a_r = max(m, 4 kappa, r) + 1, steps 1/(mu a_r), 2 a_r ln(a_r) local steps in m lower rounds;
        ``"theorem-1"`` has in their place the T_r = m^-1 (r + 1)^(2/3) local steps that [2S] Theorem 1 (ii) asks for, up to
        the factors and logarithms that it leaves out, in lower rounds of ceil(T_r / m) as there.
    start
        Where y begins in every round of the upper level: ``"warm"`` where it ended at the last x, or ``"zero"``. The papers leave
        y_{0,r} to the server.

    Raises
    ------
    SettingError
        With another schedule than ``"practical"``, naming the constant that could not be proved.
    IncompatibleSolverError
        When bound to a lower level of another scope.
    """

    schedules = (*SCHEDULES, "theorem-1")

    def _shared_out(self, total: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        if self.schedule == "theorem-1":
            total = np.arange(1.0, len(total) + 1) ** (2 / 3) / clients
        return np.full(len(total), clients), np.ceil(total / clients - 1e-9).astype(int)
