"""FedAvg (McMahan, Moore, Ramage, Hampson and Aguera y Arcas, 2017, Algorithm 1), the plainest baseline.

Round r: the server broadcasts x; every participant sets x_i = x and takes H steps x_i <- x_i - gamma g_i(x_i), g_i the
gradient of f_i on a minibatch; the server takes x <- P_X [ mean of the x_i ].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party, Population
from hierfl.compiler.expressions.program import Rows
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.parts.bound import batches_of_small_tables
from hierfl.solvers.parts.client_oracle import ClientOracle
from hierfl.solvers.parts.common_settings import FederatedSettings, Requirements
from hierfl.solvers.parts.local_steps import LocalSteps, Term, Value
from hierfl.solvers.parts.participation import Participation, cohorts_of
from hierfl.solvers.parts.requirements import require_count, require_gradients, require_public_set, require_single_level
from hierfl.solvers.parts.round_monitor import first_fault
from hierfl.solvers.parts.step_schedules import (
    Schedule,
    StepCounts,
    constant,
    in_phases,
    row,
    rows,
    steps_of,
    tabulate,
    tabulate_steps,
)


def batches_of_a_pass(population: Population | None, samples: Sequence[int], batch_size: int | None) -> np.ndarray:
    """The number of batches in a pass over each party's rows, ``(parties,)``.

    Raises ``IncompatibleSolverError`` for a law, of which there is no pass, and for tables of different lengths.
    """
    assert population is not None
    tables = [table for table in population.tables if set(samples) & set(table.samples)]
    if any(table.quantiles is not None for table in tables):
        raise IncompatibleSolverError(
            "epochs are passes over rows, but a client holds a distribution, which has none to go through: give local_steps."
        )
    rows = np.stack([table.counts for table in tables]) if tables else np.ones((1, population.size), int)
    if np.any(rows != rows[:1]):
        raise IncompatibleSolverError(
            "epochs are passes over a client's rows, but here a client holds tables of different lengths: give local_steps."
        )
    return np.ones(population.size, int) if batch_size is None else -(-rows[0] // batch_size)


def require_first_order(solver: object, problem: CompiledProblem) -> None:
    """Check what local gradient steps need: one level, gradients, and an X that the server knows.

    Raises ``IncompatibleSolverError``, naming what is in the way.
    """
    require_single_level(solver, problem)
    require_gradients(solver, problem)
    require_public_set(solver, problem)


@dataclass(frozen=True, eq=False)
class BoundFedAvg(LocalSteps):
    """FedAvg on one problem: the algorithm of the runtime contract. ``counts`` (rounds or 1, clients or 1): H."""

    counts: np.ndarray
    tabulated: ClassVar[tuple[str, ...]] = ("step_size", "local_steps")
    averages_gradients: ClassVar[bool] = True  # what is averaged are gradient steps and nothing else

    @classmethod
    def of(cls, settings: Any, problem: CompiledProblem, rounds: int, queries: str, **own: Any) -> Self:
        """The algorithm with its schedules tabulated; ``own`` are the fields that a subclass adds."""
        if settings.batch_size == "auto":
            samples = {*problem.upper_samples, *problem.server_samples}
            settings = replace(settings, batch_size=batches_of_small_tables(problem, samples))
        sizes = tabulate(settings.step_size, rounds, "step_size")
        counts = constant(tabulate_steps(cls.counted(settings, problem, rounds), rounds, problem.num_clients))
        oracle = ClientOracle(problem, None, settings.batch_size, queries, alone=False)
        return cls(problem, settings, oracle, sizes, counts, **own, cohorts=cohorts_of(settings, problem, rounds))

    @staticmethod
    def counted(settings: Any, problem: CompiledProblem, rounds: int) -> StepCounts:
        """H as the settings say it, or as many steps for each client as their epochs take."""
        if settings.epochs is None:
            return in_phases(settings.local_steps, rounds)
        return settings.epochs * batches_of_a_pass(problem.static_data.clients, problem.upper_samples, settings.batch_size)

    @property
    def epochs(self) -> int | None:
        return self.settings.epochs

    def sampled(self, term: Term, function: Callable[[Rows], Value], party: Party, key: Array, t: Array) -> Value:
        """A function of the rows on the minibatch of local step t: drawn with replacement, or the next of a pass."""
        if self.epochs is None:
            return super().sampled(term, function, party, key, t)
        return term.passing(function, party, key, self.settings.batch_size, t)

    def gradient_steps(self, first: int, last: int) -> np.ndarray | None:
        """H, where all parties make as many, over the weights by which the server divides."""
        counts, even = rows(self.counts, first, last), super(LocalSteps, self).gradient_steps(first, last)
        clients = self.problem.total_weight if self.problem.client_program is not None else 0.0
        if (server := self.problem.server_program is not None) and self.epochs is not None:  # as many as its own rows take
            own = np.full((last - first, 1), int(self.server_count(jnp.zeros((), int))))
            counts = np.hstack([counts, own]) if clients else own
        if even is None or not self.averages_gradients or np.any(counts != counts[:, :1]):
            return None
        return np.asarray(counts[:, 0] / (clients + server))

    def pull(self, point: Array, start: Array, r: Array) -> Array:
        """What a local step at ``point`` adds to the gradient, in a round that began at ``start``."""
        return jnp.zeros_like(point)

    def round(self, clients: Clients, state: Array, key: Array) -> tuple[Array, dict[str, Array]]:
        problem, x = self.problem, state
        move, value, weight, fault = jnp.zeros_like(x), jnp.zeros((), x.dtype), 0.0, jnp.full((), -1)
        steps = jnp.zeros((), int)
        if problem.client_program is not None:
            messages = clients.map(self.local_steps, x)
            move, value = clients.mean((messages.payload, messages.monitor["value"]))
            weight, fault, steps = self.problem.total_weight, first_fault(clients, messages), self.made(clients)
        if problem.server_program is not None:
            server_move, server_value = clients.server(self.server_steps, x)
            move, value, weight = move + server_move, value + server_value, weight + 1.0
            steps = steps + jnp.maximum(self.server_count(clients.round), 1)
        return problem.project_upper(x + move / weight, clients.public), self.record(clients, move / weight, value, fault, steps)

    def local_steps(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """A participant's H local steps; it sends its move."""
        count = steps_of(self.counts, received.round, party.index)
        move, value = self._move(self.client_term, party, received, count, key)
        return memory, Message(move, {"value": value})

    def server_steps(self, party: Party, received: Received, key: Array) -> tuple[Array, Array]:
        """The server's own local steps on f_1: as many epochs as the clients make, or steps as the busiest client."""
        return self._move(self.server_term, party, received, self.server_count(received.round), key)

    def made(self, clients: Clients) -> Array:
        """The local steps of all participants; a client without any still takes one gradient, with whose value it tells f_i."""
        return self.of_present(clients, jnp.maximum(steps_of(self.counts, clients.round, clients.participants), 1))

    def server_count(self, r: Array) -> Array:
        if self.epochs is None:
            return jnp.max(row(self.counts, r))
        population, samples = self.problem.static_data.server, self.problem.server_samples
        return jnp.asarray(self.epochs * int(batches_of_a_pass(population, samples, self.settings.batch_size)[0]))

    def _move(self, term: Term, party: Party, received: Received, count: Array, key: Array) -> tuple[Array, Array]:
        start, r = received.broadcast, received.round
        end, value = self.descend(term, party, start, count, self.size(r), lambda z: self.pull(z, start, r), key)
        return end - start, value


