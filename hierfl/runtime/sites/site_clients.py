"""The participants of a round as the algorithm sees them while the server's part of it is traced: every message is a call of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data, Party
from hierfl.jaxtools.host_callback import call_on_host, exchange_on_host
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.contract import Known, Message, Question, Received, Step
from hierfl.runtime.sites.aggregation import Aggregation
from hierfl.runtime.sites.exchange import Shapes
from hierfl.runtime.sites.step_names import step_name
from hierfl.runtime.streams import SERVER_STREAM


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Present:
    """Who takes part, ``(S,)`` with the first repeated in places of nobody, and how many do."""

    participants: Array
    count: Array


class Answering(Protocol):
    """What answers for sites: an exchange of messages, or what they have said already."""

    def ask(
        self, kind: str, step: str, clients: np.ndarray, broadcast: Any, each: Any, seed: np.ndarray, expected: Shapes
    ) -> Any:
        """Stacked answers ``(len(clients), ...)`` of a step."""


class Wire:
    """Where the calls of a compiled program find the messages of the run that it serves at present."""

    exchange: Answering | None = None

    def note(self, kind: str, name: str, broadcast: Any, each: Any) -> None:
        """While a program is traced: what a step will be sent, ``each`` with a leading axis of clients."""

    def ask(self, kind: str, name: str, expected: Any, given: tuple[Any, ...]) -> Any:
        """Stacked answers of the participants; places of nobody repeat the first one's."""
        assert self.exchange is not None, "messages cross within a run"
        present, broadcast, each, seed = given
        participants, count = np.asarray(present.participants), present.count
        own = jax.tree.map(lambda a: a[: int(count)], each)
        clients = np.asarray(participants, int)[: int(count)]
        answers = self.exchange.ask(kind, name, clients, broadcast, own, np.asarray(seed, np.uint32), expected)
        places = np.where(np.arange(len(participants)) < int(count), np.arange(len(participants)), 0)
        return jax.tree.map(lambda a: a[places], answers)


@dataclass(frozen=True)
class TracedRound:
    """What does not change within a round."""

    wire: Wire
    problem: CompiledProblem
    algorithm: Any
    data: Data  # the server's, with invented rows for clients
    all_present: Present
    key: Array
    round: Array
    traffic: dict[str, Any]
    aggregation: Aggregation | None


