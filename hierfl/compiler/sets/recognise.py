"""From one hoisted constraint to its pieces: the outermost convex atom decides, its affine argument is read semantically."""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.atom import Atom
from cvxpy.constraints.constraint import Constraint
from cvxpy.constraints.nonpos import Inequality, NonNeg, NonPos
from cvxpy.constraints.psd import PSD
from cvxpy.constraints.second_order import SOC
from cvxpy.constraints.zero import Equality, Zero
from cvxpy.expressions.expression import Expression

from hierfl.atoms.algebra import addends
from hierfl.compiler.sets.bounded_terms import BoundedTerm, LargestEntry, Norm, Semidefinite
from hierfl.compiler.sets.families import Membership, membership
from hierfl.compiler.sets.read_atoms import atom_name, read


@dataclass(frozen=True)
class AffineRows:
    """``expression <= 0`` (or ``== 0``), affine in y, element by element."""

    expression: Expression
    equality: bool


@dataclass(frozen=True)
class Other:
    """A convex constraint without a closed form; ``reason`` says what it is."""

    reason: str


Piece = AffineRows | Membership | Other


def pieces_of(constraint: Constraint) -> list[Piece]:
    """The pieces of one hoisted constraint."""
    if isinstance(constraint, Equality):
        return [AffineRows(constraint.args[0] - constraint.args[1], True)]
    if isinstance(constraint, Zero):
        return [AffineRows(constraint.args[0], True)]
    if isinstance(constraint, Inequality):
        return _at_most_zero(constraint.args[0] - constraint.args[1])
    if isinstance(constraint, NonPos):
        return _at_most_zero(constraint.args[0])
    if isinstance(constraint, NonNeg):
        return _at_most_zero(-constraint.args[0])
    if isinstance(constraint, PSD):
        return _pieces_of_term(BoundedTerm(Semidefinite(constraint.args[0]), cp.Constant(0.0)))
    if isinstance(constraint, SOC):
        bound, vector = constraint.args
        axis = None if bound.size == 1 else constraint.axis
        return _pieces_of_term(BoundedTerm(Norm(2, vector, axis, refusal="several second-order cones at once"), bound))
    return [Other(f"{type(constraint).__name__} constraint")]


def _at_most_zero(expression: Expression) -> list[Piece]:
    """``expression <= 0``: one convex term under an affine bound."""
    if expression.is_affine():
        return [AffineRows(expression, False)]
    terms = addends(expression)
    nonlinear = [term for term in terms if not term.is_affine()]
    if len(nonlinear) != 1:
        return [Other("a sum of several nonlinear terms in y")]
    rest = [term for term in terms if term is not nonlinear[0]]
    bound = -sum(rest[1:], start=rest[0]) if rest else cp.Constant(np.zeros(expression.shape))
    term = _factored(nonlinear[0])
    if term.promoted:  # one scalar below every entry of the bound
        if bound.variables():
            return [Other(f"{atom_name(term.atom)} below several entries that move with y")]
        bound = cp.min(bound)
        if term.scale is not None and term.scale.size > 1:
            return [Other(f"{atom_name(term.atom)} scaled entry by entry")]
    return _pieces_of_term(read(term.atom, bound, term.scale, term.negative))


def _pieces_of_term(term: BoundedTerm) -> list[Piece]:
    """Rows for a largest entry, else a membership in the family that recognises the term."""
    if isinstance(term.function, LargestEntry):
        return [AffineRows(term.scaled(argument) - term.bound, False) for argument in term.function.arguments]
    return [membership(term) or Other(term.function.refusal)]


@dataclass(frozen=True)
class _Factored:
    """``sign * scale * atom`` with a y-free scale >= 0 (None for 1); ``promoted`` when a scalar atom was spread over a shape."""

    atom: Atom
    scale: Expression | None = None
    negative: bool = False
    promoted: bool = False


def _factored(term: Expression) -> _Factored:
    """Peel signs, y-free factors and promotions off a term."""
    scale, negative, promoted = None, False, False
    while True:
        factor = None
        if isinstance(term, NegExpression):
            term, negative = term.args[0], not negative
            continue
        if isinstance(term, Promote):
            term, promoted = term.args[0], True
            continue
        if _multiplies_entries(term):
            left, right = term.args
            factor, inner = (right, left) if left.variables() else (left, right)
        elif isinstance(term, DivExpression) and not term.args[1].variables():
            factor, inner = 1 / term.args[1], term.args[0]
        if factor is None or factor.variables() or not (factor.is_nonneg() or factor.is_nonpos()):
            return _Factored(term, scale, negative, promoted)
        if not factor.is_nonneg():
            factor, negative = -factor, not negative
        factor = factor.args[0] if isinstance(factor, Promote) else factor
        scale = factor if scale is None else cp.multiply(scale, factor)
        term = inner


def _multiplies_entries(term: Expression) -> bool:
    """Whether it is a product entry by entry: also a matrix product with a single number."""
    if isinstance(term, multiply):
        return True
    return isinstance(term, MulExpression) and any(int(argument.size) == 1 for argument in term.args)
