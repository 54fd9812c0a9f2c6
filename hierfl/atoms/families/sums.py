"""Sums and differences, and the linear maps that add entries up."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.cumsum import cumsum
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.trace import Trace
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.expressions.expression import Expression

from hierfl.atoms import narrowing
from hierfl.atoms.algebra import expanded, minus, plus, zeros
from hierfl.atoms.families.products import row_vector
from hierfl.atoms.intervals import Interval, interval_sum
from hierfl.atoms.ranges import spread, within_rows
from hierfl.atoms.row import AtomRow, CurvatureSearch, Parts, Rebuild
from hierfl.atoms.writing import latex_pen, text_pen
from hierfl.atoms.writing.latex_pen import Latex, LatexPen
from hierfl.atoms.writing.phrase import Phrase, added, negated
from hierfl.atoms.writing.spelling import Reader, Spelling, operands
from hierfl.atoms.writing.text_pen import Text, TextPen
from hierfl.jaxtools.lazy_module import lazy_module

if TYPE_CHECKING:
    import jax.numpy as jnp
else:
    jnp = lazy_module("jax.numpy")


# Values


def _add(atom: Any, *values: Any) -> Any:
    return functools.reduce(operator.add, values)


def _negate(atom: Any, value: Any) -> Any:
    return -value


def _sum(atom: Any, value: Any) -> Any:
    return jnp.sum(value, axis=atom.axis)


def _cumulative_sum(atom: Any, value: Any) -> Any:
    return jnp.cumsum(value, axis=atom.axis)


def _trace(atom: Any, value: Any) -> Any:
    return jnp.trace(value, axis1=-2, axis2=-1)


# Ranges and curvature


def _range_of_sum(atom: Any, arguments: list[Interval]) -> Interval:
    return interval_sum([spread(argument, atom.shape) for argument in arguments])


def _range_of_negation(atom: Any, arguments: list[Interval]) -> Interval:
    return -arguments[0]


def _curvature_of_sum(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    parts = [search.bound(argument, upper) for argument in atom.args]
    if any(part is None for part in parts):
        return None
    return plus(*(part for part in parts if part is not None), zero=zeros(atom))


def _curvature_of_negation(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    bound = search.bound(atom.args[0], not upper)
    return None if bound is None else minus(bound)


def _majorant_of_sum(atom: Any, parts: Parts, rebuild: Rebuild) -> Expression | None:
    return plus(*(part for part in parts if part is not None), zero=zeros(atom))


def _majorant_of_negation(atom: Any, parts: Parts, rebuild: Rebuild) -> Expression | None:
    return parts[0]


# Derivatives


def unchanged(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    """The derivative of an atom that is the identity in each argument."""
    return adjoint


def _pull_negation(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    return minus(adjoint)


def _pull_sum(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    return expanded(adjoint, atom.axis, atom.args[0].shape)


# Notation


def _read_sum_of_terms(reader: Reader, atom: Any) -> Phrase:
    return replace(added(*operands(reader, atom)), shape=tuple(atom.shape))


def _read_negation(reader: Reader, atom: Any) -> Phrase:
    return negated(reader(atom.args[0]))


def _read_sum(reader: Reader, atom: Any) -> Phrase:
    """A sum; ``trace(A @ B)``, which CVXPY stores as ``sum(multiply(A, B.T))``, is a trace again."""
    summand = reader(atom.args[0])
    if atom.axis is None and summand.head == "multiply" and summand.args[1].head == "transpose":
        left, right = summand.args
        return Phrase("trace", (Phrase("matmul", (left, right.args[0]), shape=(left.shape[0], left.shape[0])),))
    return reader.operation(atom, (summand,))


def _latex_of_terms(pen: LatexPen, phrase: Phrase) -> Latex:
    first, *others = phrase.args
    place = latex_pen.ELEMENTWISE
    signed = [f" - {pen.at(t.args[0], place)}" if t.head == "neg" else f" + {pen.at(t, place)}" for t in others]
    return Latex(pen.at(first, latex_pen.SUM) + "".join(signed), latex_pen.SUM)


def _latex_of_negation(pen: LatexPen, phrase: Phrase) -> Latex:
    return Latex(f"-{pen.at(phrase.args[0], latex_pen.ELEMENTWISE)}", latex_pen.SUM)


def _latex_of_sum(pen: LatexPen, phrase: Phrase) -> Latex:
    (summand,) = phrase.args
    if phrase.option("axis") is not None or len(summand.shape) > 2:
        return pen.operator(phrase, r"\operatorname{sum}")
    if not summand.shape:
        return pen.write(summand)
    if summand.head == "multiply" and len(summand.shape) == 1 and all(len(f.shape) == 1 for f in summand.args):
        return latex_pen.beside(row_vector(pen, summand.args[0]), pen.at(summand.args[1], latex_pen.PRODUCT))
    ones = r"\mathbf{1}^{\top} " + pen.at(summand, latex_pen.POWER)
    return Latex(ones if len(summand.shape) == 1 else ones + r" \mathbf{1}", latex_pen.PRODUCT)


def _text_of_terms(pen: TextPen, phrase: Phrase) -> Text:
    first, *others = phrase.args
    place = text_pen.PRODUCT
    signed = [f" - {pen.at(t.args[0], place)}" if t.head == "neg" else f" + {pen.at(t, place)}" for t in others]
    return Text(pen.at(first, text_pen.SUM) + "".join(signed), text_pen.SUM)


def _text_of_negation(pen: TextPen, phrase: Phrase) -> Text:
    return Text(f"-{pen.at(phrase.args[0], text_pen.PRODUCT)}", text_pen.SUM)


ROWS = (
    AtomRow(
        (AddExpression,),
        narrow=narrowing.of_sum_of_terms,
        lower=_add,
        entrywise=True,
        range=_range_of_sum,
        curvature=_curvature_of_sum,
        majorant=_majorant_of_sum,
        derivative=unchanged,
        read=_read_sum_of_terms,
        spellings=(Spelling("add", latex=_latex_of_terms, text=_text_of_terms),),
    ),
    AtomRow(
        (NegExpression,),
        narrow=narrowing.of_negation,
        lower=_negate,
        entrywise=True,
        range=_range_of_negation,
        curvature=_curvature_of_negation,
        majorant=_majorant_of_negation,
        derivative=_pull_negation,
        read=_read_negation,
        spellings=(Spelling("neg", latex=_latex_of_negation, text=_text_of_negation),),
    ),
    AtomRow(
        (Sum,),
        narrow=narrowing.of_sum_of_entries,
        lower=_sum,
        keeps_rows=within_rows,
        derivative=_pull_sum,
        read=_read_sum,
        spellings=(Spelling("sum", latex=_latex_of_sum),),
    ),
    AtomRow((cumsum,), lower=_cumulative_sum, spellings=(Spelling("cumsum", options={"axis": 0}),)),
    AtomRow((Trace,), lower=_trace, narrow=narrowing.of_trace, spellings=(Spelling("trace", latex=r"\mathrm{tr}"),)),
)
