"""Writes phrases as one line of Python: with CVXPY's functions in scope it evaluates to the same expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hierfl.atoms.writing.phrase import Phrase

RELATION, SUM, PRODUCT, POWER, ATOM = range(5)
"""Precedences, loosest first; an operand that binds looser than its place asks for is put in parentheses."""

LONGEST_ARRAY = 4


class Text(NamedTuple):
    """A line, and how tightly it binds."""

    text: str
    precedence: int = ATOM


class TextPen:
    """Writes phrases by ``write``, which knows every head, and offers what several spellings share."""

    def __init__(self, write: Callable[[Phrase], Text]) -> None:
        self.write = write

    def text(self, phrase: Phrase) -> str:
        """The phrase as a line."""
        return self.write(phrase).text

    def at(self, phrase: Phrase, precedence: int) -> str:
        """The phrase as a line, in parentheses if it binds looser than its place."""
        text, own = self.write(phrase)
        return text if own >= precedence else f"({text})"

    def function(self, phrase: Phrase) -> Text:
        """``head(operands, settings)``."""
        return call(phrase.head, *map(self.text, phrase.args), *self.settings(phrase))

    def settings(self, phrase: Phrase) -> tuple[str, ...]:
        """The settings as keyword arguments."""
        return tuple(f"{name}={self._setting(value)}" for name, value in phrase.options)

    def _setting(self, value: Any) -> str:
        if isinstance(value, Phrase):
            return self.text(value)
        if isinstance(value, str):
            return f'"{value}"'
        return f"{value:g}" if isinstance(value, float) else f"{value}"


def call(name: str, *arguments: str) -> Text:
    """A function of its arguments."""
    return Text(f"{name}({', '.join(arguments)})")


def infix_text(sign: str) -> Callable[[TextPen, Phrase], Text]:
    """A spelling with a sign between two factors."""

    def write(pen: TextPen, phrase: Phrase) -> Text:
        left, right = phrase.args
        return Text(f"{pen.at(left, PRODUCT)} {sign} {pen.at(right, POWER)}", PRODUCT)

    return write


def index_text(key: tuple[Any, ...]) -> str:
    """An index as it is written between brackets."""
    return ", ".join(map(_index_part, key))


def _index_part(part: Any) -> str:
    if isinstance(part, slice):
        start, stop = ("" if bound is None else str(bound) for bound in (part.start, part.stop))
        return f"{start}:{stop}" if part.step in (None, 1) else f"{start}:{stop}:{part.step}"
    if part is Ellipsis:
        return "..."
    if isinstance(part, (list, np.ndarray)) and np.size(part) > LONGEST_ARRAY:
        return f"[{np.size(part)} indices]"
    return str(np.asarray(part).tolist()) if np.ndim(part) else str(part)
