"""The messages of a run as letters, which cross where nothing is pickled: named arrays and a few words, as bytes in NumPy's own format.

``FORMS`` says of every kind of message, and of every part of one, which of its fields are words and which are arrays; both directions
read it. Trees of arrays (tables, what a step is sent and tells) are written by their paths. Whatever else arrives is refused.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from hierfl.errors import SiteError
from hierfl.jaxtools.checked_arrays import BadArchiveError, read_arrays
from hierfl.language.coupled import PenaltyWeights
from hierfl.runtime.privacy.gaussian_noise import NoiseOrder
from hierfl.runtime.privacy.pairwise_masks import KEY, Masking, MaskOrder
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
from hierfl.runtime.sites.protocol import of_type

WORDS, ARRAY = "words", "array "  # the names of members: the words as JSON, and what stands before the name of an array
KINDS = "biuf"  # of numbers that a letter may hold
LONGEST, DIRECTORY = 1 << 20, 1 << 20  # bytes of a letter's words, and of the list of its members


@dataclass(frozen=True)
class Letter:
    """Words (strings, numbers, booleans) and arrays of numbers, by name."""

    words: dict[str, str | int | float | bool]
    arrays: dict[str, np.ndarray]

    def as_bytes(self) -> bytes:
        """The letter as an uncompressed ``.npz`` file; the same letter is the same bytes."""
        stream = io.BytesIO()
        words = np.frombuffer(json.dumps(self.words).encode(), np.uint8)
        members = {WORDS: words} | {f"{ARRAY}{name}": array for name, array in self.arrays.items()}
        np.savez(stream, allow_pickle=False, **members)
        return stream.getvalue()

    @classmethod
    def from_bytes(cls, parcel: bytes) -> Letter:
        """The letter again; nothing in it is run.

        Raises ``SiteError`` for anything but the bytes of a letter.
        """
        try:
            read = read_arrays(io.BytesIO(parcel), kinds=KINDS, directory=DIRECTORY)
            told = read.pop(WORDS)
            if told.nbytes > LONGEST:
                raise BadArchiveError(f"words of {told.nbytes:,} bytes")
            words: Any = json.loads(told.tobytes())
        except (BadArchiveError, KeyError, ValueError, RecursionError) as error:
            raise SiteError(f"a message that is no letter of named arrays: {type(error).__name__}: {error}") from error
        if not isinstance(words, dict) or not all(isinstance(word, str | int | float) for word in words.values()):
            raise SiteError("a message whose words are not strings and numbers.")
        if not all(name.startswith(ARRAY) for name in read):
            raise SiteError("a message with members that are no arrays of numbers.")
        return cls(words, {name.removeprefix(ARRAY): array for name, array in read.items()})


SERVER = "server"  # the word by which a site tells apart who asks
TABLES = "tables"  # what stands before the paths of a solver's tables
FEW = 64  # rounds, whose tables cost nothing
Message = TypeVar("Message")


class Hello(NamedTuple):
    """The question who is there."""


class Introduction(NamedTuple):
    """A site's answer to ``Hello``: what its owner calls it, and whose data it holds, by index."""

    name: str
    clients: tuple[int, ...]


class Numbers(NamedTuple):
    """A field that is an array of one axis in a letter: its type, and the ways there and back."""

    dtype: Any
    there: Callable[[Any], Any] = lambda field: field
    back: Callable[[np.ndarray], Any] = lambda array: array


def _keys(array: np.ndarray) -> tuple[bytes, ...]:
    if array.size % KEY:
        raise SiteError("a message with parts of keys.")
    return tuple(array[place : place + KEY].tobytes() for place in range(0, array.size, KEY))


MOST_CLIENTS = 1_000_000  # in a message


def _clients(array: np.ndarray) -> tuple[int, ...]:
    if array.size > MOST_CLIENTS:
        raise SiteError(f"a message with {array.size:,} clients, more than {MOST_CLIENTS:,}.")
    return tuple(array.tolist())


CLIENTS = Numbers(np.int64, back=_clients)
PUBLIC_KEY = Numbers(np.uint8, lambda key: np.frombuffer(key, np.uint8), lambda array: array.tobytes())
PUBLIC_KEYS = Numbers(np.uint8, lambda keys: np.frombuffer(b"".join(keys), np.uint8), _keys)
NONE: Mapping[str, Any] = MappingProxyType({})


