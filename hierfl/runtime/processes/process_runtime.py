"""The runtime: rounds as plain Python at the server, over clients that are reached by messages to their processes alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.jaxtools.host_callback import call_on_host
from hierfl.jaxtools.interruption import heed, over
from hierfl.jaxtools.keyed_random import fold_in, key_of
from hierfl.jaxtools.precision import computing
from hierfl.near_names import suggests_names
from hierfl.runtime.cohort import ROUND_STREAM, SERVER_STREAM, VALUE_STREAM, Cohort
from hierfl.runtime.contract import Algorithm, Message, OwnValue, Question, Received, Step
from hierfl.runtime.counted_clients import CountedClients
from hierfl.runtime.processes.process_pool import ProcessPool
from hierfl.runtime.records import Begun, BlockEnd, History, Outcome, motion
from hierfl.runtime.sites.parcels import step_name


@dataclass(frozen=True)
class ServerSide:
    """What does not change within a run: the way to the clients, and the declaration as the server knows it."""

    pool: ProcessPool
    problem: CompiledProblem
    algorithm: Algorithm
    programs: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def clients(self, key: Array, index: int) -> RemoteClients:
        """The participants of a round."""
        round_key = fold_in(key, index)
        cohort = self.algorithm.cohorts.of(round_key, jnp.asarray(index))
        return RemoteClients(self.problem.laid_out(), cohort, round_key, jnp.asarray(index), self)

    def ask(self, method: str, step: Callable[..., Any], arguments: Iterable[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        """Have clients run a step of the algorithm."""
        name = step_name(step, self.algorithm)
        return self.pool.ask(method, {place: (name, *given) for place, given in arguments})

    def run(self, step: Callable[[Party, Received, Array], Any], received: Received, key: Array) -> Any:
        """Run a step on the server's own data."""
        name = step_name(step, self.algorithm)
        if name not in self.programs:
            self.programs[name] = jax.jit(lambda data, *given: step(data.server_party, *given))
        return self.programs[name](self.problem.laid_out(), received, key)


