r"""LaTeX of expressions and constraints, for notebooks (MathJax) and for matplotlib's labels (mathtext).

An *operator* stands before its operands, ``\exp\left(x\right)``; a *template* has places for them; what needs more is a
function. Vectors are columns, so ``label @ (w @ image)`` reads label' w image.
"""

from __future__ import annotations

from typing import Any

from hierfl.atoms.writing.latex_pen import LatexPen, Template, dimensions_latex
from hierfl.atoms.writing.pen import Written
from hierfl.atoms.writing.phrase import Phrase
from hierfl.language.printing.text import read, spelling_in


def expression_latex(expr: Any) -> str:
    r"""A CVXPY expression or constraint as LaTeX, such as ``\left\Vert x - y \right\Vert_{2}^{2}``, to be put between dollar signs.

    An atom without a notation of its own is ``\operatorname{name}(...)``.
    """
    return write_latex(read(expr))


def write_latex(phrase: Phrase) -> str:
    """A phrase as LaTeX."""
    return _write(phrase).text


def _write(phrase: Phrase) -> Written:
    spelling = spelling_in(phrase)
    latex = None if spelling is None else spelling.latex
    if isinstance(latex, Template):
        return _PEN.filled(latex, phrase)
    return latex(_PEN, phrase) if callable(latex) else _PEN.operator(phrase, latex)


_PEN = LatexPen(_write)


def domain_latex(shape: tuple[int, ...]) -> str:
    r"""The space of that shape: ``\mathbb{R}^{10 \times 785}``."""
    return r"\mathbb{R}" + (f"^{{{dimensions_latex(shape)}}}" if shape else "")
