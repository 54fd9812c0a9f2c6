"""What both pens share: how tightly each operation binds, and parentheses where an operand binds looser than its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

from hierfl.atoms.writing.phrase import Phrase

RELATION, SUM, ELEMENTWISE, PRODUCT, POWER, ATOM = range(6)
"""Precedences, loosest first. POWER is whatever may not take another superscript: powers and, in LaTeX, applied functions."""


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