class Form(NamedTuple):
    """The fields of a message that are words, by type, and arrays; and parts that may be absent, whose names stand before their own."""

    words: Mapping[str, type] = NONE
    arrays: Mapping[str, Numbers] = NONE
    parts: Mapping[str, type] = NONE


_TEXTS = dict.fromkeys(("version", "mark", "declared", "algorithm", "solver", "queries"), str)
_PRIVACY = {"clip": float, "multiplier": float, "delta": float, "releases": int, "shared": bool, "colluding": int}
_PLACE = {"turn": int, "round": int, "place": int, "kind": str, "step": str}
_KEPT = {"run": str, "number": int}

FORMS: dict[type, Form] = {
    Hello: Form(),
    Introduction: Form({"name": str}, {"clients": CLIENTS}),
    Start: Form(
        _TEXTS | {"rounds": int, "largest": float, "shared_seeds": bool},
        {"x0": Numbers(np.float64)},
        {"noise": NoiseOrder, "masks": MaskOrder, "kept": KeptMark, "penalty": PenaltyWeights},
    ),
    NoiseOrder: Form(_PRIVACY | {"run": str}),
    MaskOrder: Form({"least": int, "bits": int, "run": str}),
    KeptMark: Form(_KEPT),
    PenaltyWeights: Form({"rho": float, "objective": float}),
    Welcome: Form({"epsilon": float}, {"clients": CLIENTS, "key": PUBLIC_KEY}),
    Asked: Form(
        _PLACE,
        {"clients": Numbers(np.int64), "seed": Numbers(np.uint32)},
        {"settled": Settled, "masking": Masking},
    ),
    Settled: Form({"turn": int, "kept": bool}),
    Masking: Form({"attempt": int}, {"keys": PUBLIC_KEYS, "clients": CLIENTS}),
    Answered: Form({"seconds": float}, {"shares": PUBLIC_KEY}),
    Unmask: Form({"attempt": int}, {"other": PUBLIC_KEY, "sealed": PUBLIC_KEY}),
    Unmasked: Form(arrays={"key": PUBLIC_KEY}),
    Keep: Form(_KEPT, parts={"settled": Settled}),
    Kept: Form({"kept": bool}),  # nothing is handed back where sites have their own data
    Refusal: Form({"reason": str, "failed": bool}),
}


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
    letter = Letter({"message": type(message).__name__}, {})
    _write(letter, message)
    if isinstance(message, Start):
        letter.arrays.update({f"{TABLES}{path}": table for path, table in message.tables.items()})
    if isinstance(message, Asked):
        letter.arrays.update(_sent(message.broadcast, message.each))
    if isinstance(message, Answered):
        letter.arrays.update(_told(message.payload, message.monitor))
        if not message.shares:
            del letter.arrays["shares"]
    return letter


def _write(letter: Letter, message: Any, prefix: str = "") -> None:
    """Write the fields of a message, or of a part of one, by its form."""
    form = FORMS[type(message)]
    letter.words.update({f"{prefix}{name}": getattr(message, name) for name in form.words})
    for name, numbers in form.arrays.items():
        letter.arrays[f"{prefix}{name}"] = np.asarray(numbers.there(getattr(message, name)), numbers.dtype)
    for name in form.parts:
        if (part := getattr(message, name)) is not None:
            _write(letter, part, f"{name}_")


def _fields(letter: Letter, arrays: dict[str, np.ndarray], kind: type, prefix: str = "") -> dict[str, Any]:
    """The fields of a kind of message, or of a part of one, by its form; their arrays are taken out of ``arrays``."""
    form, found = FORMS[kind], dict[str, Any]()
    for name, wanted in form.words.items():
        word = letter.words.get(f"{prefix}{name}")
        if wanted is float and type(word) is int:
            word = float(word)
        if type(word) is not wanted:
            raise SiteError(f"a message without the word {prefix + name!r} of {kind.__name__}.")
        found[name] = word
    for name, numbers in form.arrays.items():
        array = arrays.pop(f"{prefix}{name}", None)
        if array is None or array.dtype != numbers.dtype or array.ndim != 1:
            raise SiteError(f"a message without the array {prefix + name!r}.")
        found[name] = numbers.back(array)
    for name, part in form.parts.items():
        there = any(word.startswith(f"{name}_") for word in letter.words)
        found[name] = part(**_fields(letter, arrays, part, f"{name}_")) if there else None
    return found


