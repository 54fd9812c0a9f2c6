"""The server's programs of a run over sites: who takes part, a round, the run's own value; compiled once, every message a call of the host.

Traced, they tell what a run's own algorithm asks of a site: a site answers nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data, Drawn
from hierfl.errors import SiteError
from hierfl.jaxtools.host_callback import call_on_host, exchange_on_host
from hierfl.jaxtools.keyed_random import fold_in, key_of
from hierfl.jaxtools.precision import computing
from hierfl.runtime.contract import (
    VALUE_STREAM,
    Algorithm,
    Clients,
    Cohort,
    Message,
    OwnValue,
    Question,
    Received,
    Step,
    numbers_of,
    rounded,
    taken,
)
from hierfl.runtime.records import as_tables, motion
from hierfl.runtime.sites.aggregation import Aggregation
from hierfl.runtime.sites.exchange import Request
from hierfl.runtime.sites.parcels import Asked, leaves_by_path, step_name


class Answering(Protocol):
    """What answers for sites: an exchange of messages, or what they have said already."""

    def ask(self, request: Request) -> Any:
        """Stacked answers ``(len(clients), ...)`` of a step."""


class Wire:
    """Where the calls of a compiled program find the messages of the run that it serves at present."""

    exchange: Answering | None = None
    drawn: list[Drawn] | None = None  # where a trace notes what clients' steps draw

    def __init__(self) -> None:
        self._one_by_one = Lock()  # compiled programs may ask for what does not depend on each other at once

    def note(self, kind: str, name: str, broadcast: Any, each: Any, told: Any) -> None:
        """While a program is traced: what a step will be sent, ``each`` with a leading axis of clients, and what one tells: (payload, monitor)."""

    def repeated(self, count: Any) -> AbstractContextManager[None]:
        """While a program is traced: what is noted within is sent so many times."""
        return nullcontext()

    def ask(self, kind: str, name: str, expected: Any, given: tuple[Any, ...]) -> Any:
        """Stacked answers of the participants; places of nobody repeat the first one's."""
        assert self.exchange is not None, "messages cross within a run"
        present, broadcast, each, seed = given
        participants, count = np.asarray(present.participants), present.count
        own = jax.tree.map(lambda a: a[: int(count)], each)
        clients = np.asarray(participants, int)[: int(count)]
        with self._one_by_one:
            answers = self.exchange.ask(Request(kind, name, clients, broadcast, own, np.asarray(seed, np.uint32), expected))
        places = np.where(np.arange(len(participants)) < int(count), np.arange(len(participants)), 0)
        return jax.tree.map(lambda a: a[places], answers)


