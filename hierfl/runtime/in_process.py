"""All clients simulated in this process: a whole block of rounds is one compiled program.

On a CPU the clients of a round run one after another (``lax.map``), so that a client's state stays in cache, and its
plus and minus evaluations side by side.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled import CompiledProblem
from hierfl.compiler.data import Data, Party
from hierfl.compiler.program import Array
from hierfl.errors import SettingError
from hierfl.runtime.contract import Algorithm, Known, Message, Question, Received, Step

History = dict[str, np.ndarray]
BlockEnd = Callable[[int, Any, Any, History], bool]

TRAFFIC = tuple(level + way for level in ("", "lower_") for way in ("scalars_down", "scalars_up", "monitor_scalars"))
ROUND_STREAM, COHORT_STREAM, SERVER_STREAM, VALUE_STREAM = (
    2**31 - k for k in (1, 2, 3, 4)
)  # beside the clients' indices


class Outcome(NamedTuple):
    """The final state, the clients' memories (leading axis m), the history per round, and the run's own value at any x."""

    state: Any
    memory: Any
    history: History
    own_value: Callable[[Array], Array] | None


@dataclass(frozen=True)
class InProcess:
    """Simulate every client here.

    Parameters
    ----------
    schedule
        ``"map"``: participants one after another; ``"vmap"``: side by side (accelerators); None chooses by platform.
    """

    schedule: str | None = None

    def execute(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        x0: np.ndarray,
        rounds: int,
        seed: int,
        block: int,
        at_end: BlockEnd,
    ) -> Outcome:
        """Run ``rounds`` rounds in blocks; ``at_end(rounds done, state, memory, block's records)`` stops the run when true."""
        if self.schedule not in (None, "map", "vmap"):
            raise SettingError(f"schedule={self.schedule!r} of InProcess: write 'map', 'vmap' or None.")
        data = problem.data()
        key = jax.random.key(seed)
        state = algorithm.init(jnp.asarray(x0))
        memory = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (problem.num_clients, *jnp.shape(a))), algorithm.memory(jnp.asarray(x0))
        )
        blocks: list[History] = []
        done = 0
        while done < rounds:
            make = partial(self._program, problem, algorithm, block, state, memory, data, key)
            program = problem.keep(("program", self, algorithm, block), make)
            count = min(block, rounds - done)
            began = time.perf_counter()
            state, memory, records = jax.block_until_ready(program(state, memory, data, key, done, count))
            history = {name: np.asarray(values)[:count] for name, values in records.items()}
            history["seconds"] = np.full(count, (time.perf_counter() - began) / count)
            blocks.append(history)
            done += count
            if at_end(done, state, memory, history):
                break
        joined = {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]} if blocks else {}
        own_value = None
        if problem.lower.size and blocks:
            own = problem.keep(
                ("own value", self, algorithm), lambda: jax.jit(partial(self._own_value, problem, algorithm))
            )
            own_value = partial(own, state, memory, data, key, done - 1)
        return Outcome(state, memory, joined, own_value)

    def _program(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        block: int,
        state: Any,
        memory: Any,
        data: Data,
        key: Array,
    ) -> Any:
        """``program(state, memory, data, key, first round, count)`` runs a block of rounds."""

        def one_round(state: Any, memory: Any, data: Data, key: Array, index: Array) -> Any:
            clients = self._clients(problem, algorithm, memory, data, key, index)
            state, record = algorithm.round(clients, state, jax.random.fold_in(clients.key, ROUND_STREAM))
            traffic = {name: jnp.asarray(count, int) for name, count in clients.traffic.items()}
            return state, clients.memory, {**record, **traffic}

        shapes = jax.eval_shape(one_round, state, memory, data, key, jnp.asarray(0))[2]

        def program(state: Any, memory: Any, data: Data, key: Array, first: Array, count: Array) -> Any:
            records = jax.tree.map(lambda s: jnp.zeros((block, *s.shape), s.dtype), shapes)

            def body(place: Array, carry: Any) -> Any:
                state, memory, records = carry
                state, memory, record = one_round(state, memory, data, key, first + place)
                return state, memory, jax.tree.map(lambda all_, new: all_.at[place].set(new), records, record)

            return jax.lax.fori_loop(0, count, body, (state, memory, records))

        return jax.jit(program)

    def _own_value(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        state: Any,
        memory: Any,
        data: Data,
        key: Array,
        index: Array,
        x: Array,
    ) -> Array:
        clients = self._clients(problem, algorithm, memory, data, key, index)
        return algorithm.own_value(clients.everyone, state, x, jax.random.fold_in(clients.key, VALUE_STREAM))

    def _clients(
        self, problem: CompiledProblem, algorithm: Algorithm, memory: Any, data: Data, key: Array, index: Array
    ) -> InProcessClients:
        cohort = cohort_size(algorithm.participation, problem.num_clients)
        round_key = jax.random.fold_in(key, index)
        one_by_one = self.schedule == "map" or (self.schedule is None and jax.default_backend() == "cpu")
        participants = draw_participants(round_key, cohort, problem.num_clients)
        traffic = dict.fromkeys(TRAFFIC, 0)
        place = Place(problem, data, round_key, jnp.asarray(index), algorithm.absent, one_by_one)
        return InProcessClients(place, participants, Shared(memory, traffic))


