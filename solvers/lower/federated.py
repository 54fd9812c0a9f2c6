"""One y computed by all clients together: local steps at the clients, averaged by the server, for several lower rounds.

The algorithms differ in their *rule* (which sequences a client carries, where it takes the gradient, how it steps): Local SGD ([NN]
Algorithm 3; [2S] for x-dependent Y(x)), LFD, and FedAC, accelerated local SGD (Yuan and Ma, 2020, FedAC-I). The answers at all queried
points are computed side by side with common random numbers: the noise of their difference is what a zeroth-order method sees. With an
x-dependent Y(x) every local step is projected on it.

[2S] names LFD beside its Algorithm 3 for clients whose data differ, after Haddadpour and Mahdavi (2019, arXiv 1910.14425). What it
quotes of that source (its Theorem 4.2) is the order m^(-1/3) T^(2/3) of the local steps between averages, and no step sizes:
those here are constant in a call, and the source's rate is not claimed for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.errors import SettingError
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.lower.lower_solver import Clock, LowerAnswer, require_scope
from hierfl.solvers.papers.theory import SCHEDULES, lower_constants, require_left_out
from hierfl.solvers.parts.requirements import require_choice, require_count, require_number
from hierfl.solvers.parts.step_schedules import (
    MOST,
    Decay,
    Schedule,
    Tabulated,
    constant,
    require_schedule,
    row,
    tabulate,
    whole,
)

STARTS = ("warm", "zero")
Sequences = tuple[Array, ...]
Memory = TypeVar("Memory")  # of the algorithm above, which stays as it is


class Rule(NamedTuple):
    """``start(y)`` gives the sequences, ``point(sequences, sizes)`` says where to take g, ``step(sequences, g, t, sizes)``
    moves them, ``answer(sequences)`` is y.

    ``sizes``: the table of step sizes; where they change with the round and not with t, the round's. ``sequences``: how many.
    """

    start: Callable[[Array], Sequences]
    point: Callable[[Sequences, Array], Array]
    step: Callable[[Sequences, Array, Array, Array], Sequences]
    answer: Callable[[Sequences], Array]
    by_round: bool
    sequences: int = 1


@dataclass(frozen=True, eq=False)
class BoundFederated(Tabulated):
    """A federated lower solver on one problem.

    ``lower_rounds``, ``local_steps``: per upper round, (rounds or 1,); ``sizes``: the rule's step sizes, per local step or round.
    """

    problem: CompiledProblem
    settings: Any
    rule: Rule
    lower_rounds: np.ndarray
    local_steps: np.ndarray
    sizes: np.ndarray
    tabulated: ClassVar[tuple[str, ...]] = ("rounds", "steps", "step_size", "strong_convexity")

    def federation(
        self, clients: Clients, points: Known, start: Array, clock: Clock, key: Array, calls: Array | None = None
    ) -> LowerAnswer:
        """The answers at all points, from one start."""
        xs, public = points.values, clients.public
        begin = start if self.settings.start == "warm" else jnp.zeros_like(start)
        first = jax.vmap(lambda x: self.problem.project_lower(x, begin, public))(xs)

        def body(index: Array, sequences: Sequences) -> Sequences:
            broadcast = (points, sequences, Known((index, clock, calls)))
            moves = clients.map(self.local_round, broadcast, key=fold_in(key, index)).payload
            return jax.tree.map(lambda own, move: own + move / weight, sequences, clients.mean(moves))

        weight = self.problem.total_weight  # the mean's minimiser needs no more
        count = row(self.lower_rounds, clock.round)
        y = jax.vmap(self.rule.answer)(clients.loop(count, body, jax.vmap(self.rule.start)(first)))
        gaps = jax.vmap(lambda x: self.problem.lower_gap(x, public))(xs)
        return LowerAnswer(y, self._residuals(clients, points, y, key, count), gaps)

    def evaluations(self, clock: Clock, client: Array | int) -> Array:
        """Of F by all clients: at every local step, and once for the residual."""
        steps: Array = row(self.lower_rounds, clock.round) * row(self.local_steps, clock.round) + 1
        return self.problem.num_clients * steps

    def rounds_of(self, scalars_up: int, points: int) -> int:
        """The lower rounds in which all clients sent so many scalars up, for y at so many points."""
        return scalars_up // (self.problem.num_clients * self.rule.sequences * points * self.problem.lower.size)

    def local_round(self, party: Party, memory: Memory, received: Received, key: Array) -> tuple[Memory, Message]:
        """H local steps of one client at every point, with the same minibatches, or those of each call."""
        points, sequences, known = received.broadcast
        index, clock, calls = known.values
        steps, samples = row(self.local_steps, clock.round), self.problem.lower_samples

        sizes = row(self.sizes, clock.round) if self.rule.by_round else jnp.asarray(self.sizes, float)
        batch_size = self.settings.batch_size

        def one(x: Array, start: Sequences, call: Array | None) -> Sequences:
            own_key = key if call is None else fold_in(key, call)

            def advance(t: Array, own: Sequences) -> Sequences:
                y = self.rule.point(own, sizes)
                g = party.estimate(
                    lambda rows: self.problem.operator(x, y, party.environment, rows), samples, own_key, batch_size, t
                )
                moved = self.rule.step(own, g, index * steps + t, sizes)
                return tuple(self.problem.project_lower(x, part, party.environment) for part in moved)

            return jax.lax.fori_loop(0, steps, advance, start)

        moved = jax.vmap(one)(points.values, sequences, calls)
        return memory, Message(jax.tree.map(jnp.subtract, moved, sequences), {})

    def force(self, party: Party, memory: Memory, received: Received, key: Array) -> tuple[Memory, Message]:
        """F(x, y) of one client at every point, on a minibatch."""
        problem, (points, y), batch_size = self.problem, received.broadcast, self.settings.batch_size

        def one(x: Array, y: Array) -> Any:
            return party.estimate(
                lambda rows: problem.operator(x, y, party.environment, rows), problem.lower_samples, key, batch_size
            )

        return memory, Message(None, {"force": jax.vmap(one)(points.values, y.values)})

    def _residuals(self, clients: Clients, points: Known, y: Array, key: Array, index: Array) -> Array:
        """||y - P(y - F)|| with F on minibatches, for the history; asked of the clients as monitor numbers."""
        key = fold_in(key, index)
        force = clients.mean(clients.map(self.force, (points, Known(y)), key=key).monitor["force"])
        nearest = jax.vmap(lambda x, z: self.problem.project_lower(x, z, clients.public))(points.values, y - force)
        return jnp.linalg.norm(y - nearest, axis=1)


def tabulate_counts(schedule: Schedule, rounds: int, what: str) -> np.ndarray:
    """Whole numbers of at least 1, ``(rounds,)``, of a number or schedule of the round; fractions are rounded up.

    Raises ``SettingError``, naming the setting and the round.
    """
    table = whole(tabulate(schedule, rounds, what), what)
    bad = np.flatnonzero(table < 1)
    if bad.size:
        raise SettingError(f"{what} is {table[bad[0]]} at round {bad[0]}: a whole number in 1, ..., {MOST:,}.")
    return table


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
        """Settings as they are given; else Algorithm 3: step sizes 1/(mu a_r) and 2 a_r ln(a_r) local steps, from certified constants of every client.

        Raises ``SettingError``, naming the constant that could not be proved.
        """
        require_scope(self, ("federation",), problem)
        name = type(self).__name__
        if self.schedule == "practical":
            lower_rounds = tabulate_counts(self.rounds, rounds, f"rounds of {name}")
            local = tabulate_counts(self.steps, rounds, f"steps of {name}")
            longest = int(np.max(lower_rounds * local, initial=1))
            rule, sizes = BY_STEP, tabulate(self.step_size, longest, f"step_size of {name}")
        else:
            mu, smooth = lower_constants(problem, name, of_each=True)
            a = np.maximum(max(problem.num_clients, 4 * smooth / mu), np.arange(rounds)) + 1
            rule, sizes = BY_ROUND, 1 / (mu * a)
            lower_rounds, local = self._shared_out(2 * a * np.log(a), problem.num_clients)
        return BoundFederated(problem, self, rule, constant(lower_rounds), constant(local), sizes)

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

    Examples
    --------
    >>> from hierfl.solvers import LocalSGD, FedRZO
    >>> solver = FedRZO(lower=LocalSGD(rounds=5, steps=10))
    """

    schedules = (*SCHEDULES, "theorem-1")

    def _shared_out(self, total: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        if self.schedule == "theorem-1":
            total = np.arange(1.0, len(total) + 1) ** (2 / 3) / clients
        return np.full(len(total), clients), np.ceil(total / clients - 1e-9).astype(int)


@suggests_names
@dataclass(frozen=True)
class LFD(LocalDescent):
    """Local gradient descent with periodic averaging on full local data, for heterogeneous clients (after Haddadpour and Mahdavi 2019).

    No theorem bounds its error here. With a constant step s and H local steps between averages, clients whose minimisers differ
    leave an error of y of order s (H - 1), which more rounds do not remove.

    Parameters
    ----------
    rounds, steps, step_size, batch_size, start
        As for :class:`LocalSGD`; by default the step is 0.1 and all rows are used in every step.
    schedule
        ``"practical"`` uses the settings above; ``"certified"`` has certified constants choose them: the steps 1/(mu a_r) and the
        T = 2 a_r ln(a_r) local steps of Algorithm 3 of [2S], as :class:`LocalSGD`, in lower rounds of m^(-1/3) T^(2/3) each,
        the order that [2S] quotes of the source's Theorem 4.2.

    Raises
    ------
    SettingError
        With ``schedule="certified"``, naming the constant that could not be proved; for ``schedule="theory"``.
    IncompatibleSolverError
        When bound to a lower level of another scope.

    Examples
    --------
    >>> from hierfl.solvers import LFD, FedRZO
    >>> solver = FedRZO(lower=LFD(rounds=5, steps=10))
    """

    step_size: Schedule = 0.1
    batch_size: int | None = None
    schedules = ("practical", "certified")

    def __post_init__(self) -> None:
        if self.schedule == "theory":
            raise SettingError(
                "LFD has no schedule='theory': [2S] quotes the number of local steps of its source, but no step sizes, and no theorem "
                "is known for those of hierfl. Write schedule='certified' for steps from certified constants, or take "
                "LocalSGD(schedule='theory') (clients with data of one distribution) or Exact()."
            )
        super().__post_init__()

    def _shared_out(self, total: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        local = np.ceil(total ** (2 / 3) / clients ** (1 / 3)).astype(int)
        return np.ceil(total / local).astype(int), local


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
        As for :class:`LocalSGD`.

    Raises
    ------
    SettingError
        If a constant that is left to be certified cannot be.

    Examples
    --------
    >>> from hierfl.solvers import FedAC, FedRZO
    >>> solver = FedRZO(lower=FedAC(rounds=5, steps=10))
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
        require_scope(self, ("federation",), problem)
        lower_rounds = tabulate_counts(self.rounds, rounds, "rounds of FedAC")
        local = tabulate_counts(self.steps, rounds, "steps of FedAC")
        mu, eta = self.strong_convexity, self.step_size
        if mu is None or eta is None:
            certified, smooth = lower_constants(problem, "FedAC", of_each=True, give="strong_convexity=... and step_size=...")
            mu, eta = mu or certified, eta or 1 / smooth
        gammas = np.maximum(np.sqrt(eta / (mu * local)), eta)
        sizes = np.stack([np.full(rounds, eta), gammas, 1 / (gammas * mu)], axis=1)
        return BoundFederated(problem, self, ACCELERATED, constant(lower_rounds), constant(local), sizes)
