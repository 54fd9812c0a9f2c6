"""The messages of a run as letters, which cross where nothing is pickled: named arrays and a few words, as bytes.

``FORMS`` says of every kind of message, and of every part of one, which of its fields are words and which are arrays; both directions
read it. Trees of arrays (tables, what a step is sent and tells) are written by their paths. Whatever else arrives is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from hierfl.errors import SiteError
from hierfl.language.coupled import PenaltyWeights
from hierfl.runtime.privacy.gaussian_noise import NoiseOrder
from hierfl.runtime.privacy.pairwise_masks import KEY, Masking, MaskOrder
from hierfl.runtime.sites.letter_bytes import letter_bytes, read_letter
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
    leaves_by_path,
)


@dataclass(frozen=True)
class Letter:
    """Words (strings, numbers, booleans) and arrays of numbers, by name."""

    words: dict[str, str | int | float | bool]
    arrays: dict[str, np.ndarray]

    def as_bytes(self) -> bytes:
        """The same letter is the same bytes."""
        return letter_bytes(self.words, self.arrays)

    @classmethod
    def from_bytes(cls, parcel: bytes) -> Letter:
        """The letter again; nothing in it is run. Raises ``SiteError`` for anything but the bytes of a letter."""
        try:
            return cls(*read_letter(parcel))
        except ValueError as error:
            raise SiteError(f"a message that is no letter of named arrays: {error}") from error


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
    """A field that is an array of one axis in a letter: its type, the ways there and back, and whether it is left out where it is empty."""

    dtype: Any
    there: Callable[[Any], Any] = lambda field: field
    back: Callable[[np.ndarray], Any] = lambda array: array
    optional: bool = False


def _keys(array: np.ndarray) -> tuple[bytes, ...]:
    if array.size % KEY:
        raise SiteError("a message with parts of keys.")
    return tuple(array[place : place + KEY].tobytes() for place in range(0, array.size, KEY))


MOST_CLIENTS = 1_000_000  # in a message


def _few(array: np.ndarray) -> np.ndarray:
    if array.size > MOST_CLIENTS:
        raise SiteError(f"a message with {array.size:,} clients, more than {MOST_CLIENTS:,}.")
    return array


CLIENTS = Numbers(np.int64, back=lambda array: tuple(_few(array).tolist()))
TEXT = Numbers(np.uint8, lambda text: np.frombuffer(text.encode(), np.uint8), lambda array: array.tobytes().decode(errors="replace"))
BYTES = Numbers(np.uint8, lambda content: np.frombuffer(content, np.uint8), lambda array: array.tobytes(), optional=True)
PUBLIC_KEYS = Numbers(np.uint8, lambda keys: np.frombuffer(b"".join(keys), np.uint8), _keys)
NONE: Mapping[str, Any] = MappingProxyType({})


class Form(NamedTuple):
    """The fields of a message that are words, by type, and arrays; and parts that may be absent, whose names stand before their own."""

    words: Mapping[str, type] = NONE
    arrays: Mapping[str, Numbers] = NONE
    parts: Mapping[str, type] = NONE


_TEXTS = dict.fromkeys(("version", "mark", "declared", "algorithm", "queries"), str)
_PRIVACY = {"clip": float, "multiplier": float, "delta": float, "releases": int, "shared": bool, "colluding": int}
_PLACE = {"turn": int, "round": int, "place": int, "kind": str, "step": str}
_KEPT = {"run": str, "number": int}

FORMS: dict[type, Form] = {
    Hello: Form(),
    Introduction: Form({"name": str}, {"clients": CLIENTS}),
    Start: Form(
        _TEXTS | {"rounds": int, "largest": float, "shared_seeds": bool},
        {"x0": Numbers(np.float64), "solver": TEXT},
        {"noise": NoiseOrder, "masks": MaskOrder, "kept": KeptMark, "penalty": PenaltyWeights},
    ),
    NoiseOrder: Form(_PRIVACY | {"run": str}),
    MaskOrder: Form({"least": int, "bits": int, "run": str}),
    KeptMark: Form(_KEPT, {"content": BYTES}),
    PenaltyWeights: Form({"rho": float, "objective": float}),
    Welcome: Form({"epsilon": float}, {"clients": CLIENTS, "key": BYTES}),
    Asked: Form(
        _PLACE,
        {"clients": Numbers(np.int64, back=_few), "seed": Numbers(np.uint32)},
        {"settled": Settled, "masking": Masking},
    ),
    Settled: Form({"turn": int, "kept": bool}),
    Masking: Form({"attempt": int}, {"keys": PUBLIC_KEYS, "clients": CLIENTS}),
    Answered: Form({"seconds": float}, {"shares": BYTES}),
    Unmask: Form({"attempt": int}, {"other": BYTES, "sealed": BYTES}),
    Unmasked: Form(arrays={"key": BYTES}),
    Keep: Form(_KEPT, parts={"settled": Settled}),
    Kept: Form({"kept": bool}, {"content": BYTES}),
    Refusal: Form({"reason": str, "failed": bool, "unfit": bool}),
}


def packed(message: Any) -> bytes:
    """A message as the bytes of a letter."""
    return letter_of(message).as_bytes()


def reply_of(reply: bytes, expected: Any) -> Any:
    """A site's answer; ``expected`` is the tree of shapes of one client's (payload, monitor), or None. What cannot be is a Refusal."""
    due = (Refusal, Answered) if expected is not None else (Refusal, Welcome, Unmasked, Kept)
    try:
        letter = Letter.from_bytes(reply)
        kind = {kind.__name__: kind for kind in due}.get(str(letter.words.get("message")))
        if kind is None:
            raise SiteError("a message of another kind than is due.")
        if kind is not Answered:
            return message_of(letter, kind)
        arrays, (payload, monitor) = dict(letter.arrays), expected
        fields = _fields(letter, arrays, Answered)
        if (trees := _filled(arrays, payload=payload, monitor=monitor)) is None:
            raise SiteError(f"the arrays {', '.join(arrays)}, not {', '.join(by_name(payload=payload, monitor=monitor))}.")
        return Answered(**trees, **fields)
    except SiteError as error:
        return Refusal(f"sent {error}", failed=True)


def items_of(arrays: Mapping[str, np.ndarray]) -> tuple[Item, ...]:
    """Named arrays, by what they are called and their sizes."""
    return tuple(Item(name, array.shape, array.dtype.str, array.nbytes) for name, array in arrays.items())


def items_in(parcel: bytes) -> tuple[Item, ...]:
    """The arrays of a letter; none of what is no letter."""
    try:
        return items_of(Letter.from_bytes(parcel).arrays)
    except SiteError:
        return ()


def letter_of(message: Any) -> Letter:
    """The letter of a message."""
    letter = Letter({"message": type(message).__name__}, {})
    _write(letter, message)
    if isinstance(message, Start):
        letter.arrays.update({f"{TABLES}{path}": table for path, table in message.tables.items()})
    if isinstance(message, Asked):
        letter.arrays.update(by_name(broadcast=message.broadcast, each=message.each))
    if isinstance(message, Answered):
        letter.arrays.update(by_name(payload=message.payload, monitor=message.monitor))
    return letter


def _write(letter: Letter, message: Any, prefix: str = "") -> None:
    """Write the fields of a message, or of a part of one, by its form."""
    form = FORMS[type(message)]
    letter.words.update({f"{prefix}{name}": getattr(message, name) for name in form.words})
    for name, numbers in form.arrays.items():
        array = np.asarray(numbers.there(getattr(message, name)), numbers.dtype)
        if array.size or not numbers.optional:
            letter.arrays[f"{prefix}{name}"] = array
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
        array = arrays.pop(f"{prefix}{name}", np.zeros(0, numbers.dtype) if numbers.optional else None)
        if array is None or array.dtype != numbers.dtype or array.ndim != 1:
            raise SiteError(f"a message without the array {prefix + name!r}.")
        found[name] = numbers.back(array)
    for name, part in form.parts.items():
        there = any(word.startswith(f"{name}_") for word in letter.words)
        found[name] = part(**_fields(letter, arrays, part, f"{name}_")) if there else None
    return found


def message_of(letter: Letter, kind: type[Message]) -> Message:
    """A message of a kind that has no trees of arrays. Raises ``SiteError`` for a letter that is no such message."""
    return kind(**_fields(letter, dict(letter.arrays), kind))


def start_of(letter: Letter) -> Start:
    """The beginning of a run. Raises ``SiteError`` for a letter that is no such message."""
    arrays = dict(letter.arrays)
    found = _fields(letter, arrays, Start)
    if not all(name.startswith(TABLES) for name in arrays):
        raise SiteError("a start of a run whose arrays are not its x0 and its tables.")
    tables = {name.removeprefix(TABLES): array for name, array in arrays.items()}
    long = [len(table) for table in tables.values() if table.ndim]
    if long and found["rounds"] > max([FEW, *long]):  # the site's own would be as long
        raise SiteError(f"a start of {found['rounds']:,} rounds, more than its tables have.")
    return Start(**found, tables=tables)


def asked_of(letter: Letter, steps: Mapping[tuple[str, str], list[Any]]) -> Asked:
    """A step that is asked for, one of the algorithm's ``steps`` (:class:`RunProtocol`). Raises ``SiteError`` for others."""
    arrays = dict(letter.arrays)
    found = _fields(letter, arrays, Asked)
    for broadcast, each in steps.get((found["kind"], found["step"]), ()):
        if (trees := _filled(arrays, broadcast=broadcast, each=each)) is not None:
            return Asked(**found, **trees)
    listed = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in arrays.items())
    asked = f"{found['kind']} {found['step']!r}"
    raise SiteError(f"{asked} with {listed or 'no arrays'}: no message of this run's algorithm.")


def by_name(**trees: Any) -> dict[str, Any]:
    """The arrays of trees, or their shapes, by where they stand."""
    return {f"{name}{path}": leaf for name, tree in trees.items() for path, leaf in leaves_by_path(tree).items()}


def _filled(arrays: Mapping[str, np.ndarray], **trees: Any) -> dict[str, Any] | None:
    """Arrays in the places of trees, by the trees' names; None where there are others, some are missing, or whole numbers do not fit."""
    left, filled = dict(arrays), {}
    for name, tree in trees.items():
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
        placed = []
        for path, leaf in leaves:
            array, wanted = left.pop(f"{name}{jax.tree_util.keystr(path)}", None), np.dtype(leaf.dtype)
            if array is None:
                return None
            if whole := {array.dtype.kind, wanted.kind} <= set("iu"):
                given, array = array, array.astype(wanted)
            if whole and not np.array_equal(given, array.astype(given.dtype)):  # the words of a seed may travel as signed ones
                return None
            placed.append(array)
        filled[name] = jax.tree.unflatten(structure, placed)
    return None if left else filled
