"""A runtime that keeps every client in a process of its own: how a remote runtime is written.

The server runs ``algorithm.round`` as plain Python. A client receives what the algorithm sends and nothing else: the name of
a step, the broadcast, its own part, the round and a key; it answers with the message. Each process declares the problem
anew, from a name, so that it need not know anybody else's data, and a client's memory never leaves its process.
"""

from __future__ import annotations

import importlib
import multiprocessing
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Array
from hierfl.jaxtools.host_callback import call_on_host
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.cohort import cohort_size, draw_participants
from hierfl.runtime.contract import Algorithm, Known, Message, Question, Received, Step
from hierfl.runtime.in_process.clients import SERVER_STREAM, TRAFFIC
from hierfl.runtime.in_process.execution import BlockEnd, History, Outcome
from hierfl.runtime.in_process.simulation import ROUND_STREAM, VALUE_STREAM, motion

PATIENCE = 120.0  # seconds that a client may take to answer


# --- what every process does for itself --------------------------------------------------------------------------------


def declared(address: str, case: str, holder: Any, rounds: int) -> tuple[CompiledProblem, Algorithm]:
    """The problem and the bound algorithm that ``module:function`` declares, as one holder of data knows them."""
    module, function = address.split(":")
    problem, solver = getattr(importlib.import_module(module), function)(case, holder)
    compiled = problem.compile()
    return compiled, solver.bind(compiled, rounds)


def name_of(step: Any, algorithm: Algorithm) -> str:
    """Where the algorithm has a step, such as ``lower.local_round``: the way to it in any process.

    Raises
    ------
    TypeError
        For anything but a method of the bound algorithm, or of an object in its fields.
    """
    owner = getattr(step, "__self__", None)
    places: deque[tuple[str, Any]] = deque([("", algorithm)])
    while owner is not None and places:
        path, place = places.popleft()
        if place is owner:
            return f"{path}{step.__name__}"
        if is_dataclass(place):
            places.extend((f"{path}{f.name}.", getattr(place, f.name)) for f in fields(place))
    raise TypeError(f"{step!r} is no method of {type(algorithm).__name__} or of an object in its fields.")


def as_numpy(tree: Any) -> Any:
    """The arrays of a message as NumPy's, which any process can unpickle."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


# --- a client ----------------------------------------------------------------------------------------------------------


class Client:
    """One client's process: its data, its memory, and the algorithm's steps by name."""

    def __init__(self, place: int) -> None:
        self.place = place

    def declare(self, address: str, case: str, rounds: int, x0: np.ndarray) -> None:
        """Begin a run: forget the last one."""
        problem, self.algorithm = declared(address, case, self.place, rounds)
        self.data, self.memory = problem.data(), self.algorithm.memory(jnp.asarray(x0))
        self.programs: dict[str, Callable[..., Any]] = {}

    def map(self, name: str, broadcast: Any, own: Any, round_index: np.ndarray, key: np.ndarray) -> Message:
        """Run a step; the memory stays."""
        received, seed = Received(broadcast, own, round_index), jax.random.wrap_key_data(jnp.asarray(key))
        self.memory, message = self._program(name)(self.data, self.memory, received, seed)
        return message

    def query(self, name: str, broadcast: Any) -> Any:
        """Answer a question."""
        return self._program(name)(self.data, broadcast)

    def _program(self, name: str) -> Callable[..., Any]:
        if name not in self.programs:
            step = attrgetter(name)(self.algorithm)
            self.programs[name] = jax.jit(lambda data, *given: step(data.clients.party(self.place), *given))
        return self.programs[name]


def serve(connection: Connection, place: int) -> None:
    """The life of a client's process: it ends when the server's end of the pipe does."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_disable_most_optimizations", True)
    client = Client(place)
    with jax.enable_x64(True):
        while True:
            try:
                method, arguments = connection.recv()
            except EOFError:
                return
            try:
                answer, error = as_numpy(getattr(client, method)(*arguments)), None
            except Exception:  # whatever it is, the server must hear of it
                answer, error = None, traceback.format_exc()
            connection.send((answer, error))


