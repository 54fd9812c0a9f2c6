"""What crosses between the server and a site: a few kinds of messages, each packed as bytes, with a list of the arrays in it."""

from __future__ import annotations

import pickle
from hashlib import sha256
from typing import Any, NamedTuple

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


class Start(NamedTuple):
    """What a run tells a site before its first round. ``mark`` is that of the declaration, ``solver`` is pickled."""

    version: str
    mark: str
    declared: str
    algorithm: str
    solver: bytes
    tables: dict[str, Any]
    rounds: int
    queries: str
    x0: np.ndarray
    largest: float
    noise: NoiseOrder | None = None
    masks: MaskOrder | None = None


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


class Unmask(NamedTuple):
    """The question for a site's own mask, once all messages of an attempt are there."""

    attempt: int


class Unmasked(NamedTuple):
    """Its answer: the mask's key."""

    key: bytes


class Item(NamedTuple):
    """One array of a message: what it is called, and its size."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def packed(message: Any) -> bytes:
    """The message as bytes."""
    return pickle.dumps(message, PROTOCOL)


def unpacked(parcel: bytes) -> Any:
    """The message again. Whoever can send it can run code here: see the threat model in docs/real_federations.md."""
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
) -> Start:
    """What a site is told of a run of a bound algorithm."""
    try:
        import cloudpickle as pickler  # schedules may be functions of the user's own
    except ImportError:
        pickler = pickle  # and then have to be importable

    tables, name = jax.tree.map(np.asarray, algorithm.tables), type(algorithm.settings).__name__
    solver = pickler.dumps(algorithm.settings)
    start = Start(version, mark, declared, name, solver, tables, rounds, algorithm.queries, np.asarray(x0), largest)
    return start._replace(noise=noise, masks=masks)