class Place(NamedTuple):
    """What does not change within a round."""

    problem: CompiledProblem
    data: Data
    key: Array
    round: Array
    absent: str
    one_by_one: bool


@dataclass
class Shared:
    """What does: the clients' memories (leading axis m) and the scalars sent so far."""

    memory: Any
    traffic: dict[str, Any]


@dataclass(frozen=True)
class InProcessClients:
    """The round's participants, as the algorithm sees them; lives while one round is traced."""

    place: Place
    participants: Array
    shared: Shared
    level: str = ""

    @property
    def key(self) -> Array:
        """The round's key."""
        return self.place.key

    @property
    def round(self) -> Array:
        """Index of the round."""
        return self.place.round

    @property
    def memory(self) -> Any:
        """All clients' memories."""
        return self.shared.memory

    @property
    def traffic(self) -> dict[str, Any]:
        """Scalars sent in this round so far."""
        return self.shared.traffic

    @property
    def public(self) -> dict[int, Array]:
        """Values of the declaration's plain parameters."""
        parameters = self.place.problem.problem.roles.parameters
        return {p.id: self.place.data.clients.parameters[p.id][0] for p in parameters}

    @property
    def everyone(self) -> InProcessClients:
        """All clients; what they send is counted as the lower level's."""
        return replace(self, participants=jnp.arange(self.place.problem.num_clients), level="lower_")

    def map(self, step: Step, broadcast: Any, each: Any = None, key: Array | None = None) -> Message:
        """Run a step at every participant; see the contract."""
        seed = self.key if key is None else key

        def one(job: tuple[Array, Any, Any]) -> tuple[Any, Message]:
            index, memory, own = job
            party = self.place.data.clients.party(index)
            return step(party, memory, Received(broadcast, own, self.round), jax.random.fold_in(seed, index))

        jobs = (self.participants, jax.tree.map(lambda a: a[self.participants], self.memory), each)
        changed, messages = self._run(one, jobs)
        self.shared.memory = jax.tree.map(lambda a, new: a.at[self.participants].set(new), self.memory, changed)
        self._count("scalars_down", broadcast, times=self.participants.shape[0])
        self._count("scalars_down", each, times=1)
        self._count("scalars_up", messages.payload, times=1)
        self._count("monitor_scalars", messages.monitor, times=1)
        return messages

    def share(self, values: Any) -> Known:
        """Count the values once."""
        self._count("scalars_down", values, times=self.participants.shape[0])
        return Known(values)

    def query(self, question: Question, broadcast: Any) -> Any:
        """Ask every participant; see the contract."""
        return self._run(lambda index: question(self.place.data.clients.party(index), broadcast), self.participants)

    def server(self, step: Callable[[Party, Received, Array], Any], broadcast: Any) -> Any:
        """Run a step on the server's own data; nothing is transmitted."""
        received = Received(broadcast, None, self.round)
        return step(self.place.data.server_party, received, jax.random.fold_in(self.key, SERVER_STREAM))

    def mean(self, values: Any) -> Any:
        """Weighted aggregate over participants: by default unbiased for sum_i w_i v_i over all clients."""
        weights = self.place.data.clients.weights[self.participants]
        absent, size = self.place.absent, self.participants.shape[0]
        if absent == "unbiased":
            weights = weights * (self.place.problem.num_clients / size)
        elif absent == "renormalise":
            weights = weights * (jnp.sum(self.place.data.clients.weights) / jnp.sum(weights))
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), values)

    def loop(self, count: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
        """``fori_loop``; the scalars of one pass count ``count`` times."""
        before, passes = self.shared.traffic, {}

        def one(index: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, self.shared.memory = carry
            self.shared.traffic = dict.fromkeys(before, 0)
            state = body(index, state)
            passes.update(self.shared.traffic)
            return state, self.shared.memory

        state, self.shared.memory = jax.lax.fori_loop(0, count, one, (state, self.shared.memory))
        self.shared.traffic = {name: before[name] + count * passes[name] for name in before}
        return state

    def _run(self, one: Callable[[Any], Any], jobs: Any) -> Any:
        return jax.lax.map(one, jobs) if self.place.one_by_one else jax.vmap(one)(jobs)

    def _count(self, way: str, arrays: Any, times: int) -> None:
        leaves = jax.tree.leaves(arrays, is_leaf=lambda a: isinstance(a, Known))
        scalars = sum(int(np.prod(jnp.shape(a), dtype=int)) for a in leaves if not isinstance(a, Known))
        self.shared.traffic[self.level + way] += times * scalars


def draw_participants(round_key: Array, cohort: int, total: int) -> Array:
    """Indices of a round's participants ``(cohort,)``: all, or a keyed random subset without replacement."""
    if cohort == total:
        return jnp.arange(total)
    order = jax.random.permutation(jax.random.fold_in(round_key, COHORT_STREAM), total)
    return jnp.sort(order[:cohort])


def cohort_size(participation: float, clients: int) -> int:
    """ceil(participation * m).

    Raises
    ------
    SettingError
        If the fraction is not in (0, 1].
    """
    if not 0 < participation <= 1:
        raise SettingError(f"participation={participation}: a fraction of the clients in (0, 1].")
    return min(clients, math.ceil(participation * clients - 1e-9))