@suggests_names
@dataclass(frozen=True)
class FedAvg(FederatedSettings):
    """Settings of FedAvg.

    Upper constraints: the server projects x0 and its means on X, so x is always in X, but with more than one local step the limit
    is near the solution only. A server term takes part as one more client of weight one.

    Parameters
    ----------
    step_size
        gamma: a number, ``Decay(c, p)``, a callable of the round, or ``"auto"``, a step that short trial runs find.
    local_steps
        H: number, schedule, or one per client. ``"auto"``: 5, and 1 in the last quarter of the rounds, from round 200 on at the latest: with
        more than one the limit is near the optimum only, where clients differ.
    participation
        Who takes part in a round: a fraction of the clients (ceil(fraction * m) of them, drawn by chance); a callable of the round that
        returns the indices of clients; or an array of booleans (rounds, clients), the papers' S_r.
    absent
        How the absent count: ``"unbiased"`` (participants' moves times m/|S|), ``"renormalise"``, ``"zero"``.
    batch_size
        Rows of the minibatches; None uses all. ``"auto"``: all, where no client has more than 10,000, else 32.
    epochs
        E, in place of ``local_steps``: passes over a client's own rows in batches of ``batch_size`` without replacement, shuffled anew
        for each, so that client k takes E ceil(n_k / batch_size) steps, as in the source.

    Notes
    -----
    The source's weights n_k / n are those of ``hf.Federation(..., weights="samples")``, which are part of the objective. Of absent
    clients it has the mean over those present, ``absent="renormalise"``.

    Raises
    ------
    SettingError
        For a setting out of range.
    IncompatibleSolverError
        When bound to a problem with a lower level, a black box, or private constraints on x; with ``epochs``, to one without rows.

    Examples
    --------
    >>> from hierfl.solvers import FedAvg
    >>> smooth = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    >>> smooth.solve(FedAvg(step_size=0.1, local_steps=5), rounds=50, progress=False).x.round(1)
    array([1., 1.])
    """

    step_size: Schedule = "auto"
    local_steps: StepCounts | Literal["auto"] = "auto"
    participation: Participation = 1.0
    absent: str = "unbiased"
    batch_size: int | Literal["auto"] | None = "auto"
    epochs: int | None = field(default=None, kw_only=True)
    takes_epochs: ClassVar[bool] = True
    _requirements: ClassVar[Requirements] = (require_first_order,)
    _algorithm: ClassVar[type[BoundFedAvg]] = BoundFedAvg

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is None:
            return
        require_count(self.epochs, "epochs")
        if not self.takes_epochs:
            raise SettingError(
                f"epochs={self.epochs}: {type(self).__name__} has no passes over data; give local_steps."
            )
        if self.local_steps is not type(self).local_steps:
            raise SettingError(
                "epochs and local_steps: give one of the two; epochs say how many steps each client takes."
            )
