"""Products and quotients, and the bilinear maps that are made of them."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.conv import conv, convolve
from cvxpy.atoms.affine.kron import kron
from cvxpy.atoms.affine.sum import Sum
from cvxpy.expressions.expression import Expression

from hierfl.atoms import narrowing
from hierfl.atoms.algebra import expanded, factored, inverse, minus, product, times
from hierfl.atoms.intervals import Interval, matmul
from hierfl.atoms.loaded_late import jnp
from hierfl.atoms.ranges import broadcast, even, everywhere, reshaped
from hierfl.atoms.row import AtomRow, CurvatureSearch, Parts, Rebuild
from hierfl.atoms.writing.latex_pen import LatexPen, Template, beside
from hierfl.atoms.writing.pen import ATOM, ELEMENTWISE, POWER, PRODUCT, Written, infix_text
from hierfl.atoms.writing.phrase import Phrase, negated
from hierfl.atoms.writing.spelling import Reader, Spelling, operands

# Values


def _matrix_product(atom: Any, left: Any, right: Any) -> Any:
    # a * y of one-dimensional operands is a dot product; with a scalar it is a scaling
    return left @ right if jnp.ndim(left) and jnp.ndim(right) else left * right


def _multiply(atom: Any, left: Any, right: Any) -> Any:
    return left * right


def _divide(atom: Any, left: Any, right: Any) -> Any:
    return left / right


# Ranges


def _range_of_multiply(atom: Any, arguments: list[Interval]) -> Interval:
    if atom.args[0] is atom.args[1]:
        return even(arguments[0], lambda size: size * size)
    return broadcast(arguments[0] * arguments[1], atom.shape)


def _range_of_matrix_product(atom: Any, arguments: list[Interval]) -> Interval:
    left, right = arguments
    if left.lo.ndim == 0 or right.lo.ndim == 0:
        return broadcast(left * right, atom.shape)
    return reshaped(matmul(left, right), atom.shape)


# Curvature


def _curvature_of_scaled(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    parts = factored(search, atom)
    return None if parts is None else search.scaled(atom, *parts, upper, cp.multiply)


def _curvature_of_matrix_product(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    left, right = atom.args
    if search.has_kept(left) and search.has_kept(right):
        return None
    if search.has_kept(left):
        return search.scaled(atom, right, left, upper, lambda factor, part: part @ factor)
    return search.scaled(atom, left, right, upper, lambda factor, part: factor @ part)


def product_majorant(atom: Any, parts: Parts, rebuild: Rebuild) -> Expression | None:
    """The same atom over the factors' absolute values."""
    return rebuild([cp.abs(argument) if part is None else part for argument, part in zip(atom.args, parts)])


# Derivatives


