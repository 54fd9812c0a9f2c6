"""FedRZO: federated randomized zeroth-order methods, one skeleton for every class of problem ([NN], [2S]).

Round r: the server broadcasts x; every participant takes H local steps

    x_i  <-  x_i - gamma ( g + (x_i - P_{X_i}(x_i)) / eta ),        g = (n / eta) (f_i(x_i + eta v) - f_i(x_i)) v,

and the server averages the x_i. The classes differ in the y at which f_i is evaluated:

* no lower level (FedRZO_nn): none; every step draws its own v;
* client and sample scope (FedRZO_2s): the client answers itself, at both points, with the same samples; own v;
* federation scope (FedRZO_bl, minimax included): the server draws v for the whole round, all clients together compute
  y+ at x + eta v and y0 at x *once*, and the local steps use these delayed answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.analysis.theorems import Prescription
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Array, Rows
from hierfl.errors import SettingError
from hierfl.jaxtools.keyed_random import fold_in, split
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.lower import Exact, LocalSGD, ProjectedSGD
from hierfl.solvers.lower.lower_solver import Clock, bind_lower, require_federated
from hierfl.solvers.parts.bound import ABSENT, Bound
from hierfl.solvers.parts.client_oracle import ClientOracle, Evaluated, first_flagged
from hierfl.solvers.parts.directions import KINDS, Directions
from hierfl.solvers.parts.estimators import ESTIMATORS, central_value, estimate, shifts_of, slopes
from hierfl.solvers.parts.scalar_uplink import COMMUNICATIONS, Ledger, require_rebuildable
from hierfl.solvers.parts.setting_checks import (
    require_choice,
    require_count,
    require_flag,
    require_lower,
    require_number,
)
from hierfl.solvers.parts.step_schedules import Schedule, steps_of, tabulate, tabulate_steps
from hierfl.solvers.parts.step_tables import constant, row, rows
from hierfl.solvers.parts.theory import SCHEDULES, prescription, require_left_out


@dataclass(frozen=True)
class FedRZO:
    """Settings of FedRZO.

    Parameters
    ----------
    smoothing
        eta > 0.
    step_size
        gamma: a number, ``Decay(c, p)`` or callable of the round.
    local_steps
        H: number, schedule, or one per client.
    lower
        A lower-level solver. By default the exact one where the lower level holds no data of a client, else ``LocalSGD``
        (federation scope) or ``ProjectedSGD`` (client scope).
    estimator
        ``"forward"`` (the paper's) or ``"central"``.
    directions, direction_kind
        q directions for each step (federation scope: for each round), averaged; ``"independent"`` or ``"orthonormal"``.
    control_variate
        Keep a sketch of the gradient at each client and estimate the difference from it only. Not for federation scope.
    participation
        Fraction of the clients in a round; the subset has ceil(fraction * m) members. Lower levels of federation scope are
        solved by all.
    absent
        How the absent count: ``"unbiased"`` (participants' moves times m/|S|), ``"renormalise"``, ``"zero"``.
    batch_size
        Rows of the upper-level minibatches; None uses all.
    communication
        ``"full"`` sends moves up; ``"scalars"`` derives directions from shared seeds and sends the slopes along them, from which
        all rebuild x: q numbers in federation scope without constraints on x, H q elsewhere. Not with a server term, private
        X_i or a control variate.
    schedule
        ``"practical"`` uses the settings above; ``"theory"`` takes gamma and H from the class's theorem for ``accuracy``, as
        ``result.settings["theory"]`` says.
    accuracy
        epsilon of E|grad f^eta|^2 <= epsilon, for ``schedule="theory"``.

    Raises
    ------
    SettingError
        For a setting out of range; with ``schedule="theory"``, naming the hypotheses that could not be proved.
    IncompatibleSolverError
        When bound to a problem that the algorithm cannot treat.
    """

    smoothing: float = 0.1
    step_size: Schedule = 0.01
    local_steps: Any = 1
    lower: Any = None
    estimator: str = "forward"
    directions: int = 1
    direction_kind: str = "independent"
    control_variate: bool = False
    participation: float = 1.0
    absent: str = "unbiased"
    batch_size: int | None = 32
    communication: str = "full"
    schedule: str = "practical"
    accuracy: float = 1e-2

    def __post_init__(self) -> None:
        require_number(self.smoothing, "smoothing", 0, np.inf)
        require_choice(self.estimator, "estimator", ESTIMATORS)
        require_count(self.directions, "directions")
        require_choice(self.direction_kind, "direction_kind", KINDS)
        require_flag(self.control_variate, "control_variate")
        require_number(self.participation, "participation", 0, 1)
        require_choice(self.absent, "absent", ABSENT)
        require_count(self.batch_size, "batch_size", or_none=True)
        require_choice(self.communication, "communication", COMMUNICATIONS)
        require_choice(self.schedule, "schedule", SCHEDULES)
        require_number(self.accuracy, "accuracy", 0, np.inf)
        require_left_out(self, "step_size", "local_steps")
        if self.lower is not None:
            require_lower(self.lower)

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundFedRZO:
        """The algorithm for one problem, schedules tabulated.

        Raises
        ------
        IncompatibleSolverError, SettingError
            Naming what the solver needs and what the problem has.
        """
        step_size, local_steps = self.step_size, self.local_steps
        if (found := self.prescribed(problem)) is not None:
            step_size, local_steps = found.step, found.local_steps
        if self.control_variate and problem.scope == "federation":
            raise SettingError(
                "control_variate=True keeps a sketch at each client, but in federation scope the direction is the server's, one "
                "for the whole round: leave it out, or take more directions."
            )
        if self.communication == "scalars":
            require_rebuildable(problem, "FedRZO")
            if problem.private_set is not None or self.control_variate:
                raise SettingError(
                    "communication='scalars' of FedRZO: private constraints on x, and control variates, move a client by vectors that "
                    "nobody else can rebuild. Write communication='full'."
                )
        sizes = tabulate(step_size, rounds, "step_size")
        counts = tabulate_steps(local_steps, rounds, problem.num_clients)
        done = np.cumsum(counts.max(axis=1, initial=0))
        total = int(done[-1]) if rounds else 0
        lower = bind_lower(self.lower or default_lower(problem), problem, rounds, total)
        if problem.scope == "federation":
            require_federated(lower, self)
        oracle = ClientOracle(problem, lower, self.batch_size, queries, problem.scope == "client")
        first = np.concatenate([[0], done[:-1]]).astype(int)
        most, smoothing = max(1, int(counts.max(initial=1))), np.array(self.smoothing, float)
        return BoundFedRZO(problem, self, oracle, sizes, constant(counts), first, smoothing, most)

    def prescribed(self, problem: CompiledProblem) -> Prescription | None:
        """What the theorem prescribes, with ``schedule="theory"``."""
        if self.schedule == "practical":
            return None
        return prescription(self, problem)


def default_lower(problem: CompiledProblem) -> Any:
    """Exact where the lower level holds no data of a client, else the papers' solver for its scope."""
    if problem.scope == "sample" or not problem.lower_samples:
        return Exact()
    return LocalSGD() if problem.scope == "federation" else ProjectedSGD()


class State(NamedTuple):
    """x, the federation's latest y (empty in other scopes), and what clients have seen of the scalars sent."""

    x: Array
    y: Array
    ledger: Ledger


class Memory(NamedTuple):
    """A client's latest y (client scope) and its control variate; each empty where it is not kept."""

    y: Array
    control: Array


class Answers(NamedTuple):
    """What the server draws and the federation answers for one round: (x, the directions), and y at each of ``shifts_of``."""

    directions: Known
    y: Array


class Local(NamedTuple):
    """A client's local iteration."""

    x: Array
    memory: Memory
    slopes: Array
    value: Array
    residual: Array
    gap: Array


class Estimated(NamedTuple):
    """One step's g, the slopes behind it, the memory after it, f_i there, and how well its lower level was solved."""

    gradient: Array
    slopes: Array
    memory: Memory
    value: Array
    residual: Array
    gap: Array


@dataclass(frozen=True, eq=False)
class BoundFedRZO(Bound):
    """FedRZO on one problem: the algorithm of the runtime contract.

    ``sizes`` (rounds,); ``counts`` (rounds or 1, clients or 1): local steps, at most ``most``; ``first_steps`` (rounds,): made
    before each round, since k counts local steps over all rounds; ``smoothing`` (), eta.
    """

    settings: FedRZO
    sizes: np.ndarray
    counts: np.ndarray
    first_steps: np.ndarray
    smoothing: np.ndarray
    most: int
    stays_in_upper_set: ClassVar[bool] = False
    tabulated: ClassVar[tuple[str, ...]] = ("step_size", "local_steps", "smoothing", "accuracy")

    @property
    def theory(self) -> Prescription | None:
        """Of the theorem for the declared class."""
        return self.settings.prescribed(self.problem)

    def gradient_steps(self, first: int, last: int) -> np.ndarray | None:
        """H, where every client makes as many."""
        counts, even = rows(self.counts, first, last), super().gradient_steps(first, last)
        return None if even is None or np.any(counts != counts[:, :1]) else np.asarray(even * counts[:, 0])

    def init(self, x0: Array) -> State:
        """x0, and 0 for the federation's y."""
        return State(
            x0, jnp.zeros(self.problem.lower.size if self.federated else 0, x0.dtype), Ledger.new(self.problem)
        )

    def memory(self, x0: Array) -> Memory:
        """No control variate yet."""
        size = self.problem.upper.size if self.settings.control_variate else 0
        return Memory(self.oracle.first_answer(x0), jnp.zeros(size, x0.dtype))

    def decision(self, state: State) -> Array:
        """x."""
        return state.x

    def response(self, state: State, memory: Memory) -> Array | None:
        """The latest y."""
        if self.federated:
            return state.y[None]
        return memory.y if self.oracle.alone else None

    def own_value(self, clients: Clients, state: State, x: Array, key: Array) -> Array:
        """All terms at x with y by this run's lower solver."""
        clock, y = self._clock(clients.round), None
        if self.federated:
            y = self.lower.federation(clients, Known(x[None]), state.y, clock, key).y[0]
        return self.oracle.own_value(clients, x, y, clock, key)

    def round(self, clients: Clients, state: State, key: Array) -> tuple[State, dict[str, Array]]:
        """One communication round."""
        problem, (x, y, ledger) = self.problem, state
        answers, residual, gap = None, jnp.zeros(()), jnp.zeros(())
        if self.federated:
            answers, found = self._answers(clients, state, key)
            residual, gap, y = jnp.max(found.residual), jnp.max(found.gap), found.y[0]
        if self._scalars:
            sent = self._scalars_sent(clients)
            ledger = ledger.charge(clients, sent)
            clients.charge("up", sent)
        broadcast = (answers.directions if answers else Known(x) if self._scalars else x, answers)
        move, value = jnp.zeros_like(x), jnp.zeros((), x.dtype)
        fault = empty = jnp.full((), -1)
        if problem.client_program is not None:
            messages = clients.map(self.local_steps, broadcast)
            moves = self._rebuilt(clients, x, answers, messages.payload.values) if self._scalars else messages.payload
            move = clients.mean(moves)
            monitor = messages.monitor
            value = clients.mean(monitor["value"])
            residual = jnp.maximum(residual, jnp.max(monitor["residual"]))
            finite = jnp.isfinite(moves).all(axis=1) & jnp.isfinite(monitor["value"])
            fault = first_flagged(clients.participants, ~finite)
            empty = first_flagged(clients.participants, ~(jnp.maximum(monitor["gap"], gap) <= 0))
        if problem.server_program is not None:
            server_move, server_value = clients.server(self.server_steps, broadcast)
            move, value = move + server_move, value + server_value
            empty = jnp.where(gap > 0, jnp.maximum(empty, 0), empty)
        size = row(self.sizes, clients.round)
        record = {
            "objective": problem.sign * value,
            "gradient_norm": jnp.linalg.norm(move) / jnp.where(size > 0, size, 1.0),
            "step_size": size,
            "lower_residual": residual,
            "fault": fault,
            "empty": empty,
        }
        return State(x + move, y, ledger), record

    def _answers(self, clients: Clients, state: State, key: Array) -> tuple[Answers, Any]:
        """The round's directions, and the federation's y at x and at each shifted x."""
        settings = self.settings
        v_key, y_key = split(key)
        directions = self._directions(v_key, None)
        if not self._scalars:  # there x is rebuilt, and directions follow from the seed
            clients.everyone.charge("down", (1 + directions.count) * directions.size * self.problem.num_clients)
        known = Known((state.x, directions))

        def point(direction: Array, length: Array) -> Array:
            return self.oracle.query(state.x + length * direction, clients.public)

        points = directions.each(point, *shifts_of(directions.count, self.smoothing, settings.estimator))
        found = self.lower.federation(clients.everyone, Known(points), state.y, self._clock(clients.round), y_key)
        return Answers(known, found.y), found

    def local_steps(self, party: Party, memory: Memory, received: Received, key: Array) -> tuple[Memory, Message]:
        """A participant's H local steps; it sends its move."""
        start, answers = received.broadcast
        x = answers.directions.values[0] if answers else start.values if self._scalars else start
        size = row(self.sizes, received.round)
        first = row(self.first_steps, received.round)
        count, keys = steps_of(self.counts, received.round, party.index), self._step_keys(key)

        def step(t: Array, own: Local) -> Local:
            clock = Clock(received.round, first + t)
            found = self._estimate(own, party, answers, clock, keys[t])
            moved = self._moved(own.x, found.gradient, size, lambda z: self._project_own(z, party))
            seen = own._replace(
                value=jnp.where(t == 0, found.value, own.value),
                residual=jnp.maximum(own.residual, found.residual),
                gap=jnp.maximum(own.gap, found.gap),
            )
            stepped = seen._replace(x=moved, memory=found.memory, slopes=own.slopes.at[t].set(found.slopes))
            return jax.tree.map(lambda new, old: jnp.where(t < count, new, old), stepped, seen)

        zero = jnp.zeros((), x.dtype)
        slopes_seen = jnp.zeros((self._longest, self.settings.directions), x.dtype)
        own = Local(x, memory, slopes_seen, zero, zero, zero - jnp.inf)
        end = jax.lax.fori_loop(0, jnp.maximum(count, 1), step, own)  # without steps of its own it still reports f_i
        payload = end.x - x
        if self._scalars:
            payload = Known(jnp.sum(end.slopes, axis=0) if self._summed else end.slopes)  # counted as ``_scalars_sent``
        return end.memory, Message(payload, {"value": end.value, "residual": end.residual, "gap": end.gap})

    def _moved(self, x: Array, gradient: Array, size: Array, project: Any) -> Array:
        """One local step."""
        return x - size * (gradient + (x - project(x)) / self.smoothing)

    def _rebuilt(self, clients: Clients, x: Array, answers: Answers | None, sent: Array) -> Array:
        """Every participant's move from its slopes, as anybody with the round's key can compute it."""
        settings, problem = self.settings, self.problem
        size, n = row(self.sizes, clients.round), problem.upper.size
        if self._summed:
            assert answers is not None
            return -size * n / settings.directions * jax.vmap(answers.directions.values[1].combination)(sent)

        def one(job: tuple[Array, Array]) -> Array:
            index, found = job
            keys = self._step_keys(fold_in(clients.key, index))

            def step(t: Array, own: Array) -> Array:
                directions = self._directions(keys[t, 0], answers)
                gradient, _ = estimate(directions, found[t], None, settings.direction_kind)
                return self._moved(own, gradient, size, lambda z: problem.project_upper(z, clients.public))

            count = steps_of(self.counts, clients.round, index)
            return jax.lax.fori_loop(0, count, step, x) - x

        return jax.lax.map(one, (clients.participants, sent))

    @property
    def _scalars(self) -> bool:
        return self.settings.communication == "scalars"

    @property
    def _summed(self) -> bool:
        """Whether all local steps run along the round's directions and nothing else moves x: sums of slopes say it all."""
        return self.federated and self.problem.upper_set.kind == "free"

    @property
    def _longest(self) -> int:
        return self.most if self._scalars else 1

    def _scalars_sent(self, clients: Clients) -> Array:
        """Slopes of all participants in a round: q for every step, or for all steps together."""
        steps = steps_of(self.counts, clients.round, clients.participants)
        return self.settings.directions * jnp.sum(jnp.minimum(steps, 1) if self._summed else steps)

    def _step_keys(self, key: Array) -> Array:
        """(steps, 2) keys, for the directions and the samples of every local step; one by one they would cost more."""
        steps = jnp.arange(self.most)
        return jax.vmap(lambda t: split(fold_in(key, t)))(steps)

    def _probe(
        self, x: Array, answers: Answers | None, keys: Array, own: Any, evaluate: Callable[[Array, Array, Array], Any]
    ) -> tuple[Directions, Any]:
        """The directions of one step, and ``evaluate(z, y, key)`` at each of their shifted points."""
        v_key, sample_key = keys
        directions = self._directions(v_key, answers)
        numbers, lengths = shifts_of(directions.count, self.smoothing, self.settings.estimator)
        given = jnp.zeros((len(numbers), 0)) if answers is None else answers.y

        def at(direction: Array, length: Array, y: Array) -> Any:
            return evaluate(self.oracle.query(x + length * direction, own), y, sample_key)

        return directions, directions.each(at, numbers, lengths, given, one_by_one=self.oracle.one_by_one)

    def _directions(self, key: Array, answers: Answers | None) -> Directions:
        """The round's, or this step's own."""
        if answers is not None:
            found: Directions = answers.directions.values[1]
            return found
        settings = self.settings
        return Directions.draw(key, settings.directions, self.problem.upper.size, settings.direction_kind)

    def _estimate(self, own: Local, party: Party, answers: Answers | None, clock: Clock, keys: Array) -> Estimated:
        """At the client's own x."""
        settings, start = self.settings, own.memory.y

        def evaluate(z: Array, y: Array, key: Array) -> Evaluated:
            return self.oracle.at(z, party, start, clock, key, y)

        directions, found = self._probe(own.x, answers, keys, party.environment, evaluate)
        slope = slopes(found.value, self.smoothing, settings.estimator)
        control = own.memory.control if settings.control_variate else None
        gradient, control = estimate(directions, slope, control, settings.direction_kind)
        kept = jnp.mean(found.y, axis=0) if self.oracle.alone else start
        memory = Memory(kept, own.memory.control if control is None else control)
        value = central_value(found.value, settings.estimator)
        return Estimated(gradient, slope, memory, value, jnp.max(found.residual), jnp.max(found.gap))

    def server_steps(self, party: Party, received: Received, key: Array) -> tuple[Array, Array]:
        """The server's own local steps on f_1, as one more client."""
        start, answers = received.broadcast
        x = answers.directions.values[0] if answers else start
        settings, problem = self.settings, self.problem
        size = row(self.sizes, received.round)
        count, keys = jnp.max(row(self.counts, received.round)), self._step_keys(key)

        def project(z: Array) -> Array:  # X is the clients' affair where there are clients' terms
            return z if problem.client_program is not None else problem.project_upper(z, party.environment)

        def evaluate(z: Array, y: Array, key: Array) -> Array:
            def value(rows: Rows) -> Array:
                return problem.server_value(z, None if answers is None else y, party.environment, rows)

            found: Array = party.estimate(value, problem.server_samples, key, settings.batch_size)
            return found

        def step(t: Array, own: tuple[Array, Array]) -> tuple[Array, Array]:
            point, first = own
            directions, values = self._probe(point, answers, keys[t], party.environment, evaluate)
            slope = slopes(values, self.smoothing, settings.estimator)
            gradient, _ = estimate(directions, slope, None, settings.direction_kind)
            moved = self._moved(point, gradient, size, project)
            value = jnp.where(t == 0, central_value(values, settings.estimator), first)
            return jnp.where(t < count, moved, point), value

        end, value = jax.lax.fori_loop(0, jnp.maximum(count, 1), step, (x, jnp.zeros((), x.dtype)))
        return end - x, value

    def _project_own(self, x: Array, party: Party) -> Array:
        """P_{X_i}."""
        problem = self.problem
        if problem.private_set is None:
            return problem.project_upper(x, party.environment)
        return problem.client_upper_set.project(x, party.environment)

    def _clock(self, round_index: Array) -> Clock:
        return Clock(round_index, row(self.first_steps, round_index))
