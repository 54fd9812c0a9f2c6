"""How constraints are read and spelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy import constraints as cones

from hierfl.atoms.writing.latex_pen import LatexPen, Template, escaped
from hierfl.atoms.writing.pen import RELATION, SUM, Written, infix
from hierfl.atoms.writing.phrase import Phrase, added, bare, number, value_phrase
from hierfl.atoms.writing.spelling import Reader, Spelling
from hierfl.atoms.writing.text_pen import TextPen, call

CONE_HEADS: dict[type, str] = {cones.PowCone3DApprox: "PowCone3D"}


def _inequality(reader: Reader, constraint: Any) -> Phrase:
    lower, upper = (reader(bare(argument)) for argument in constraint.args)
    if constraint.args[0].is_constant() and not constraint.args[1].is_constant():
        return Phrase("ge", (upper, lower))
    return Phrase("le", (lower, upper))


def _equality(reader: Reader, constraint: Any) -> Phrase:
    return Phrase("eq", tuple(reader(bare(argument)) for argument in constraint.args))


def _against_zero(head: str) -> Callable[[Reader, Any], Phrase]:
    def read(reader: Reader, constraint: Any) -> Phrase:
        return Phrase(head, (reader(constraint.args[0]), number(0)))

    return read


def _semidefinite(reader: Reader, constraint: Any) -> Phrase:
    """``A >> B`` is stored as A - B in the cone: its negative terms go back to the right."""
    whole = reader(constraint.args[0])
    terms = whole.args if whole.head == "add" else (whole,)
    left = [term for term in terms if term.head != "neg" and not term.is_number(0)]
    right = [term.args[0] for term in terms if term.head == "neg"]
    if not left:
        return Phrase("psd_le", (added(*right) if right else number(0), number(0)))
    return Phrase("psd_ge", (added(*left), added(*right) if right else number(0)))


def _second_order(reader: Reader, constraint: Any) -> Phrase:
    bound, vector = constraint.args
    if bound.size == 1 and isinstance(bound, cp.reshape):
        bound = bound.args[0]
    columns = vector.ndim == 2
    norm = Phrase("norm2", (reader(vector),), options=(("axis", constraint.axis),) if columns else ())
    return Phrase("le", (norm, reader(bound)))


def _finite_set(reader: Reader, constraint: Any) -> Phrase:
    return Phrase("member", (reader(constraint.args[0]), value_phrase(np.asarray(constraint.vec.value))))


READERS: dict[type, Callable[[Reader, Any], Phrase]] = {
    cones.Inequality: _inequality,
    cones.Equality: _equality,
    cones.Zero: _against_zero("eq"),
    cones.NonNeg: _against_zero("ge"),
    cones.NonPos: _against_zero("le"),
    cones.PSD: _semidefinite,
    cones.SOC: _second_order,
    cones.FiniteSet: _finite_set,
}


def _relation(head: str, latex: str, text: str) -> Spelling:
    return Spelling(head, latex=infix(latex, SUM, RELATION), text=infix(text, SUM, RELATION))


def _cone(head: str, latex: str, options: Mapping[str, Any] | None = None) -> Spelling:
    return Spelling(head, options, Template(latex, RELATION))


def _latex_of_member(pen: LatexPen, phrase: Phrase) -> Written:
    element, members = phrase.args
    values = ",\\, ".join(f"{value:g}" for value in np.ravel(members.value))
    return Written(rf"{pen.text(element)} \in \left\{{{values}\right\}}", RELATION)


def _latex_of_property(pen: LatexPen, phrase: Phrase) -> Written:
    return Written(rf"{pen.text(phrase.args[0])}\ \mathrm{{{escaped(phrase.value)}}}", RELATION)


def _text_of_property(pen: TextPen, phrase: Phrase) -> Written:
    return Written(f"{pen.at(phrase.args[0], SUM)} is {phrase.value}", RELATION)


_QUADRATURE = {"m": None, "k": None}

SPELLINGS = (
    _relation("le", r"\leq", "<="),
    _relation("ge", r"\geq", ">="),
    _relation("eq", "=", "=="),
    _relation("psd_ge", r"\succeq", ">>"),
    _relation("psd_le", r"\preceq", "<<"),
    Spelling("member", latex=_latex_of_member, text=lambda pen, phrase: call("FiniteSet", *map(pen.text, phrase.args))),
    Spelling("property", latex=_latex_of_property, text=_text_of_property),
    _cone("ExpCone", r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\exp}"),
    _cone("PowCone3D", r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\mathrm{pow}#,}", {"alpha": None}),
    _cone("PowConeND", r"\left(#1,\, #2\right) \in \mathcal{K}_{\mathrm{pow}#,}", {"alpha": None, "axis": 0}),
    _cone("RelEntrConeQuad", r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\mathrm{re}#,}", _QUADRATURE),
    _cone("OpRelEntrConeQuad", r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\mathrm{re}#,}", _QUADRATURE),
    _cone("SvecPSD", r"\operatorname{mat}\left(#1\right) \succeq 0"),
)
