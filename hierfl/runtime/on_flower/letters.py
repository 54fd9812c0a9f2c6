"""The messages of a run as letters: what each is called, and what is taken for one; whatever else arrives is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from hierfl.errors import SiteError
from hierfl.runtime.on_flower.letter import Letter
from hierfl.runtime.privacy.gaussian_noise import NoiseOrder
from hierfl.runtime.privacy.masked_numbers import KEY, Masking
from hierfl.runtime.privacy.pairwise_masks import MaskOrder
from hierfl.runtime.sites.parcels import (
    Answered,
    Asked,
    Item,
    Keep,
    Kept,
    KeptMark,
    Refusal,
    Settled,
    Start,
    Unmask,
    Unmasked,
    Welcome,
)

WORDS_OF_START = ("version", "mark", "declared", "algorithm", "solver", "rounds", "queries", "largest")
SERVER = "server"  # the word by which a site tells apart who asks
UNDONE = "settled_undone"  # the array of clients whose last message did not count
ORDERS: dict[str, tuple[Any, dict[str, type]]] = {
    "noise": (
        NoiseOrder,
        {
            "clip": float,
            "multiplier": float,
            "delta": float,
            "releases": int,
            "run": str,
            "shared": bool,
            "colluding": int,
        },
    ),
    "masks": (MaskOrder, {"least": int, "bits": int, "run": str}),
}


class Hello(NamedTuple):
    """The question who is there."""


class Introduction(NamedTuple):
    """A site's answer to ``Hello``: what its owner calls it, and whose data it holds, by index."""

    name: str
    clients: tuple[int, ...]


class Letters:
    """The packing of a run's messages on the server's side."""

    def packed(self, message: Any) -> bytes:
        """The message as the bytes of a letter."""
        return letter_of(message).as_bytes()

    def unpacked(self, reply: bytes, expected: Any) -> Any:
        """A site's answer, whose arrays are those that are expected; anything else is a Refusal that says so."""
        try:
            return _reply_of(Letter.from_bytes(reply), expected)
        except SiteError as error:
            return Refusal(f"sent {error}", failed=True)

    def items(self, parcel: bytes) -> tuple[Item, ...]:
        """The arrays of a letter."""
        arrays = Letter.from_bytes(parcel).arrays
        return tuple(Item(name, array.shape, array.dtype.str, array.nbytes) for name, array in arrays.items())


def letter_of(message: Any) -> Letter:
    """The letter of a message."""
    words: dict[str, Any] = {"message": type(message).__name__}
    if isinstance(message, Start):
        words |= {name: getattr(message, name) for name in WORDS_OF_START}
        for order in ORDERS:
            if (asked := getattr(message, order)) is not None:
                words |= {f"{order}_{name}": value for name, value in asked._asdict().items()}
        if message.kept is not None:
            words |= {"kept_run": message.kept.run, "kept_number": message.kept.number}
        tables = {f"tables{path}": table for path, table in message.tables.items()}
        return Letter(words, {"x0": np.asarray(message.x0), **tables})
    if isinstance(message, Asked):
        words |= {name: getattr(message, name) for name in ("turn", "round", "place", "kind", "step")}
        arrays: dict[str, Any] = {
            "clients": np.asarray(message.clients, np.int64),
            "seed": np.asarray(message.seed, np.uint32),
        }
        told, undone = _settled(message.settled)
        words, arrays = words | told, arrays | undone
        if message.masking is not None:
            words["attempt"], arrays["keys"] = message.masking.attempt, _bytes(b"".join(message.masking.keys))
        return Letter(words, arrays | _sent(message.broadcast, message.each))
    if isinstance(message, Answered):
        return Letter(words | {"seconds": message.seconds}, _told(message.payload, message.monitor))
    if isinstance(message, Introduction):
        return Letter(words | {"name": message.name}, {"clients": np.array(message.clients, np.int64)})
    if isinstance(message, Welcome):
        return Letter(words, {"clients": np.array(message.clients, np.int64), "key": _bytes(message.key)})
    if isinstance(message, Unmask):
        return Letter(words | {"attempt": message.attempt}, {})
    if isinstance(message, Unmasked):
        return Letter(words, {"key": _bytes(message.key)})
    if isinstance(message, Keep):
        told, undone = _settled(message.settled)
        return Letter(words | {"run": message.run, "number": message.number} | told, undone)
    if isinstance(message, Kept):  # nothing is handed back where sites have their own data
        return Letter(words | {"kept": message.kept}, {})
    if isinstance(message, Refusal):
        words |= {"reason": message.reason, "failed": message.failed}
    return Letter(words, {})


