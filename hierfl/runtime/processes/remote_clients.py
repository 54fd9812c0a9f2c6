"""The participants of a round as the algorithm sees them, each reached by messages to its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.jaxtools.host_callback import call_on_host
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.cohort import Cohort
from hierfl.runtime.contract import Algorithm, Known, Message, Question, Received, Step
from hierfl.runtime.processes.process_pool import ProcessPool
from hierfl.runtime.records import TRAFFIC
from hierfl.runtime.sites.step_names import step_name
from hierfl.runtime.streams import SERVER_STREAM


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
        return RemoteClients(self, cohort, round_key, jnp.asarray(index), dict.fromkeys(TRAFFIC, 0))

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
class RemoteClients:
    """The round's participants: the ``Clients`` of the contract, by messages."""

    server_side: ServerSide
    cohort: Cohort
    key: Array
    round: Array
    traffic: dict[str, int]
    level: str = ""

    @property
    def participants(self) -> Array:
        """Their indices; where fewer take part than in other rounds, the first again in the other places."""
        return self.cohort.participants

    @property
    def count(self) -> int:
        """How many take part."""
        return int(self.cohort.count)

    @property
    def present(self) -> Array:
        """Which places are taken by somebody of their own."""
        return jnp.arange(self.participants.shape[0]) < self.count

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
        self._count("scalars_down", [broadcast] * len(sent), each)
        self._count("scalars_up", [message.payload for message in messages])
        self._count("monitor_scalars", [message.monitor for message in messages])
        return self._filled(jax.tree.map(lambda *parts: jnp.stack(parts), *messages))

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
        everybody = jnp.asarray(self.server_side.problem.laid_out().clients.weights)
        weights = jnp.where(self.present, everybody[self.participants], 0.0)
        absent = self.server_side.algorithm.absent
        if absent == "unbiased":
            weights = weights * (everybody.size / self.count)
        elif absent == "renormalise":
            present = jnp.sum(weights)  # 0 where only clients of no weight take part: then nothing moves
            weights = weights * (jnp.sum(everybody) / jnp.where(present > 0, present, 1.0))
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), values)

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

    def _count(self, way: str, *sent: Any) -> None:
        """Count what went over the wire, without what the clients held already."""
        leaves = jax.tree.leaves(sent, is_leaf=lambda leaf: isinstance(leaf, Known))
        self.traffic[self.level + way] += sum(np.size(leaf) for leaf in leaves if not isinstance(leaf, Known))