@dataclass(frozen=True)
class RemoteClients(CountedClients):
    """The round's participants: the ``Clients`` of the contract, by messages."""

    server_side: ServerSide

    @property
    def count(self) -> int:
        """How many take part."""
        return int(self.cohort.count)

    @property
    def public(self) -> dict[int, Array]:
        """Values of the declaration's plain parameters."""
        return {p.id: jnp.asarray(p.value, float) for p in self.server_side.problem.declaration.roles.parameters}

    @property
    def everyone(self) -> RemoteClients:
        """All clients; what they send is counted as the lower level's."""
        total = self.server_side.problem.num_clients
        return replace(self, cohort=Cohort(jnp.arange(total), total), level="lower_")

    def map(self, step: Step, broadcast: Any, each: Any = None, key: Array | None = None) -> Message:
        """Run a step at every participant, in its process."""
        seed, sent = self.key if key is None else key, self._places

        def arguments(place: int, own: Any) -> tuple[Any, ...]:
            return broadcast, own, self.round, jax.random.key_data(fold_in(seed, place))

        parts = [jax.tree.map(lambda a, i=i: a[i], each) for i in range(len(sent))]
        messages = self.server_side.ask("map", step, [(p, arguments(p, own)) for p, own in zip(sent, parts)])
        stacked = self._filled(jax.tree.map(lambda *parts: jnp.stack(parts), *messages))
        self._note_messages(broadcast, each, stacked.payload, stacked.monitor)
        return stacked

    def charge(self, way: str, scalars: Any) -> None:
        """Count scalars that the simulation does not send."""
        super().charge(way, int(scalars))

    def query(self, question: Question, broadcast: Any) -> Array:
        """Ask every participant, from compiled code too. Its answer, one array, has no derivative here."""
        server, places = self.server_side, self._places
        leaves, tree = jax.tree.flatten(broadcast)
        shape = jax.eval_shape(lambda data: question(data.clients.party(0), broadcast), server.problem.laid_out())

        def ask(*arrays: np.ndarray) -> np.ndarray:
            given = (jax.tree.unflatten(tree, arrays),)
            return np.stack(server.ask("query", question, [(place, given) for place in places]))

        return self._filled(call_on_host(ask, (len(places), *shape.shape), shape.dtype, *leaves))

    def server(self, step: Callable[[Party, Received, Array], Any], broadcast: Any) -> Any:
        """Run a step on the server's own data."""
        received = Received(broadcast, None, self.round)
        return self.server_side.run(step, received, fold_in(self.key, SERVER_STREAM))

    def mean(self, values: Any) -> Any:
        """Weighted aggregate over participants; weights are public."""
        everybody = jnp.asarray(self.data.clients.weights)
        own, absent = everybody[self.participants], self.server_side.algorithm.absent
        return self._aggregate(values, own, absent, everybody.size, jnp.sum(everybody))

    def loop(self, count: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
        """A loop of Python's, since its body sends messages."""
        for index in range(int(count)):
            state = body(jnp.asarray(index), state)
        return state

    @property
    def _places(self) -> list[int]:
        places: list[int] = self.participants[: self.count].tolist()
        return places

    def _filled(self, answers: Any) -> Any:
        """The participants' answers, and the first one's in places that nobody takes."""
        places = jnp.where(self.present, jnp.arange(self.participants.shape[0]), 0)
        return jax.tree.map(lambda a: a[places], answers)


@suggests_names
@dataclass(frozen=True)
class Processes:
    """The runtime for the problem and the solver that ``address`` (``module:function``) declares as ``case``.

    Parameters
    ----------
    pool
        A process for every client.
    address, case
        What each process declares for itself: see :func:`hierfl.runtime.processes.process_pool.declared`.
    """

    pool: ProcessPool
    address: str
    case: str

    def execute(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        x0: np.ndarray,
        rounds: int,
        seed: int,
        block: int,
        at_end: BlockEnd,
        begun: Begun | None = None,
    ) -> Outcome:
        """Run as ``InProcess.execute`` does, in double precision. The memories are the clients': None here."""
        with computing(double=True):
            return self._execute(problem, algorithm, x0, rounds, seed, block, at_end, begun)

    def memories(self) -> list[np.ndarray]:
        """The leaves of the clients' memories, for a checkpoint: all processes are on one machine, and theirs is its disk."""
        own = [
            jax.tree.leaves(memory) for memory in self.pool.ask("remembered", dict.fromkeys(range(self.pool.size), ()))
        ]
        return [np.stack(leaves) for leaves in zip(*own)]

    def _execute(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        x0: np.ndarray,
        rounds: int,
        seed: int,
        block: int,
        at_end: BlockEnd,
        begun: Begun | None,
    ) -> Outcome:
        everyone = range(problem.num_clients)
        self.pool.ask("declare", dict.fromkeys(everyone, (self.address, self.case, rounds, x0)))
        server, key = ServerSide(self.pool, problem, algorithm), key_of(seed)
        state = algorithm.init(jnp.asarray(x0))
        records: list[dict[str, Any]] = []
        first = done = told = 0
        if begun is not None:
            first = done = told = begun.rounds
            state = jax.tree.map(jnp.asarray, begun.state)
            self.pool.ask("remember", {place: ([leaf[place] for leaf in begun.memory],) for place in everyone})
        while done < rounds:
            heed()
            began = time.perf_counter()
            clients, before = server.clients(key, done), state
            state, record = algorithm.round(clients, state, fold_in(clients.key, ROUND_STREAM))
            counted: dict[str, Any] = clients.traffic | motion(algorithm, before, state)
            records.append(record | counted | {"seconds": time.perf_counter() - began})
            done += 1
            if done % block and done < rounds and not over():
                continue
            if at_end(done, state, None, _stacked(records[told - first :])) is not None:
                break
            told = done

        def own_value(x: Array) -> OwnValue:
            with computing(double=True):
                clients = server.clients(key, done - 1)
                return algorithm.own_value(clients.everyone, state, x, fold_in(clients.key, VALUE_STREAM))

        return Outcome(
            state, None, _stacked(records), own_value if done and (problem.lower.size or problem.elsewhere) else None
        )


def _stacked(records: Sequence[dict[str, Any]]) -> History:
    """The rounds' records as one array for each of their numbers."""
    return {name: np.stack([np.asarray(record[name]) for record in records]) for name in (records or [{}])[0]}
