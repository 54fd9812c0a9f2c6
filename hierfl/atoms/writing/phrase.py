"""What a CVXPY tree *says*: phrases whose heads are the operations that the user meant.

CVXPY stores ``sum_squares(x - y)`` as ``quad_over_lin(x + -y, 1)`` and ``2 * x`` as ``multiply(Promote(2), x)``. The rows of
the atoms read trees into phrases, and say how a phrase is spelled in LaTeX and in text.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.promote import Promote


@dataclass(frozen=True, eq=False)
class Phrase:
    """One operation of the written mathematics.

    ``value`` is what it is besides its operands (a leaf's name, a number, an array, an index); ``options`` are named
    settings that differ from their defaults. ``spelling`` is how it is written, where no table has it by its head.
    """

    head: str
    args: tuple[Phrase, ...] = ()
    value: Any = None
    options: tuple[tuple[str, Any], ...] = ()
    shape: tuple[int, ...] = ()
    spelling: Any = None

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)

    def is_number(self, value: float | None = None) -> bool:
        return self.head == "number" and (value is None or bool(self.value == value))


def number(value: float) -> Phrase:
    """A scalar constant; a negative one is the negation of its absolute value."""
    return negated(number(-value)) if np.isrealobj(value) and value < 0 else Phrase("number", value=value)


def value_phrase(value: Any) -> Phrase:
    """A number or an array."""
    if np.shape(value) == ():
        return number(np.asarray(value).item())
    return Phrase("array", value=value, shape=tuple(value.shape))


def ratio(value: float) -> Phrase:
    """A number, as the fraction that it is when no short decimal says it."""
    fraction = Fraction(value).limit_denominator(64)
    if float(f"{value:g}") == value or abs(float(fraction) - value) > 1e-14:
        return number(value)
    quotient = Phrase("divide", (number(abs(fraction.numerator)), number(fraction.denominator)))
    return negated(quotient) if value < 0 else quotient


def negated(phrase: Phrase) -> Phrase:
    """The negation, without double or idle signs."""
    if phrase.head == "neg":
        return phrase.args[0]
    return phrase if phrase.is_number(0) else Phrase("neg", (phrase,), shape=phrase.shape)


def added(*terms: Phrase) -> Phrase:
    """The sum; a nested sum joins the outer one."""
    flat = tuple(part for term in terms for part in (term.args if term.head == "add" else (term,)))
    return flat[0] if len(flat) == 1 else Phrase("add", flat, shape=np.broadcast_shapes(*(t.shape for t in flat)))


def bare(expression: Any) -> Any:
    """The expression without promotion and broadcasting, which the reader supplies himself."""
    while isinstance(expression, (Promote, cp.broadcast_to)):
        expression = expression.args[0]
    return expression
