"""One-line text of expressions and constraints: what the user wrote, not what CVXPY made of it.

The text is Python: with CVXPY's functions and the leaves' names in scope it evaluates to the same expression (except
for abbreviated constants, ``E`` and ``total``). Parentheses follow from a precedence for each operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np

from hierfl.atoms.writing.pen import Written
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.text_pen import TextPen
from hierfl.language.printing.reading import read, spelling_named


def expression_text(expr: Any) -> str:
    """A CVXPY expression or constraint as one readable line.

    Parameters
    ----------
    expr
        Any CVXPY expression or constraint; atoms that have no spelling of their own appear under their class name.

    Returns
    -------
    str
        For example ``sum_squares(x - y)`` or ``norm(y - x, "fro") <= rho``.
    """
    return write_text(read(expr))


def write_text(phrase: Phrase) -> str:
    """A phrase as text."""
    return _write(phrase).text


def _write(phrase: Phrase) -> Written:
    spelling = spelling_named(phrase.head)
    if spelling is None or spelling.text is None:
        return _PEN.function(phrase)
    return spelling.text(_PEN, phrase)


_PEN = TextPen(_write)


def domain_text(shape: tuple[int, ...]) -> str:
    """The space of that shape: ``R``, ``R^5`` or ``R^(10 x 785)``."""
    if not shape:
        return "R"
    return f"R^{shape[0]}" if len(shape) == 1 else f"R^({' x '.join(map(str, shape))})"


def point_text(point: Any) -> str:
    """A point on one line, its numbers short: an array, or a mapping by variable, of which the names are written."""
    if isinstance(point, Mapping):
        named = {key.name() if isinstance(key, cp.Variable) else key: part for key, part in point.items()}
        return ", ".join(f"{name} = {point_text(part)}" for name, part in named.items())
    if not isinstance(point, (np.ndarray, float)):
        return str(point)
    return " ".join(np.array2string(np.asarray(point), threshold=8, precision=6).split())
