"""What an algorithm may ask of the place where its clients run, and what a runtime may ask of an algorithm.

Inside a round the server reaches clients only through ``Clients.map`` and ``Clients.query``; what is transmitted is what
these are given and what their steps return, so it is visible, and counted, in one place. Algorithms never know where
clients run: a step is a *method of the bound algorithm (or of its lower-level solver)*, a pure function of its arguments,
so that a client in another process, which holds the same declaration, finds it by name.

Who takes part is a keyed random subset without replacement, at a cost that does not grow with the federation: beyond ``SORTED`` clients the
image of 0, ..., S - 1 under a keyed permutation, any entry of which is found without the others. The keys of a round are here too, those
beside its clients', whose indices are the smaller numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import signature
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.analysis.theorems import Prescription
from hierfl.compiler.data.tables import Data, Party
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.descent.implicit_oracle import Answers
from hierfl.errors import SettingError
from hierfl.jaxtools.keyed_random import fold_in, keyed_permutation, words

ROUND_STREAM = 2**31 - 1  # what the algorithm draws at the server
COHORT_STREAM = 2**31 - 2  # who takes part
SERVER_STREAM = 2**31 - 3  # what the server draws as a holder of data
VALUE_STREAM = 2**31 - 4  # the algorithm's own value at the end
PRICE_STREAM = 2**31 - 5  # the question for means over clients

SORTED = 128
CLOUD = "cloud_"  # what edges and the cloud exchange
SENT = tuple(level + way for level in ("", "lower_", CLOUD) for way in ("scalars_down", "scalars_up"))
TRAFFIC = (*SENT, "monitor_scalars", "lower_monitor_scalars")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cohort:
    """Who takes part in a round: the first ``count`` of ``participants`` (S,); places beyond repeat the first of them.

    ``count`` is a Python number where it is S in every round.
    """

    participants: Array
    count: Array | int


def draw_participants(round_key: Array, cohort: int, total: int) -> Array:
    """Draw the indices of a round's participants ``(cohort,)``: all in order, or a keyed random subset in any."""
    if cohort == total:
        return jnp.arange(total)
    key = fold_in(round_key, COHORT_STREAM)
    if total <= SORTED:
        return jnp.argsort(words(key, 0, 0, total))[:cohort]
    return keyed_permutation(key, jnp.arange(cohort), total)


def cohort_size(participation: float, clients: int) -> int:
    """The number of participants, ceil(participation * m). Raises ``SettingError`` if the fraction is not in (0, 1]."""
    if not 0 < participation <= 1:
        raise SettingError(f"participation={participation}: a fraction of the clients in (0, 1].")
    return min(clients, math.ceil(participation * clients - 1e-9))


