"""What both pens share: how tightly each operation binds, and parentheses where an operand binds looser than its place; and the plain one.

That writes one line of Python: with CVXPY's functions in scope it evaluates to the same expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hierfl.atoms.writing.phrase import Phrase

RELATION, SUM, ELEMENTWISE, PRODUCT, POWER, ATOM = range(6)
"""Precedences, loosest first. POWER is whatever may not take another superscript: powers and, in LaTeX, applied functions."""
LONGEST_ARRAY = 4  # that is written out


class Written(NamedTuple):
    """What was written, and how tightly it binds."""

    text: str
    precedence: int = ATOM


class Pen:
    """Writes phrases by ``write``, which knows every head, and offers what several spellings share."""

    parentheses: ClassVar[tuple[str, str]]

    def __init__(self, write: Callable[[Phrase], Written]) -> None:
        self.write = write

    def text(self, phrase: Phrase) -> str:
        return self.write(phrase).text

    def at(self, phrase: Phrase, precedence: int) -> str:
        """The phrase, in parentheses if it binds looser than its place."""
        text, own = self.write(phrase)
        opening, closing = self.parentheses
        return text if own >= precedence else f"{opening}{text}{closing}"

    def applied(self, name: str, args: Iterable[Phrase]) -> Written:
        """A function of its arguments in parentheses."""
        raise NotImplementedError


def infix(sign: str, place: int, precedence: int) -> Callable[[Pen, Phrase], Written]:
    """A spelling with a sign between the operands."""

    def write(pen: Pen, phrase: Phrase) -> Written:
        return Written(f" {sign} ".join(pen.at(arg, place) for arg in phrase.args), precedence)

    return write


class TextPen(Pen):
    """Writes phrases as lines of Python."""

    parentheses = "(", ")"

    def applied(self, name: str, args: Iterable[Phrase]) -> Written:
        return call(name, *map(self.text, args))

    def function(self, phrase: Phrase) -> Written:
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


def call(name: str, *arguments: str) -> Written:
    """A function of its arguments."""
    return Written(f"{name}({', '.join(arguments)})")


def infix_text(sign: str) -> Callable[[TextPen, Phrase], Written]:
    """A spelling with a sign between two factors."""

    def write(pen: TextPen, phrase: Phrase) -> Written:
        left, right = phrase.args
        return Written(f"{pen.at(left, PRODUCT)} {sign} {pen.at(right, POWER)}", PRODUCT)

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
