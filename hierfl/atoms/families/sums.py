"""Sums and differences, and the linear maps that add entries up."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import Any

from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.cumsum import cumsum
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.trace import Trace
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.expressions.expression import Expression

from hierfl.atoms import narrowing
from hierfl.atoms.algebra import expanded, minus, plus, zeros
from hierfl.atoms.families.products import row_vector
from hierfl.atoms.intervals import interval_sum
from hierfl.atoms.loaded_late import jnp
from hierfl.atoms.ranges import broadcast, within_rows
from hierfl.atoms.row import AtomRow, CurvatureSearch
from hierfl.atoms.writing.latex_pen import LatexPen, beside
from hierfl.atoms.writing.pen import ELEMENTWISE, POWER, PRODUCT, SUM, Pen, Written
from hierfl.atoms.writing.phrase import Phrase, added, negated
from hierfl.atoms.writing.spelling import Reader, Spelling, operands

# Ranges and curvature


def _curvature_of_sum(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    parts = [search.bound(argument, upper) for argument in atom.args]
    if any(part is None for part in parts):
        return None
    return plus(*(part for part in parts if part is not None), zero=zeros(atom))


def _curvature_of_negation(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    bound = search.bound(atom.args[0], not upper)
    return None if bound is None else minus(bound)


# Derivatives


def unchanged(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    """The derivative of an atom that is the identity in each argument."""
    return adjoint


# Notation


def _read_sum(reader: Reader, atom: Any) -> Phrase:
    """A sum; ``trace(A @ B)``, which CVXPY stores as ``sum(multiply(A, B.T))``, is a trace again."""
    summand = reader(atom.args[0])
    if atom.axis is None and summand.head == "multiply" and summand.args[1].head == "transpose":
        left, right = summand.args
        return Phrase("trace", (Phrase("matmul", (left, right.args[0]), shape=(left.shape[0], left.shape[0])),))
    return reader.operation(atom, (summand,))


def _terms(pen: Pen, phrase: Phrase) -> Written:
    first, *others = phrase.args
    place = ELEMENTWISE
    signed = [f" - {pen.at(t.args[0], place)}" if t.head == "neg" else f" + {pen.at(t, place)}" for t in others]
    return Written(pen.at(first, SUM) + "".join(signed), SUM)


def _latex_of_sum(pen: LatexPen, phrase: Phrase) -> Written:
    (summand,) = phrase.args
    if phrase.option("axis") is not None or len(summand.shape) > 2:
        return pen.operator(phrase, r"\operatorname{sum}")
    if not summand.shape:
        return pen.write(summand)
    if summand.head == "multiply" and len(summand.shape) == 1 and all(len(f.shape) == 1 for f in summand.args):
        return beside(row_vector(pen, summand.args[0]), pen.at(summand.args[1], PRODUCT))
    ones = r"\mathbf{1}^{\top} " + pen.at(summand, POWER)
    return Written(ones if len(summand.shape) == 1 else ones + r" \mathbf{1}", PRODUCT)


def _negation(pen: Pen, phrase: Phrase) -> Written:
    return Written(f"-{pen.at(phrase.args[0], ELEMENTWISE)}", SUM)


ROWS = (
    AtomRow(
        (AddExpression,),
        narrow=narrowing.of_sum_of_terms,
        lower=lambda atom, *values: functools.reduce(operator.add, values),
        entrywise=True,
        range=lambda atom, arguments: interval_sum([broadcast(argument, atom.shape) for argument in arguments]),
        curvature=_curvature_of_sum,
        majorant=lambda atom, parts, rebuild: plus(*(part for part in parts if part is not None), zero=zeros(atom)),
        derivative=unchanged,
        read=lambda reader, atom: replace(added(*operands(reader, atom)), shape=tuple(atom.shape)),
        spellings=(Spelling("add", latex=_terms, text=_terms),),
    ),
    AtomRow(
        (NegExpression,),
        narrow=lambda atom, target, arguments: [-target],
        lower=lambda atom, value: -value,
        entrywise=True,
        range=lambda atom, arguments: -arguments[0],
        curvature=_curvature_of_negation,
        majorant=lambda atom, parts, rebuild: parts[0],
        derivative=lambda atom, index, adjoint: minus(adjoint),
        read=lambda reader, atom: negated(reader(atom.args[0])),
        spellings=(Spelling("neg", latex=_negation, text=_negation),),
    ),
    AtomRow(
        (Sum,),
        narrow=narrowing.of_sum_of_entries,
        lower=lambda atom, value: jnp.sum(value, axis=atom.axis),
        keeps_rows=within_rows,
        derivative=lambda atom, index, adjoint: expanded(adjoint, atom.axis, atom.args[0].shape),
        read=_read_sum,
        spellings=(Spelling("sum", latex=_latex_of_sum),),
    ),
    AtomRow(
        (cumsum,),
        lower=lambda atom, value: jnp.cumsum(value, axis=atom.axis),
        spellings=(Spelling("cumsum", options={"axis": 0}),),
    ),
    AtomRow(
        (Trace,),
        lower=lambda atom, value: jnp.trace(value, axis1=-2, axis2=-1),
        narrow=narrowing.of_trace,
        spellings=(Spelling("trace", latex=r"\mathrm{tr}"),),
    ),
)