# --- the server --------------------------------------------------------------------------------------------------------


class Pool:
    """The clients' processes, which serve one run after another; a context."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._turn = threading.Lock()  # questions from compiled code come on threads of their own
        self._pipes: list[Connection] = []
        self._processes = []
        for place in range(size):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there, place), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            process.terminate()

    def ask(self, method: str, arguments: dict[int, tuple[Any, ...]]) -> list[Any]:
        """Call a method of some clients, all at once, and collect the answers in the same order.

        Raises
        ------
        RuntimeError
            With the traceback of a client that failed; all answers have then been collected.
        """
        sent = {place: as_numpy(given) for place, given in arguments.items()}
        with self._turn:
            for place, given in sent.items():
                self._pipes[place].send((method, given))
            answers = [self._receive(place) for place in sent]
        for place, (_, error) in zip(sent, answers):
            if error is not None:
                raise RuntimeError(f"client {place} failed in {method!r}:\n{error}")
        return [answer for answer, _ in answers]

    def _receive(self, place: int) -> Any:
        if not self._pipes[place].poll(PATIENCE):
            raise TimeoutError(f"client {place} has not answered for {PATIENCE:g} seconds.")
        return self._pipes[place].recv()


@dataclass(frozen=True)
class Processes:
    """The runtime for the problem and the solver that ``address`` (``module:function``) declares as ``case``."""

    pool: Pool
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
    ) -> Outcome:
        """As ``InProcess.execute``, but the memories are the clients': None here."""
        everyone = range(problem.num_clients)
        self.pool.ask("declare", dict.fromkeys(everyone, (self.address, self.case, rounds, x0)))
        server, key = Server(self.pool, problem, algorithm), jax.random.key(seed)
        state, records = algorithm.init(jnp.asarray(x0)), []
        for done in range(1, rounds + 1):
            began = time.perf_counter()
            clients, before = server.clients(key, done - 1), state
            state, record = algorithm.round(clients, state, fold_in(clients.key, ROUND_STREAM))
            record |= clients.traffic | motion(algorithm, before, state)
            records.append(record | {"seconds": time.perf_counter() - began})
            if done % block and done < rounds:
                continue
            if at_end(done, state, None, _stacked(records[(done - 1) // block * block :])) is not None:
                break

        def own_value(x: Array) -> Array:
            clients = server.clients(key, len(records) - 1)
            return algorithm.own_value(clients.everyone, state, x, fold_in(clients.key, VALUE_STREAM))

        return Outcome(state, None, _stacked(records), own_value if problem.lower.size and records else None)


def _stacked(records: Sequence[dict[str, Any]]) -> History:
    return {name: np.stack([np.asarray(record[name]) for record in records]) for name in (records or [{}])[0]}


@dataclass(frozen=True)
class Server:
    """What does not change within a run: the way to the clients, and the declaration as the server knows it."""

    pool: Pool
    problem: CompiledProblem
    algorithm: Algorithm
    programs: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def clients(self, key: Array, index: int) -> RemoteClients:
        """The participants of a round."""
        round_key, total = fold_in(key, index), self.problem.num_clients
        participants = draw_participants(round_key, cohort_size(self.algorithm.participation, total), total)
        return RemoteClients(self, participants, round_key, jnp.asarray(index), dict.fromkeys(TRAFFIC, 0))

    def ask(self, method: str, step: Any, arguments: Iterable[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        """Have clients run a step of the algorithm."""
        name = name_of(step, self.algorithm)
        return self.pool.ask(method, {place: (name, *given) for place, given in arguments})

    def run(self, step: Callable[[Party, Received, Array], Any], received: Received, key: Array) -> Any:
        """Run a step on the server's own data."""
        name = name_of(step, self.algorithm)
        if name not in self.programs:
            self.programs[name] = jax.jit(lambda data, *given: step(data.server_party, *given))
        return self.programs[name](self.problem.data(), received, key)


@dataclass(frozen=True)
class RemoteClients:
    """The round's participants: the ``Clients`` of the contract, by messages."""

    server_side: Server
    participants: Array
    key: Array
    round: Array
    traffic: dict[str, int]
    level: str = ""

    @property
    def public(self) -> dict[int, Array]:
        """Values of the declaration's plain parameters."""
        return {p.id: jnp.asarray(p.value, float) for p in self.server_side.problem.declaration.roles.parameters}

    @property
    def everyone(self) -> RemoteClients:
        """All clients; what they send is counted as the lower level's."""
        return replace(self, participants=jnp.arange(self.server_side.problem.num_clients), level="lower_")

    def map(self, step: Step, broadcast: Any, each: Any = None, key: Array | None = None) -> Message:
        """Run a step at every participant, in its process."""
        seed, sent = self.key if key is None else key, self._places

        def arguments(place: int, own: Any) -> tuple[Any, ...]:
            return broadcast, own, self.round, jax.random.key_data(fold_in(seed, place))

        parts = [jax.tree.map(lambda a, i=i: a[i], each) for i in range(len(sent))]
        messages = self.server_side.ask("map", step, [(p, arguments(p, own)) for p, own in zip(sent, parts)])
        self._count("scalars_down", [broadcast] * len(sent), each)
        self._count("scalars_up", [message.payload for message in messages])
        self._count("monitor_scalars", [message.monitor for message in messages])
        return jax.tree.map(lambda *parts: jnp.stack(parts), *messages)

    def share(self, values: Any) -> Known:
        """Count the values once; this transport keeps nothing at the clients and sends them again with each map."""
        self._count("scalars_down", [values] * len(self._places))
        return Known(values)

    def charge(self, way: str, scalars: Any) -> None:
        """Count scalars that the simulation does not send."""
        self.traffic[f"{self.level}scalars_{way}"] += int(scalars)

    def query(self, question: Question, broadcast: Any) -> Array:
        """Ask every participant, from compiled code too. Its answer, one array, has no derivative here."""
        server, places = self.server_side, self._places
        leaves, tree = jax.tree.flatten(broadcast)
        shape = jax.eval_shape(lambda data: question(data.clients.party(0), broadcast), server.problem.data())

        def ask(*arrays: np.ndarray) -> np.ndarray:
            given = (jax.tree.unflatten(tree, arrays),)
            return np.stack(server.ask("query", question, [(place, given) for place in places]))

        return call_on_host(ask, (len(places), *shape.shape), shape.dtype, *leaves)

    def server(self, step: Callable[[Party, Received, Array], Any], broadcast: Any) -> Any:
        """Run a step on the server's own data."""
        received = Received(broadcast, None, self.round)
        return self.server_side.run(step, received, fold_in(self.key, SERVER_STREAM))

    def mean(self, values: Any) -> Any:
        """Weighted aggregate over participants; weights are public."""
        everybody = jnp.asarray(self.server_side.problem.data().clients.weights)
        weights, absent = everybody[self.participants], self.server_side.algorithm.absent
        if absent == "unbiased":
            weights = weights * (everybody.size / weights.size)
        elif absent == "renormalise":
            weights = weights * (jnp.sum(everybody) / jnp.sum(weights))
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), values)

    def loop(self, count: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
        """A loop of Python's, since its body sends messages."""
        for index in range(int(count)):
            state = body(jnp.asarray(index), state)
        return state

    @property
    def _places(self) -> list[int]:
        found: list[int] = self.participants.tolist()
        return found

    def _count(self, way: str, *sent: Any) -> None:
        """What went over the wire, without what the clients held already."""
        leaves = jax.tree.leaves(sent, is_leaf=lambda leaf: isinstance(leaf, Known))
        self.traffic[self.level + way] += sum(np.size(leaf) for leaf in leaves if not isinstance(leaf, Known))
