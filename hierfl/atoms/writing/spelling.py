"""How an atom is read, and how the phrases that it becomes are spelled: what the rows of the atoms say of notation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hierfl.atoms.writing.latex_pen import LatexPen, Template
from hierfl.atoms.writing.pen import TextPen, Written
from hierfl.atoms.writing.phrase import Phrase, bare


@dataclass(frozen=True)
class Spelling:
    """How phrases of one head are written; by default ``head(operands, settings)`` in text, and its own name, upright, in LaTeX.

    ``options`` are settings that are not operands, each with the default that needs no mention, None for CVXPY's ``axis``; ``latex`` is a symbol that
    stands before the operands in parentheses, a template with places for them, or a function, ``text`` a function.
    """

    head: str
    options: Mapping[str, Any] | None = None
    latex: str | Template | Callable[[LatexPen, Phrase], Written] | None = None
    text: Callable[[TextPen, Phrase], Written] | None = None


class Reader(Protocol):
    """Reads a tree; given to the rows that read their atoms themselves."""

    def __call__(self, part: Any) -> Phrase:
        """The phrase of an expression or constraint."""

    def operation(self, part: Any, args: tuple[Phrase, ...], head: str | None = None) -> Phrase:
        """The phrase of an atom over phrases, with the settings that differ from their defaults."""


def operands(reader: Reader, expression: Any) -> tuple[Phrase, ...]:
    """The operands of an operator that broadcasts; a promotion is kept only where it decides the shape."""
    parts = [bare(argument) for argument in expression.args]
    if np.broadcast_shapes(*(part.shape for part in parts)) != expression.shape:
        parts = expression.args
    return tuple(reader(part) for part in parts)