def start_of(letter: Letter, read_solver: Callable[[str], Any]) -> Start:
    """The beginning of a run; ``read_solver`` makes a solver of its text.

    Raises
    ------
    SiteError
        For a letter that is no such message.
    """
    words = _words(letter, Start, version=str, mark=str, declared=str, algorithm=str, solver=str, queries=str)
    numbers = _words(letter, Start, rounds=int, largest=float)
    prefix = "tables"
    tables = {name.removeprefix(prefix): a for name, a in letter.arrays.items() if name.startswith(prefix)}
    x0 = letter.arrays.get("x0")
    if x0 is None or x0.ndim != 1 or x0.dtype != np.float64 or len(tables) + 1 != len(letter.arrays):
        raise SiteError("a start of a run whose arrays are not its x0 and its tables.")
    orders = {}
    for order, (kind, types) in ORDERS.items():
        if f"{order}_run" in letter.words:
            told = _words(letter, kind, **{f"{order}_{name}": of for name, of in types.items()})
            orders[order] = kind(**{name: told[f"{order}_{name}"] for name in types})
    solver = read_solver(words["solver"])
    if type(solver).__name__ != words["algorithm"]:  # which is what the owner's rules are about
        raise SiteError(f"a start of {words['algorithm']!r} whose solver is {type(solver).__name__}.")
    kept = None
    if "kept_run" in letter.words:
        mark = _words(letter, KeptMark, kept_run=str, kept_number=int)
        kept = KeptMark(mark["kept_run"], mark["kept_number"])
    return Start(**words | numbers | {"solver": solver}, tables=tables, x0=x0, kept=kept, **orders)


def asked_of(letter: Letter, steps: dict[tuple[str, str], list[Any]], held: set[int]) -> Asked:
    """A step that is asked for; its arrays are those of one of the algorithm's ``steps``, its clients are among those ``held`` here.

    Raises
    ------
    SiteError
        Saying which of the two is not so.
    """
    words = _words(letter, Asked, turn=int, round=int, place=int, kind=str, step=str)
    clients = _array(letter, "clients", np.int64, 1)
    seed = _array(letter, "seed", np.uint32, 1)
    count = clients.size
    if seed.shape != (2,) or not count or not set(clients.tolist()) <= held or len(set(clients.tolist())) != count:
        raise SiteError(f"a message for clients {clients.tolist()[:8]}, of whom not all are here, or with no seed.")
    settled = _settled_of(letter, held)
    own = {"clients", "seed"} | ({UNDONE} if settled is not None else set())
    masking = None
    if "attempt" in letter.words:
        attempt, keys = _words(letter, Asked, attempt=int)["attempt"], _array(letter, "keys", np.uint8, 1)
        own.add("keys")
        if keys.size % KEY:
            raise SiteError("a message with parts of keys.")
        masking = Masking(attempt, tuple(keys[place : place + KEY].tobytes() for place in range(0, keys.size, KEY)))
    arrays = {name: array for name, array in letter.arrays.items() if name not in own}
    for broadcast, each in steps.get((words["kind"], words["step"]), ()):
        if _fit(arrays, _sent(broadcast, each), {"each": count}):
            parts = [_filled(tree, arrays, name) for tree, name in ((broadcast, "broadcast"), (each, "each"))]
            asked = Asked(settled=settled, clients=clients, seed=seed, broadcast=parts[0], each=parts[1], **words)
            return asked._replace(masking=masking)
    sent = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in arrays.items())
    raise SiteError(
        f"{words['kind']} {words['step']!r} with {sent or 'no arrays'}: no message of this run's algorithm."
    )


def keep_of(letter: Letter, held: set[int]) -> Keep:
    """The question to keep what clients remember.

    Raises
    ------
    SiteError
        For a letter that is no such message.
    """
    words = _words(letter, Keep, run=str, number=int)
    return Keep(words["run"], words["number"], _settled_of(letter, held))


def unmask_of(letter: Letter) -> Unmask:
    """The question for a site's own mask.

    Raises
    ------
    SiteError
        For a letter that is no such message.
    """
    return Unmask(_words(letter, Unmask, attempt=int)["attempt"])


def introduction_of(letter: Letter) -> Introduction:
    """Who a site says that it is.

    Raises
    ------
    SiteError
        For a letter that is no such message.
    """
    words = _words(letter, Introduction, name=str)
    return Introduction(words["name"], tuple(_array(letter, "clients", np.int64, 1).tolist()))


