"""The parts of a declared problem's statement, before it is laid out as text or LaTeX.

Large constants have names: c where there is one, else c_1, c_2, ... in the order in which they are met.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.text_pen import LONGEST_ARRAY

Phrases = tuple[Phrase, ...]


@dataclass(frozen=True)
class Condition:
    """A constraint; ``each_client`` if it is one constraint for every client."""

    node: Phrase
    each_client: bool = False


@dataclass(frozen=True)
class Optimization:
    """An optimisation problem: ``sense`` is minimize or maximize."""

    sense: str
    variables: Phrases
    objective: Phrase
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Inequality:
    """A variational inequality: ``point`` in ``feasible`` such that ``condition`` holds for all ``other`` in it.

    ``mapping`` and ``feasible`` are the names G(x, y) and Y(x) of ``value`` and of the set of ``conditions``.
    """

    point: Phrase
    other: Phrase
    condition: Phrase
    mapping: Phrase
    value: Phrase
    feasible: Phrase
    variables: Phrases
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Contender:
    """A player of a game and its problem; ``count`` players, one for each j, where that is not None."""

    variables: Phrases
    program: Optimization
    count: int | None


@dataclass(frozen=True)
class Game:
    """A Nash equilibrium of these players."""

    players: tuple[Contender, ...]


@dataclass(frozen=True)
class Answer:
    """A lower level: ``unknown``, whose value is ``response``, solves ``task`` (for each client, for each sample).

    ``selection`` says in words which of several solutions is meant; empty where that is left open.
    """

    unknown: Phrase
    response: Phrase
    each_client: bool
    sample: Phrase | None
    task: Optimization | Inequality | Game
    selection: str = ""


@dataclass(frozen=True)
class Statement:
    """The whole problem; ``parties`` says in words who takes part, ``constants`` are the names of those too long to be written."""

    program: Optimization
    answers: tuple[Answer, ...]
    parties: str
    constants: Phrases = ()


def with_named_constants(said: Statement) -> Statement:
    """The statement with a name for each array that is too long to be written out; equal arrays share theirs."""
    phrases = list(_phrases(said))
    arrays = dict.fromkeys(map(_key, filter(_is_long, phrases)))
    used = {phrase.value for phrase in phrases if phrase.head == "name"}
    letter = next(
        (name for name in ("c", "a", "b", "d", "const") if not any(_alike(u, name) for u in used)), "constant"
    )
    names = {
        key: Phrase("name", value=letter, shape=key[0], options=(("index", str(k)),) if len(arrays) > 1 else ())
        for k, key in enumerate(arrays, 1)
    }
    return replace(_renamed(said, names), constants=tuple(names.values())) if names else said


def _alike(used: str, name: str) -> bool:
    """Whether a name is taken, by itself or with an index."""
    return used == name or used.startswith(f"{name}_")


def _is_long(phrase: Phrase) -> bool:
    return phrase.head == "array" and not (len(phrase.shape) == 1 and phrase.shape[0] <= LONGEST_ARRAY)


def _key(phrase: Phrase) -> tuple[tuple[int, ...], Hashable]:
    value = phrase.value
    if sp.issparse(value):
        entries = sp.coo_array(value)
        return phrase.shape, tuple(part.tobytes() for part in (*entries.coords, entries.data))
    return phrase.shape, np.asarray(value).tobytes()


def _phrases(part: Any) -> Iterator[Phrase]:
    """All phrases of a part of a statement, in order."""
    if isinstance(part, Phrase):
        yield part
        part = part.args
    if isinstance(part, tuple):
        for piece in part:
            yield from _phrases(piece)
    elif is_dataclass(part):
        for entry in fields(part):
            yield from _phrases(getattr(part, entry.name))


def _renamed(part: Any, names: dict[Any, Phrase]) -> Any:
    if isinstance(part, Phrase):
        return names[_key(part)] if _is_long(part) else replace(part, args=_renamed(part.args, names))
    if isinstance(part, tuple):
        return tuple(_renamed(piece, names) for piece in part)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{entry.name: _renamed(getattr(part, entry.name), names) for entry in fields(part)})
    return part