@dataclass(frozen=True)
class SiteClients:
    """The ``Clients`` of the contract, by messages to sites."""

    setting: TracedRound
    present_now: Present
    level: str = ""

    @property
    def participants(self) -> Array:
        return self.present_now.participants

    @property
    def count(self) -> Array:
        return self.present_now.count

    @property
    def present(self) -> Array:
        return jnp.arange(self.participants.shape[0]) < self.count

    @property
    def key(self) -> Array:
        return self.setting.key

    @property
    def round(self) -> Array:
        return self.setting.round

    @property
    def public(self) -> dict[int, Array]:
        return self.setting.data.clients.public

    @property
    def everyone(self) -> SiteClients:
        """All clients that are there; what they send is counted as the lower level's."""
        return replace(self, present_now=self.setting.all_present, level="lower_")

    def map(self, step: Step, broadcast: Any, each: Any = None, key: Array | None = None) -> Message:
        """Run a step at every participant; see the contract."""
        setting, seed = self.setting, self.key if key is None else key
        own = None if each is None else jax.tree.map(lambda a: a[0], each)

        def one(data: Data) -> tuple[Any, Any]:
            party = data.clients.party(0)
            memory = setting.algorithm.memory(jnp.zeros(setting.problem.upper.size))
            _, message = step(party, memory, Received(broadcast, own, self.round), fold_in(seed, 0))
            return message.payload, message.monitor

        payload, monitor = self._ask("map", step, jax.eval_shape(one, setting.data), broadcast, each, seed)
        size = self.participants.shape[0]
        self._note("scalars_down", self.count * _scalars(broadcast))
        for way, stacked in (("scalars_down", each), ("scalars_up", payload), ("monitor_scalars", monitor)):
            self._note(way, self.count * (_scalars(stacked) // size))
        return Message(payload, monitor)

    def share(self, values: Any) -> Known:
        """Count the values once; they travel with each later map that refers to them."""
        self._note("scalars_down", self.count * _scalars(values))
        return Known(values)

    def charge(self, way: str, scalars: Any) -> None:
        """Count scalars."""
        self._note(f"scalars_{way}", scalars)

    def query(self, question: Question, broadcast: Any) -> Array:
        """Ask every participant, from JAX's loops too. Its answer, one array, has no derivative here."""
        setting = self.setting
        name, size = step_name(question, setting.algorithm), self.participants.shape[0]
        shape = jax.eval_shape(lambda data: question(data.clients.party(0), broadcast), setting.data)
        leaves, tree = jax.tree.flatten((self.present_now, broadcast))
        setting.wire.note("query", name, broadcast, None)

        def ask(*arrays: np.ndarray) -> np.ndarray:
            present, sent = jax.tree.unflatten(tree, arrays)
            answers, _ = setting.wire.ask("query", name, (shape, {}), (present, sent, None, np.zeros(2)))
            return np.asarray(answers)

        return call_on_host(ask, (size, *shape.shape), shape.dtype, *leaves)

    def server(self, step: Callable[[Party, Received, Array], Any], broadcast: Any) -> Any:
        """Run a step on the server's own data."""
        received = Received(broadcast, None, self.round)
        return step(self.setting.data.server_party, received, fold_in(self.key, SERVER_STREAM))

    def mean(self, values: Any) -> Any:
        """Weighted aggregate over those that take part; weights are public."""
        everybody = jnp.asarray(self.setting.data.clients.weights)
        if self.setting.aggregation is not None:
            average = self.setting.aggregation.of(values, self.present)
            return jax.tree.map(lambda v: jnp.sum(everybody) * v, average)
        weights = jnp.where(self.present, everybody[self.participants], 0.0)
        absent = self.setting.algorithm.absent
        if absent == "unbiased":
            weights = weights * (everybody.size / self.count)
        elif absent == "renormalise":
            present = jnp.sum(weights)  # 0 where only clients of no weight take part: then nothing moves
            weights = weights * (jnp.sum(everybody) / jnp.where(present > 0, present, 1.0))
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), values)

    def loop(self, count: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
        """Loop as ``fori_loop`` does; the scalars sent are carried along."""
        traffic = self.setting.traffic

        def counted() -> dict[str, Array]:
            return {name: jnp.asarray(scalars, int) for name, scalars in traffic.items()}

        def one(index: Any, carry: tuple[Any, dict[str, Array]]) -> tuple[Any, dict[str, Array]]:
            state, sent = carry
            traffic.update(sent)
            return body(index, state), counted()

        state, sent = jax.lax.fori_loop(0, count, one, (state, counted()))
        traffic.update(sent)
        return state

    def _ask(self, kind: str, step: Callable[..., Any], one: Any, broadcast: Any, each: Any, seed: Array) -> Any:
        """Stacked answers, as a message to all participants brings them."""
        wire, name = self.setting.wire, step_name(step, self.setting.algorithm)
        size = self.participants.shape[0]
        stacked = jax.tree.map(lambda s: jax.ShapeDtypeStruct((size, *s.shape), s.dtype), one)
        given = (self.present_now, broadcast, each, jax.random.key_data(seed))
        wire.note(kind, name, broadcast, each)
        return exchange_on_host(lambda arrived: wire.ask(kind, name, one, arrived), stacked, given)

    def _note(self, way: str, scalars: Array | int) -> None:
        self.setting.traffic[self.level + way] += scalars


def _scalars(arrays: Any) -> int:
    """Count the scalars of what is sent, without what is known already."""
    leaves = jax.tree.leaves(arrays, is_leaf=lambda a: isinstance(a, Known))
    return sum(int(np.prod(jnp.shape(a), dtype=int)) for a in leaves if not isinstance(a, Known))
