"""Logic atoms of boolean variables, which hierfl refuses."""

from __future__ import annotations

from cvxpy.atoms.elementwise.logic import And, LogicExpression, Not, Or, Xor, _NaryLogicExpression

from hierfl.atoms.row import AtomRow
from hierfl.atoms.writing.latex_pen import Template
from hierfl.atoms.writing.pen import ATOM, ELEMENTWISE, PRODUCT, infix
from hierfl.atoms.writing.spelling import Spelling

_REASON = "it is a logic atom of boolean variables, which hierfl does not treat"


def _infix(head: str, sign: str) -> tuple[Spelling]:
    return (Spelling(head, latex=infix(sign, ATOM, ELEMENTWISE)),)


ROWS = (
    AtomRow((LogicExpression, _NaryLogicExpression), refusal=_REASON),
    AtomRow((Not,), refusal=_REASON, spellings=(Spelling("Not", latex=Template(r"\neg @1", PRODUCT)),)),
    AtomRow((And,), refusal=_REASON, spellings=_infix("And", r"\wedge")),
    AtomRow((Or,), refusal=_REASON, spellings=_infix("Or", r"\vee")),
    AtomRow((Xor,), refusal=_REASON, spellings=_infix("Xor", r"\oplus")),
)