def _pull_quotient(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    above, below = atom.args
    if index == 0:
        return times(adjoint, inverse(below))
    return minus(times(times(adjoint, above), inverse(cp.square(below))))


def _pull_matrix_product(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    left, right = atom.args
    if not (1 <= left.ndim <= 2 and 1 <= right.ndim <= 2):
        return None
    if left.ndim == right.ndim == 1:
        return times(expanded(adjoint, (), left.shape), atom.args[1 - index])
    if index == 0:
        return product(right, adjoint) if left.ndim == 1 else _outer(adjoint, right, right.ndim)
    return product(left.T, adjoint) if right.ndim == 1 or left.ndim == 2 else _outer(left, adjoint, left.ndim)


def _outer(left: Expression, right: Expression, dimensions: int) -> Expression:
    """``left @ right'`` of matrices, or the outer product of two vectors."""
    return product(left, right.T) if dimensions == 2 else cp.outer(left, right)


# Notation


def _product_phrase(head: str, atom: Any, factors: tuple[Phrase, ...]) -> Phrase:
    """A product or quotient; the sign of the first factor is the sign of the whole, and a factor 1 says nothing."""
    first, second = factors
    if head == "scale" and first.is_number(1) and second.shape == atom.shape:
        return second
    if first.head == "neg":
        return negated(_product_phrase(head, atom, (first.args[0], second)))
    return Phrase(head, (first, second), shape=tuple(atom.shape))


def _read_multiply(reader: Reader, atom: Any) -> Phrase:
    factors = operands(reader, atom)
    return _product_phrase("scale" if any(f.shape == () for f in factors) else "multiply", atom, factors)


def _read_quotient(reader: Reader, atom: Any) -> Phrase:
    whole = atom.args[0]
    if isinstance(whole, Sum) and whole.axis is None and reader(atom.args[1]).is_number(whole.args[0].size):
        return reader.operation(whole, (reader(whole.args[0]),), head="mean")
    return _product_phrase("divide", atom, operands(reader, atom))


def _read_matrix_product(reader: Reader, atom: Any) -> Phrase:
    left, right = atom.args
    column = left.ndim == right.ndim == 2 and left.shape[1] == 1
    if column and all(isinstance(a, cp.reshape) and a.args[0].ndim == 1 for a in (left, right)):
        return Phrase("outer", (reader(left.args[0]), reader(right.args[0])), shape=tuple(atom.shape))
    return _product_phrase("matmul", atom, (reader(left), reader(right)))


def _latex_of_matrix_product(pen: LatexPen, phrase: Phrase) -> Written:
    left, right = phrase.args
    if len(left.shape) == 1 and len(right.shape) > 1:
        return beside(transposed(pen, right), pen.at(left, PRODUCT))
    first = row_vector(pen, left) if len(left.shape) == 1 else pen.at(left, PRODUCT)
    return beside(first, pen.at(right, PRODUCT))


def row_vector(pen: LatexPen, phrase: Phrase) -> str:
    """A vector as the row that multiplies from the left; ``x @ A``, elsewhere the column A'x, is the row x'A."""
    if phrase.head == "matmul" and len(phrase.args[0].shape) == 1 and len(phrase.args[1].shape) > 1:
        return beside(row_vector(pen, phrase.args[0]), pen.at(phrase.args[1], PRODUCT)).text
    return transposed(pen, phrase)


def transposed(pen: LatexPen, phrase: Phrase) -> str:
    """The transpose of a phrase, in LaTeX."""
    if phrase.head == "transpose":
        return pen.at(phrase.args[0], POWER)
    return rf"{pen.at(phrase, ATOM)}^{{\top}}"


ROWS = (
    AtomRow(
        (multiply,),
        narrow=narrowing.of_entrywise_product,
        lower=_multiply,
        entrywise=True,
        product=True,
        range=_range_of_multiply,
        curvature=_curvature_of_scaled,
        majorant=product_majorant,
        derivative=lambda atom, index, adjoint: times(adjoint, atom.args[1 - index]),
        formula=_multiply,
        read=_read_multiply,
        spellings=(
            Spelling("multiply", latex=Template(r"*1 \odot *2", ELEMENTWISE)),
            Spelling("scale", latex=lambda pen, phrase: beside(*(pen.at(one, PRODUCT) for one in phrase.args)), text=infix_text("*")),
        ),
    ),
    AtomRow(
        (DivExpression,),
        narrow=lambda atom, target, arguments: [target * arguments[1] if arguments[0].shape == atom.shape else None, None],
        lower=_divide,
        entrywise=True,
        product=True,
        range=lambda atom, arguments: broadcast(arguments[0] * arguments[1].inverse(), atom.shape),
        curvature=_curvature_of_scaled,
        majorant=product_majorant,
        derivative=_pull_quotient,
        formula=_divide,
        read=_read_quotient,
        spellings=(
            Spelling("divide", latex=Template(r"\frac{#1}{#2}", PRODUCT), text=infix_text("/")),
        ),
    ),
    AtomRow(
        (MulExpression,),
        narrow=narrowing.of_matrix_product,
        lower=_matrix_product,
        product=True,
        keeps_rows=everywhere,  # as ``Y @ M``, the only product of two matrices that the rule is asked for
        range=_range_of_matrix_product,
        curvature=_curvature_of_matrix_product,
        majorant=product_majorant,
        derivative=_pull_matrix_product,
        formula=lambda atom, left, right: left @ right if left.ndim and right.ndim else left * right,
        read=_read_matrix_product,
        spellings=(
            Spelling("matmul", latex=_latex_of_matrix_product, text=infix_text("@")),
            Spelling("outer", latex=Template(r"*1 \, @2^{\top}", PRODUCT)),
        ),
    ),
    AtomRow(
        (kron,),
        lower=lambda atom, left, right: jnp.kron(left, right),
        product=True,
        majorant=product_majorant,
        spellings=(Spelling("kron", latex=Template(r"*1 \otimes *2", ELEMENTWISE)),),
    ),
    AtomRow(
        (conv, convolve),
        lower=lambda atom, left, right: jnp.convolve(jnp.ravel(left), jnp.ravel(right)),
        product=True,
        majorant=product_majorant,
        spellings=tuple(
            Spelling(head, latex=Template(r"*1 \ast *2", ELEMENTWISE)) for head in ("conv", "convolve")
        ),
    ),
)