@dataclass(frozen=True)
class SiteClients(Clients):
    """The ``Clients`` of the contract, by messages to sites; their rows in ``data`` are invented. ``all_present`` are those that are there."""

    wire: Wire
    problem: CompiledProblem
    algorithm: Any
    all_present: Cohort
    aggregation: Aggregation | None = None

    @property
    def everyone(self) -> SiteClients:
        return replace(self, cohort=self.all_present, level="lower_")

    def map(self, step: Step, broadcast: Any, each: Any = None, key: Array | None = None) -> Message:
        seed = self.key if key is None else key
        own = None if each is None else jax.tree.map(lambda a: a[0], each)
        wire, name, size = self.wire, step_name(step, self.algorithm), self.participants.shape[0]

        def of_one(data: Data) -> tuple[Any, Any]:
            party = replace(data.clients.party(0), drawn=wire.drawn)
            memory = self.algorithm.memory(jnp.zeros(self.problem.upper.size))
            _, message = taken(step, party, memory, Received(broadcast, own, self.round), fold_in(seed, 0))
            return message.payload, message.monitor

        one = jax.eval_shape(of_one, self.data)
        stacked = jax.tree.map(lambda s: jax.ShapeDtypeStruct((size, *s.shape), s.dtype), one)
        given = (self.cohort, broadcast, each, jax.random.key_data(seed))
        wire.note("map", name, broadcast, each, one)
        payload, monitor = exchange_on_host(lambda arrived: wire.ask("map", name, one, arrived), stacked, given)
        self._note_messages(broadcast, each, payload, monitor)
        return Message(payload, monitor)

    def query(self, question: Question, broadcast: Any) -> Array:
        """Ask every participant, from JAX's loops too. Its answer, one array, has no derivative here."""
        wire, name, size = self.wire, step_name(question, self.algorithm), self.participants.shape[0]
        shape = jax.eval_shape(lambda data: question(replace(data.clients.party(0), drawn=wire.drawn), broadcast), self.data)
        leaves, tree = jax.tree.flatten((self.cohort, broadcast))
        with wire.repeated(None):  # from JAX's own loops, too
            wire.note("query", name, broadcast, None, (shape, {}))

        def ask(*arrays: np.ndarray) -> np.ndarray:
            present, sent = jax.tree.unflatten(tree, arrays)
            answers, _ = wire.ask("query", name, (shape, {}), (present, sent, None, np.zeros(2)))
            return np.asarray(answers)

        return call_on_host(ask, (size, *shape.shape), shape.dtype, *leaves)

    def mean(self, values: Any) -> Any:
        """Weighted aggregate over those that take part; weights are public."""
        everybody = jnp.asarray(self.data.clients.weights)
        if self.aggregation is not None:
            average = self.aggregation.of(values, self.present)
            return jax.tree.map(lambda v: jnp.sum(everybody) * v, average)
        own = everybody[self.participants]
        return self._aggregate(values, own, self.algorithm.absent, everybody.size, jnp.sum(everybody))

    def loop(self, count: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
        with self.wire.repeated(count):
            return super().loop(count, body, state)


@dataclass(frozen=True)
class SitePrograms:
    """What an algorithm's server does, on one problem."""

    problem: CompiledProblem
    algorithm: Algorithm
    aggregation: Aggregation | None = None
    tracing: Wire | None = None  # in place of the run's own, and then nothing is kept

    @property
    def tables(self) -> dict[str, Any]:
        return as_tables(self.algorithm.tables)

    @property
    def wire(self) -> Wire:
        """Where the programs' messages go, one for all of them."""
        if self.tracing is not None:
            return self.tracing
        return self.problem.programs.keep("wire to sites", Wire)

    def participants(self) -> Callable[..., tuple[Array, Array]]:
        """``(round key, index)`` to a round's participants and how many they are."""

        def drawn(key: Array, index: Array) -> tuple[Array, Array]:
            cohort = self.algorithm.cohorts.of(key, index)
            return cohort.participants, jnp.asarray(cohort.count)

        return self._keep("participants", lambda: jax.jit(drawn))

    def round(self) -> Callable[..., tuple[Any, dict[str, Array]]]:
        """``(tables, state, data, present, all present, round key, index)`` to the new state and the round's record."""

        def one(
            tables: Any, state: Any, data: Any, present: Cohort, everyone: Cohort, key: Array, index: Array
        ) -> tuple[Any, dict[str, Array]]:
            algorithm = self.algorithm.with_tables(tables)
            clients = SiteClients(data, present, key, index, self.wire, self.problem, algorithm, everyone, self.aggregation)
            after, record = rounded(algorithm, clients, state, key)
            return after, {**record, **clients.sent, **motion(algorithm, state, after)}

        return self._keep("round", lambda: jax.jit(one))

    def own_value(self) -> Callable[..., OwnValue]:
        """``(tables, state, data, all present, round key, index, x)`` to all terms at x, with y by the run's own lower solver, and how well it fits."""

        def value(tables: Any, state: Any, data: Any, everyone: Cohort, key: Array, index: Array, x: Array) -> OwnValue:
            algorithm = self.algorithm.with_tables(tables)
            clients = SiteClients(data, everyone, key, index, self.wire, self.problem, algorithm, everyone).everyone
            return algorithm.own_value(clients, state, x, fold_in(key, VALUE_STREAM))

        return self._keep("own value", lambda: jax.jit(value))

    def _keep(self, name: str, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        if self.tracing is not None:
            return make()
        key = "sites", name, self.algorithm.program_key, self.aggregation
        return self.problem.programs.keep(key, make, of_run=True)


def present_in(clients: np.ndarray, size: int) -> Cohort:
    """Those clients in so many places, the first again in places of nobody."""
    filled = np.full(size, clients[0] if len(clients) else 0)
    filled[: len(clients)] = clients
    return Cohort(jnp.asarray(filled), jnp.asarray(len(clients)))


StepName = tuple[str, str]  # its kind, and its name


class _Noting(Wire):
    """A wire on which nothing is sent: it notes what would be, and how often in one program; ``inf`` where that is for data to say."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[StepName, list[Any]] = {}
        self.told: dict[StepName, Any] = {}
        self.often: Counter[StepName] = Counter()
        self.drawn: list[Drawn] = []  # by the step that is noted next
        self.drawn_by: dict[StepName, set[Drawn]] = {}
        self._times = 1.0

    def note(self, kind: str, name: str, broadcast: Any, each: Any, told: Any) -> None:
        self.told[kind, name] = told
        self.drawn_by.setdefault((kind, name), set()).update(self.drawn)
        self.drawn.clear()
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), (broadcast, each))
        known = self.shapes.setdefault((kind, name), [])
        if shapes not in known:
            known.append(shapes)
        self.often[kind, name] += self._times  # type: ignore[assignment]

    @contextmanager
    def repeated(self, count: Any) -> Iterator[None]:
        before = self._times
        self._times *= count if isinstance(count, int | np.integer) else math.inf
        yield
        self._times = before


@dataclass(frozen=True)
class RunProtocol:
    """The messages of a round, and of the run's own value at its end.

    ``shapes`` has by step the trees of ``jax.ShapeDtypeStruct`` of (broadcast, each) that it may be sent, ``told`` that of what a client tells,
    (payload, monitor), ``often`` how many times in one turn; ``drawn`` is what clients' steps draw of their tables.
    """

    shapes: Mapping[StepName, list[Any]]
    told: Mapping[StepName, Any]
    often: Mapping[StepName, float]
    drawn: Mapping[StepName, set[Drawn]]

    @classmethod
    def of(cls, problem: CompiledProblem, algorithm: Any, x0: np.ndarray) -> RunProtocol:
        with computing(double=True):
            noting = _Noting()
            programs = SitePrograms(problem, algorithm, tracing=noting)
            given = (programs.tables, algorithm.init(jnp.asarray(x0)), problem.laid_out())
            everybody = present_in(np.arange(problem.num_clients), problem.num_clients)
            some = present_in(np.arange(algorithm.cohorts.size), algorithm.cohorts.size)
            jax.eval_shape(programs.own_value(), *given, everybody, key_of(0), jnp.asarray(0), jnp.asarray(x0))
            of_value, noting.often = noting.often, Counter()
            jax.eval_shape(programs.round(), *given, some, everybody, key_of(0), jnp.asarray(0))
        return cls(noting.shapes, noting.told, noting.often | of_value, noting.drawn_by)

    def require(self, asked: Asked, before: int) -> None:
        """A message of the algorithm's, of a step answered so many times in this turn. Raises ``SiteError`` for others."""
        step = asked.kind, asked.step
        if not any(_fit(asked, *trees) for trees in self.shapes.get(step, ())):
            raise SiteError(f"{asked.kind} {asked.step!r} as it was sent is no message of this run's algorithm")
        if before >= self.often[step]:
            raise SiteError(f"{asked.kind} {asked.step!r} was answered in this round: it is asked for {before} times in one, not more")

    def fewest_rows(self, counts: Mapping[int, int], step: StepName | None = None) -> int | None:
        """The fewest rows that a step, or any, reads at once of a holder of so many in each table; None where it always reads all."""
        drawn = set().union(*self.drawn.values()) if step is None else self.drawn[step]
        return min((one.least(counts[one.table]) for one in drawn if one.table in counts), default=None)

    @property
    def numbers(self) -> int:
        """The most numbers that a client tells at once."""
        return max((sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(told[0])) for told in self.told.values()), default=0)


def _fit(asked: Asked, broadcast: Any, each: Any) -> bool:
    """Whether what was sent has the form of these trees; what each client has its own of has a leading axis of clients."""
    sent, wanted = (asked.broadcast, asked.each), (broadcast, each)
    kinds: list[Any] = [jax.tree.structure(sent), jax.tree.structure(wanted)]
    if kinds[0] != kinds[1]:
        return False
    own = [(len(asked.clients), *leaf.shape[1:]) for leaf in jax.tree.leaves(each)]
    shapes = [leaf.shape for leaf in jax.tree.leaves(broadcast)] + own
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(sent)]
    types = [np.dtype(leaf.dtype) for leaf in jax.tree.leaves(wanted)]
    return all(a.shape == shape and of_type(a.dtype, wanted) for a, shape, wanted in zip(arrays, shapes, types))