class Message(NamedTuple):
    """What one client sends: the algorithm's ``payload``, and ``monitor`` numbers for history and errors.

    ``monitor`` is counted apart: it carries the objective's estimate, the residual and error codes.
    """

    payload: Any
    monitor: dict[str, Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Known:
    """Values that the clients hold already in this round (sent once by ``Clients.share``, or computed from those)."""

    values: Any


class OwnValue(NamedTuple):
    """What a run says of f at an x, with y as its own lower solver gives it: the ``value``, and how well that y fits the data.

    ``residual`` and ``error_bound`` are those of ``Judgement``, the largest of what the parties say that hold the data, each of its own
    y; ``worst`` is the client with the largest residual, -1 where the clients share a y, or there is none.
    """

    value: Array
    residual: Array
    error_bound: Array
    worst: Array

    @classmethod
    def of(cls, value: Any, residual: Any = np.nan, error_bound: Any = np.inf, worst: Any = -1) -> OwnValue:
        """The value, of whose y nothing more is known unless it is said."""
        return cls(*map(jnp.asarray, (value, residual, error_bound, worst)))


class Received(NamedTuple):
    """What one client receives: the ``broadcast``, its ``own`` part of ``each``, and the index of the round."""

    broadcast: Any
    own: Any
    round: Array


class Ending(NamedTuple):
    """What ends a run between blocks: the outcome after ``rounds`` rounds is wanted, perhaps fewer than have been made."""

    rounds: int


Step = Callable[[Party, Any, Received, Array], tuple[Any, Message]]
Question = Callable[[Party, Any], Any]


def taken(step: Step, party: Party, memory: Any, received: Received, key: Array) -> tuple[Any, Message]:
    """What a client's step gives; raises ``TypeError`` where that is not (memory, message), the memory shaped as before."""
    require_call(step, "party", "memory", "received", "key")
    told: Any = step(party, memory, received, key)
    if not (isinstance(told, tuple) and len(told) == 2 and isinstance(told[1], Message)):
        given = f"({', '.join(type(part).__name__ for part in told)})" if type(told) is tuple else type(told).__name__
        due = "(memory, Message(payload, monitor)), with monitor={} where nothing is watched"
        raise TypeError(f"{getattr(step, '__qualname__', step)} gives {given}: a client's step gives {due}.")
    _require_alike(step, "memory", told[0], memory)
    return told[0], told[1]


def rounded(algorithm: Algorithm, clients: Clients, state: Any, key: Array) -> tuple[Any, dict[str, Array]]:
    """What a round gives; raises ``TypeError`` where that is not (state, record), the state shaped as before. ``key`` is the round's."""
    require_call(algorithm.round, "clients", "state", "key")
    told: Any = algorithm.round(clients, state, fold_in(key, ROUND_STREAM))
    record = told[1] if type(told) is tuple and len(told) == 2 else None
    if not isinstance(record, dict) or "objective" not in record or any(map(jnp.ndim, record.values())):
        name = algorithm.round.__qualname__
        raise TypeError(f"{name} gives no (state, record) with a record of single numbers by name, the objective among them, as RoundMonitor(...).record makes it.")
    _require_alike(algorithm.round, "state", told[0], state)
    return told[0], record


def require_call(function: Any, *given: str) -> None:
    """Check that a method takes these arguments in this order. Raises ``TypeError`` that says how it is called."""
    if not callable(function):
        raise TypeError(f"{function!r} is no method: give one that is called with ({', '.join(given)}), such as self.step.")
    try:
        signature(function).bind(*given)
    except TypeError:
        raise TypeError(f"{function.__qualname__}{signature(function)}: it is called with ({', '.join(given)}).") from None


def _require_alike(function: Any, what: str, after: Any, before: Any) -> None:
    found, had = (jax.tree.map(lambda part: f"{jnp.result_type(part)}{list(jnp.shape(part))}", every) for every in (after, before))
    if jax.tree.flatten(found) != jax.tree.flatten(had):
        raise TypeError(f"{function.__qualname__} gives a {what} of {found}, where it was {had}: it keeps its shapes and types from round to round.")


@dataclass
class Shared:
    """What changes within a round: the clients' memories (leading axis m), where they are here."""

    memory: Any = None


@dataclass(frozen=True)
class Clients:
    """The clients that take part in one round, as an algorithm sees them; a runtime says how a step reaches them.

    ``data`` are as the server has them; ``key`` is the round's, a seed that all share: a client's step runs with ``fold_in(key, client)``
    (that of ``hierfl.jaxtools.keyed_random``) unless told otherwise; ``round`` is its index. ``traffic`` counts scalars by way; ``level``
    stands before the ways of the lower level.
    """

    data: Data
    cohort: Cohort
    key: Array
    round: Array
    traffic: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(TRAFFIC, 0), kw_only=True)
    level: str = field(default="", kw_only=True)
    shared: Shared = field(default_factory=Shared, kw_only=True)

    @property
    def participants(self) -> Array:
        """The indices of the round's participants, ``(S,)``; in a round of fewer than S the first of them stands in the other places."""
        return self.cohort.participants

    @property
    def count(self) -> Array | int:
        """How many take part: the first so many of ``participants``."""
        return self.cohort.count

    @property
    def present(self) -> Array:
        """Which places of ``participants`` are taken by somebody of their own, ``(S,)`` booleans."""
        return jnp.arange(self.participants.shape[0]) < self.count

    @property
    def public(self) -> dict[int, Array]:
        """The values of the declaration's plain parameters, known to everybody."""
        return self.data.clients.public

    @property
    def everyone(self) -> Clients:
        """All clients as participants, for the federated solution of a lower level; its traffic is counted apart."""
        raise NotImplementedError

    def map(self, step: Step, broadcast: Any, each: Any = None, key: Array | None = None) -> Message:
        """Run ``step(party, memory, received, key)`` at every participant, and stack the messages (leading axis S).

        A client's memory stays with it; an absent client's is untouched. ``key`` seeds the step (each client's is folded
        in): by default the round's, so that several maps in one round need keys of their own.
        """
        raise NotImplementedError

    def share(self, values: Any) -> Known:
        """Send values to every participant once; later maps of the round refer to them at no cost."""
        self._note("scalars_down", self.count * _scalars(values))
        return Known(values)

    def charge(self, way: str, scalars: Any, tier: str = "") -> None:
        """Count scalars (``way`` is ``"down"`` or ``"up"``) that a real run would send where the simulation shares arrays.

        With the tier ``"cloud_"`` they pass between edges and the cloud.
        """
        self.traffic[f"{tier or self.level}scalars_{way}"] += scalars

    def query(self, question: Question, broadcast: Any) -> Any:
        """Ask ``question(party, broadcast)`` of every participant, and stack the answers: no memory, no randomness, not counted.

        Unlike ``map`` it may stand inside JAX's own loops: it is how an exact federation-scope solution is simulated.
        """
        raise NotImplementedError

    def server(self, step: Callable[[Party, Received, Array], Any], broadcast: Any) -> Any:
        """Run ``step(party, received, key)`` on the server's own data."""
        received = Received(broadcast, None, self.round)
        return step(self.data.server_party, received, fold_in(self.key, SERVER_STREAM))

    def mean(self, values: Any) -> Any:
        """Form the weighted aggregate of per-participant values (leading axis S): linear in them, and differentiable by JAX.

        It is sum_i w_i v_i over the participants, with the weights that ``Algorithm.absent`` asks for: ``"unbiased"`` times m/|S|,
        ``"renormalise"`` scaled so that they sum to those of all clients (0 where all participants weigh nothing), ``"zero"``
        as they are.
        """
        raise NotImplementedError

    def loop(self, count: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
        """Do ``state = body(i, state)`` for i < count: the only loop that may contain a ``map``.

        As ``fori_loop`` does, which carries what was sent and what clients remember: it may be of the round, and then known by no other program.
        """

        def one(index: Any, carry: tuple[Any, Any, dict[str, Array]]) -> tuple[Any, Any, dict[str, Array]]:
            state, self.shared.memory, sent = carry
            self.traffic.update(sent)
            return body(index, state), self.shared.memory, self.sent

        state, self.shared.memory, sent = jax.lax.fori_loop(0, count, one, (state, self.shared.memory, self.sent))
        self.traffic.update(sent)
        return state

    @property
    def sent(self) -> dict[str, Array]:
        """The scalars so far, by way."""
        return {name: jnp.asarray(count, int) for name, count in self.traffic.items()}

    def _note(self, way: str, scalars: Any) -> None:
        self.traffic[self.level + way] += scalars

    def _note_messages(self, broadcast: Any, each: Any, payload: Any, monitor: Any) -> None:
        """Count what a map sends down and up; all but the broadcast have a leading axis of participants."""
        size = self.participants.shape[0]
        self._note("scalars_down", self.count * _scalars(broadcast))
        for way, stacked in (("scalars_down", each), ("scalars_up", payload), ("monitor_scalars", monitor)):
            self._note(way, self.count * (_scalars(stacked) // size))

    def _aggregate(self, values: Any, own: Array, absent: str, clients: int, total: Any) -> Any:
        """The ``mean`` by their ``own`` weights; there are so many ``clients``, whose weights sum to ``total``."""
        weights, count = own, self.count
        if not isinstance(count, int) or count < self.participants.shape[0]:
            weights = jnp.where(self.present, weights, 0.0)
        if absent == "unbiased":
            weights = weights * (clients / count)
        elif absent == "renormalise":
            present = jnp.sum(weights)  # 0 where only clients of no weight take part: then nothing moves
            weights = weights * (total / jnp.where(present > 0, present, 1.0))
        elif absent != "zero":
            raise SettingError(f'absent={absent!r}: "unbiased", "renormalise" or "zero".')
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), values)


def _scalars(arrays: Any) -> int:
    """Count the scalars of what is sent, without what is known already."""
    leaves = jax.tree.leaves(arrays, is_leaf=lambda a: isinstance(a, Known))
    return sum(int(np.prod(jnp.shape(a), dtype=int)) for a in leaves if not isinstance(a, Known))


class Work(NamedTuple):
    """A client's step: whether its lower level takes no iterations, the rows it reads (None for all), and at how many points."""

    at_once: bool
    rows: int | None
    points: int


class Cohorts(Protocol):
    """Who takes part in which round."""

    @property
    def size(self) -> int:
        """The most clients that take part in a round, S."""

    @property
    def everybody(self) -> bool:
        """Whether all clients take part in every round."""

    @property
    def by_chance(self) -> bool:
        """Whether they are drawn, all clients alike, so that participants' terms times m/|S| are unbiased; a script is not."""

    def of(self, round_key: Array, index: Array) -> Cohort:
        """Give a round's participants; traceable."""

    def counts(self, rounds: int) -> np.ndarray:
        """Count the participants of the first rounds, ``(rounds,)``."""


class Method(Protocol):
    """A solver bound to a problem, as a run sees it."""

    @property
    def cohorts(self) -> Cohorts:
        """Who takes part in which round."""

    @property
    def stays_in_upper_set(self) -> bool:
        """Whether its iterates are in X, so that it begins at the projection of x0."""

    @property
    def advice(self) -> str:
        """What to change where the lower level was not solved."""

    def init(self, x0: Array) -> Any:
        """Make the server's state at round 0."""

    def memory(self, x0: Array) -> Any:
        """Make one client's memory at round 0 (a pytree of arrays)."""

    def decision(self, state: Any) -> Array:
        """Give the flat x of a state."""

    def response(self, state: Any, memory: Any) -> Array | None:
        """Give the latest y (owners, size) that the run holds, as metrics see it; None where there is none."""

    @property
    def theory(self) -> Prescription | None:
        """What the class's theorem prescribes, where the settings ask for it."""

    def caveat(self, rounds: int) -> str | None:
        """Say what keeps the method's theory from holding in a run of so many rounds."""

    def rests(self, state: Any) -> bool:
        """Whether by the method's own word nothing is left to gain, so that its run ends with the block."""

    def descends(self, rounds: int) -> bool:
        """Whether its moves in so many rounds can be compared with gradient steps, and a tolerance with them."""

    @property
    def slope_of(self) -> str:
        """What ``gradient_at_most`` is said to be of, with a place for the block's ``{rounds}``."""

    def gradient_at_most(self, before: np.ndarray, after: np.ndarray, history: Any, first: int) -> float | None:
        """Bound the gradient's length over a block of rounds that began with ``first``, from x at its ends and its records.

        None where the moves of the method are no gradient steps.
        """


class Visit(NamedTuple):
    """A round of a method that asks for f itself: the state after it, its record, why the method has ended, if it has, and f there, if it is known."""

    state: Any
    record: dict[str, float]
    ended: str | None
    evaluation: Evaluation | None = None


@runtime_checkable
class Visitor(Method, Protocol):
    """A method for which all data have to be in this process: every round evaluates f, the lower level solved exactly."""

    def visits(self, start: np.ndarray, seed: int, answers: Answers) -> Iterator[Visit]:
        """Make the rounds of a run from a flat start, one after another; every value of f is kept in ``answers``.

        Those that are there already are taken for what they are: rounds before the last of them have no record again.
        """


class Algorithm(Method, Protocol):
    """A solver bound to a problem, as runtimes see it: rounds that reach clients by messages."""

    @property
    def settings(self) -> Any:
        """The solver that was bound; bound to the same declaration elsewhere it is the same algorithm, on other tables."""

    @property
    def queries(self) -> str:
        """The word on queried points that it was bound with."""

    @property
    def absent(self) -> str:
        """How absent clients count."""

    @property
    def work(self) -> Work:
        """A step of a client, for the choice of a schedule."""

    @property
    def program_key(self) -> Hashable:
        """Algorithms of one problem with the same key are the same program on other tables."""

    @property
    def tables(self) -> dict[str, Any]:
        """The arrays that a program takes as arguments: schedules over the rounds."""

    def with_tables(self, given: dict[str, Any]) -> Algorithm:
        """Give the same algorithm on other tables, or on traced ones."""

    def round(self, clients: Clients, state: Any, key: Array) -> tuple[Any, dict[str, Array]]:
        """Do one communication round: the new state and the round's record."""

    def anew(self, state: Any, forgotten: bool) -> Any | None:
        """Give the state from which to go on with fresh memories at all clients, since one is back that missed rounds; None where it may.

        ``forgotten`` says that it also lost what it remembered, as a process that was started again.
        """

    def cut_short(self, last: int, steps: int) -> Algorithm:
        """The same algorithm with so many local steps in round ``last``, for the iterate that its theorem is about."""

    def gradient_steps(self, first: int, last: int) -> np.ndarray | None:
        """Count how many steps along -grad f the moves of rounds first, ..., last - 1 amount to; None where they are none."""

    def own_value(self, clients: Clients, state: Any, x: Array, key: Array) -> OwnValue:
        """Evaluate the clients' and the server's terms at x with y as this run's own lower solver gives it, and how well that y fits."""


def numbers_of(algorithm: Any) -> Iterator[tuple[str, Any]]:
    """All arrays of a bound solver and of its parts, by name: its tables, and those that are constants of its programs."""
    own = {part.name: getattr(algorithm, part.name) for part in fields(algorithm)} if is_dataclass(algorithm) else getattr(algorithm, "tables", {})
    for name, value in own.items():
        if isinstance(value, np.ndarray | jax.Array):
            yield name, value
        elif hasattr(value, "with_tables"):
            yield from numbers_of(value)