def message_of(letter: Letter, kind: type[Message]) -> Message:
    """A message of a kind that has no trees of arrays.

    Raises ``SiteError`` for a letter that is no such message.
    """
    return kind(**_fields(letter, dict(letter.arrays), kind))


def start_of(letter: Letter, read_solver: Callable[[str], Any]) -> Start:
    """The beginning of a run; ``read_solver`` makes a solver of its text.

    Raises ``SiteError`` for a letter that is no such message.
    """
    arrays, x0 = dict(letter.arrays), letter.arrays.get("x0", np.zeros(()))
    if x0.ndim != 1 or x0.dtype != float or not all(name == "x0" or name.startswith(TABLES) for name in arrays):
        raise SiteError("a start of a run whose arrays are not its x0 and its tables.")
    found = _fields(letter, arrays, Start)
    solver = read_solver(found["solver"])
    if type(solver).__name__ != found["algorithm"]:  # which is what the owner's rules are about
        raise SiteError(f"a start of {found['algorithm']!r} whose solver is {type(solver).__name__}.")
    tables = {name.removeprefix(TABLES): array for name, array in arrays.items()}
    if found["rounds"] > max(
        [FEW, *(len(table) for table in tables.values() if table.ndim)]
    ):  # the site's own would be as long
        raise SiteError(f"a start of {found['rounds']:,} rounds, more than its tables have.")
    return Start(**found | {"solver": solver, "tables": tables})


def asked_of(letter: Letter, steps: Mapping[tuple[str, str], list[Any]], held: set[int]) -> Asked:
    """A step that is asked for; its arrays are those of one of the algorithm's ``steps``, its clients are among those ``held`` here.

    Raises ``SiteError``, saying which of the two is not so.
    """
    arrays = dict(letter.arrays)
    found = _fields(letter, arrays, Asked)
    count = len(found["clients"])
    clients = found["clients"][: len(held) + 1].tolist()
    if found["seed"].shape != (2,) or not count or not set(clients) <= held or len(set(clients)) != count:
        raise SiteError(f"a message for clients {clients[:8]}, of whom not all are here, or with no seed.")
    for broadcast, each in steps.get((found["kind"], found["step"]), ()):
        if _fit(arrays, _sent(broadcast, each), {"each": count}):
            sent, own = (_filled(tree, arrays, name) for tree, name in ((broadcast, "broadcast"), (each, "each")))
            return Asked(**found, broadcast=sent, each=own)
    listed = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in arrays.items())
    raise SiteError(
        f"{found['kind']} {found['step']!r} with {listed or 'no arrays'}: no message of this run's algorithm."
    )


def _reply_of(letter: Letter, expected: Any) -> Any:
    due = (Refusal, Answered) if expected is not None else (Refusal, Welcome, Unmasked, Kept)
    kind = {kind.__name__: kind for kind in due}.get(str(letter.words.get("message")))
    if kind is None:
        raise SiteError("a message of another kind than is due.")
    if kind is not Answered:
        return message_of(letter, kind)
    names, arrays = list(_told(*expected)), {"shares": np.zeros(0, np.uint8)} | letter.arrays
    fields = _fields(letter, arrays, Answered)
    if set(names) != arrays.keys():
        raise SiteError(f"the arrays {', '.join(arrays)}, not {', '.join(names)}.")
    payload, monitor = (_filled(tree, arrays, name) for tree, name in zip(expected, ("payload", "monitor")))
    return Answered(payload, monitor, **fields)


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
        if arrays[name].shape != axes or not of_type(arrays[name].dtype, np.dtype(shape.dtype)):
            return False
    return True


def _filled(tree: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """Arrays in the places of a tree."""
    names = [f"{name}{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    types = [np.dtype(leaf.dtype) for leaf in jax.tree.leaves(tree)]
    filled = [
        arrays[path].astype(wanted) if {arrays[path].dtype.kind, wanted.kind} <= set("iu") else arrays[path]
        for path, wanted in zip(names, types)
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), filled)