def of_type(sent: np.dtype, wanted: np.dtype) -> bool:
    """Whether numbers are of a type; whole ones come out of a compiled program as words of 32 bits, whose sign says nothing."""
    return sent == wanted or (sent.kind in "iu" and wanted.kind in "iu" and sent.itemsize <= wanted.itemsize)


def fitted(tables: Mapping[str, np.ndarray], own: Any) -> Any:
    """The server's tables in the places of one's own. Raises ``SiteError`` for those of another algorithm."""
    kinds = {name: (table.shape, table.dtype.kind) for name, table in leaves_by_path(own).items()}
    sent = {name: (np.shape(table), np.asarray(table).dtype.kind) for name, table in tables.items()}
    if kinds != sent:
        raise SiteError(f"the server's tables are {sent}, those of the same solver here are {kinds}.")
    return jax.tree.unflatten(jax.tree.structure(own), [tables[name] for name in leaves_by_path(own)])


def require_alike(algorithm: Any, sent: Mapping[str, np.ndarray]) -> None:
    """Require that the clients of a sum do alike, by the tables of the solver as it was sent: a client that does more is most of the sum.

    Raises ``SiteError``, naming the table that is another one, or by which they do not.
    """
    for name, own in leaves_by_path(algorithm.tables).items():
        if not np.array_equal(own, sent[name]):
            raise SiteError(f"under masks the server's table {name} has to be that of the solver as it was sent")
    for name, table in numbers_of(algorithm):
        if table.ndim == 2 and not (np.all(table > 0) and np.all(table == table[:, :1])):
            raise SiteError(f"by the table {name} clients do not alike, and one that does more than others is most of a sum")
