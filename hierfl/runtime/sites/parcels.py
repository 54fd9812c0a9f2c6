"""What crosses between the server and a site: a few kinds of messages, each packed as bytes, with a list of the arrays in it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hierfl.runtime.privacy.gaussian_noise import NoiseOrder
from hierfl.runtime.privacy.masked_numbers import Masking
from hierfl.runtime.privacy.pairwise_masks import MaskOrder
from hierfl.version import VERSION

PROTOCOL = 5


class Settled(NamedTuple):
    """What became of the last turn in which a site was asked: kept but for the clients ``undone``, or dropped."""

    turn: int
    kept: bool
    undone: tuple[int, ...]


class KeptMark(NamedTuple):
    """Where what a site's clients remember is kept: with the site, by these two; or in ``content``, for data that the server handed over."""

    run: str
    number: int
    content: bytes = b""


class Start(NamedTuple):
    """What a run tells a site before its first round, or before the next, where it goes on from what was ``kept``.

    ``mark`` is that of the declaration; ``solver`` is the solver, pickled where it travels so; ``tables`` are its arrays by their paths.
    """

    version: str
    mark: str
    declared: str
    algorithm: str
    solver: Any
    tables: dict[str, np.ndarray]
    rounds: int
    queries: str
    x0: np.ndarray
    largest: float
    noise: NoiseOrder | None = None
    masks: MaskOrder | None = None
    kept: KeptMark | None = None


class Welcome(NamedTuple):
    """A site's answer to a ``Start``: whose data it holds, by index, and its public key, where messages are masked."""

    clients: tuple[int, ...]
    key: bytes = b""


class Refusal(NamedTuple):
    """A site's word that it will not do what was asked, and why; ``failed`` if it tried."""

    reason: str
    failed: bool = False


class Asked(NamedTuple):
    """A step, by name, for clients of a site; ``turn`` counts the rounds that were tried, ``place`` the calls within one."""

    turn: int
    round: int
    place: int
    settled: Settled | None
    kind: str  # "map" or "query"
    step: str
    clients: np.ndarray
    seed: np.ndarray
    broadcast: Any
    each: Any
    masking: Masking | None = None

    def questions(self) -> list[bytes]:
        """A mark for each client of what it is asked: equal where the answer would be."""
        common = packed((self.turn, self.round, self.kind, self.step, self.seed, self.broadcast))
        own = [packed(jax.tree.map(lambda a, i=i: np.asarray(a)[i], self.each)) for i in range(len(self.clients))]
        return [sha256(common + part).digest() for part in own]


class Answered(NamedTuple):
    """The messages of a site's clients, stacked in the order in which they were asked."""

    payload: Any
    monitor: Any
    seconds: float


class Keep(NamedTuple):
    """The question to keep what clients remember after the turns that are settled, for a checkpoint."""

    run: str
    number: int
    settled: Settled | None


class Kept(NamedTuple):
    """Its answer: whether this site has a place for it. ``content`` is what it is, where the server handed the data over, and empty elsewhere."""

    kept: bool
    content: bytes = b""


class Unmask(NamedTuple):
    """The question for a site's own mask, once all messages of an attempt are there."""

    attempt: int


class Unmasked(NamedTuple):
    """Its answer: the mask's key."""

    key: bytes


REPLIES = (Welcome, Refusal, Answered, Kept, Unmasked)


class Item(NamedTuple):
    """One array of a message: what it is called, and its size."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


class Packing(Protocol):
    """How the server's messages become bytes, and the sites' bytes messages again."""

    def packed(self, message: Any) -> bytes:
        """The message as bytes, the same for the same message."""

    def unpacked(self, reply: bytes, expected: Any) -> Any:
        """A site's answer; ``expected`` is the tree of shapes of one client's (payload, monitor), or None. One that cannot be is a Refusal."""

    def items(self, parcel: bytes) -> tuple[Item, ...]:
        """The arrays of a parcel, sent or received."""


class Pickling:
    """Messages are pickled. Whoever can send one can run code where it arrives: see the threat model in docs/real_federations.md."""

    def packed(self, message: Any) -> bytes:
        """The message as bytes."""
        return packed(message)

    def unpacked(self, reply: bytes, expected: Any) -> Any:
        """The message again."""
        message = _read(reply)
        if not isinstance(message, REPLIES):
            return Refusal(f"sent {type(message).__name__}, which is no message", failed=True)
        if isinstance(message, Answered) and not isinstance(message.seconds, float):
            return Refusal("sent seconds that are no number", failed=True)
        return message

    def items(self, parcel: bytes) -> tuple[Item, ...]:
        """Arrays and numbers."""
        message = _read(parcel)
        return tuple(items_of(message._asdict() if hasattr(message, "_asdict") else message))


def _read(parcel: bytes) -> Any:
    """The message, or a refusal of what cannot be read."""
    try:
        return unpacked(parcel)
    except Exception as error:  # what is no pickle can raise anything
        return Refusal(f"sent what cannot be read ({type(error).__name__})", failed=True)


def packed(message: Any) -> bytes:
    """The message, pickled."""
    return pickle.dumps(message, PROTOCOL)


def unpacked(parcel: bytes) -> Any:
    """The message again."""
    return pickle.loads(parcel)


def items_of(message: Any) -> list[Item]:
    """The arrays and numbers of a message, by where they stand in it."""
    listed = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(message)[0]:
        if isinstance(leaf, str | bytes | None):
            continue
        array, name = np.asarray(leaf), jax.tree_util.keystr(path)
        listed.append(Item(name.removeprefix("['").replace("']", "", 1), array.shape, array.dtype.str, array.nbytes))
    return listed


def leaves_by_path(tree: Any, name: str = "") -> dict[str, np.ndarray]:
    """The arrays of a tree by where they stand in it."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {f"{name}{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}


def pickled_solver(settings: Any) -> bytes:
    """A solver's settings as they travel where messages are pickled."""
    try:
        import cloudpickle as pickler  # schedules may be functions of the user's own
    except ImportError:
        pickler = pickle  # and then have to be importable
    solver: bytes = pickler.dumps(settings)
    return solver


def starting(
    algorithm: Any,
    mark: str,
    declared: str,
    rounds: int,
    x0: np.ndarray,
    version: str = VERSION,
    largest: float = float("inf"),
    noise: NoiseOrder | None = None,
    masks: MaskOrder | None = None,
    solver_as: Callable[[Any], Any] = pickled_solver,
) -> Start:
    """What a site is told of a run of a bound algorithm."""
    tables, name = leaves_by_path(algorithm.tables), type(algorithm.settings).__name__
    solver = solver_as(algorithm.settings)
    start = Start(version, mark, declared, name, solver, tables, rounds, algorithm.queries, np.asarray(x0), largest)
    return start._replace(noise=noise, masks=masks)
