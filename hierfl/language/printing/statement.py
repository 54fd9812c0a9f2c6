"""The parts of a declared problem's statement, before it is laid out as text or LaTeX."""

from __future__ import annotations

from dataclasses import dataclass

from hierfl.atoms.writing.phrase import Phrase

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