def _reply_of(letter: Letter, expected: Any) -> Welcome | Answered | Unmasked | Kept | Refusal:
    kind = letter.words.get("message")
    if kind == "Refusal":
        return Refusal(**_words(letter, Refusal, reason=str, failed=bool))
    if kind == "Welcome" and expected is None:
        key = _array(letter, "key", np.uint8, 1).tobytes()
        return Welcome(tuple(_array(letter, "clients", np.int64, 1).tolist()), key)
    if kind == "Unmasked" and expected is None:
        return Unmasked(_array(letter, "key", np.uint8, 1).tobytes())
    if kind == "Kept" and expected is None:
        return Kept(_words(letter, Kept, kept=bool)["kept"])
    if kind != "Answered" or expected is None:
        raise SiteError("a message of another kind than is due.")
    names = list(_told(*expected))
    if set(names) != letter.arrays.keys():
        raise SiteError(f"the arrays {', '.join(letter.arrays)}, not {', '.join(names)}.")
    payload, monitor = (_filled(tree, letter.arrays, name) for tree, name in zip(expected, ("payload", "monitor")))
    return Answered(payload, monitor, _words(letter, Answered, seconds=float)["seconds"])


def _settled(settled: Settled | None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What became of the last turn, as words and arrays."""
    if settled is None:
        return {}, {}
    return {"settled_turn": settled.turn, "settled_kept": settled.kept}, {UNDONE: np.array(settled.undone, np.int64)}


def _settled_of(letter: Letter, held: set[int]) -> Settled | None:
    """What a letter says of the last turn."""
    if "settled_turn" not in letter.words:
        return None
    told = _words(letter, Settled, settled_turn=int, settled_kept=bool)
    undone = _array(letter, UNDONE, np.int64, 1)
    if not set(undone.tolist()) <= held:
        raise SiteError("a message that settles what became of clients who are not here.")
    return Settled(told["settled_turn"], told["settled_kept"], tuple(undone.tolist()))


def _bytes(key: bytes) -> np.ndarray:
    return np.frombuffer(key, np.uint8)


def _words(letter: Letter, kind: type, /, **types: type) -> dict[str, Any]:
    """Words of a letter, each of its type."""
    found: dict[str, Any] = {}
    for name, wanted in types.items():
        word = letter.words.get(name)
        if wanted is float and type(word) is int:
            word = float(word)
        if type(word) is not wanted:
            raise SiteError(f"a message without the word {name!r} of {kind.__name__}.")
        found[name] = word
    return found


def _array(letter: Letter, name: str, dtype: Any, axes: int) -> np.ndarray:
    array = letter.arrays.get(name)
    if array is None or array.dtype != dtype or array.ndim != axes:
        raise SiteError(f"a message without the array {name!r}.")
    return array


def _sent(broadcast: Any, each: Any) -> dict[str, Any]:
    """What a step is sent, arrays or their shapes, by name."""
    return _by_name(broadcast=broadcast, each=each)


def _told(payload: Any, monitor: Any) -> dict[str, Any]:
    """What a step tells, arrays or their shapes, by name."""
    return _by_name(payload=payload, monitor=monitor)


def _by_name(**trees: Any) -> dict[str, Any]:
    return {
        f"{name}{jax.tree_util.keystr(path)}": leaf if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(leaf)
        for name, tree in trees.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def _fit(arrays: dict[str, np.ndarray], shapes: dict[str, Any], leading: dict[str, int]) -> bool:
    """Whether arrays are those of the shapes; parts of which each client has its own have a leading axis of clients."""
    if arrays.keys() != shapes.keys():
        return False
    for name, shape in shapes.items():
        axes = (leading["each"], *shape.shape[1:]) if name.startswith("each") else shape.shape
        if arrays[name].shape != axes or not _of_type(arrays[name].dtype, np.dtype(shape.dtype)):
            return False
    return True


def _of_type(sent: np.dtype, wanted: np.dtype) -> bool:
    """Whether numbers are of a type; whole ones come out of a compiled program as words of 32 bits, whose sign says nothing."""
    return sent == wanted or (sent.kind in "iu" and wanted.kind in "iu" and sent.itemsize <= wanted.itemsize)


def _filled(tree: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """Arrays in the places of a tree."""
    names = [f"{name}{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    types = [np.dtype(leaf.dtype) for leaf in jax.tree.leaves(tree)]
    filled = [
        arrays[path].astype(wanted) if {arrays[path].dtype.kind, wanted.kind} <= set("iu") else arrays[path]
        for path, wanted in zip(names, types)
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), filled)
