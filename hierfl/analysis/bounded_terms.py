"""Constraints as rows and bounded terms ``scale * function <= bound``: the few convex functions that CVXPY's many spellings come down to.

The outermost convex atom decides, a reader for each; arguments and bounds are affine in y. ``refusal`` says why nothing can be made of a term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.power import Power
from cvxpy.atoms.pnorm import Pnorm
from cvxpy.constraints.constraint import Constraint
from cvxpy.constraints.nonpos import Inequality, NonNeg, NonPos
from cvxpy.constraints.psd import PSD
from cvxpy.constraints.second_order import SOC
from cvxpy.constraints.zero import Equality, Zero
from cvxpy.expressions.expression import Expression

from hierfl.atoms.algebra import addends


@dataclass(frozen=True, eq=False)
class Norm:
    """The norm of ``order`` 1 or 2, or its square, of the whole argument or along an axis."""

    order: float
    argument: Expression
    axis: int | None = None
    squared: bool = False
    refusal: str = "norms below a bound that moves with y"


@dataclass(frozen=True, eq=False)
class LargestEigenvalue:
    """The largest eigenvalue of a symmetric matrix."""

    argument: Expression
    refusal: str = "an eigenvalue"


@dataclass(frozen=True, eq=False)
class Semidefinite:
    """A matrix that is positive semidefinite; its bound is 0."""

    argument: Expression
    refusal: str = "a semidefinite matrix"


@dataclass(frozen=True, eq=False)
class LargestEntry:
    """The largest entry of the arguments, which are broadcast against each other and against the bound."""

    arguments: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Unread:
    """Any other function."""

    refusal: str


@dataclass(frozen=True, eq=False)
class BoundedTerm:
    """``scale * function <= bound`` with an affine bound; the y-free ``scale`` >= 0 is None for 1. Of a function that is ``Unread`` the ``atom`` tells all."""

    function: Norm | LargestEigenvalue | Semidefinite | Unread
    bound: Expression
    scale: Expression | None = None
    atom: Atom | None = None

    def scaled(self, argument: Expression) -> Expression:
        return _weighted(self.scale, argument)


@dataclass(frozen=True)
class AffineRows:
    """``expression <= 0`` (or ``== 0``), affine in y, element by element."""

    expression: Expression
    equality: bool


@dataclass(frozen=True)
class Other:
    """A convex constraint without a closed form; ``reason`` says what it is."""

    reason: str


Read = AffineRows | BoundedTerm | Other


# --- constraints -----------------------------------------------------------------------------------------------------


def terms_of(constraint: Constraint) -> list[Read]:
    """What one hoisted constraint says: rows, and convex functions below bounds."""
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
        return [BoundedTerm(Semidefinite(constraint.args[0]), cp.Constant(0.0))]
    if isinstance(constraint, SOC):
        bound, vector = constraint.args
        axis = None if bound.size == 1 else constraint.axis
        return [BoundedTerm(Norm(2, vector, axis, refusal="several second-order cones at once"), bound)]
    return [Other(f"{type(constraint).__name__} constraint")]


def _at_most_zero(expression: Expression) -> list[Read]:
    """``expression <= 0``: one convex term under an affine bound."""
    if expression.is_affine():
        return [AffineRows(expression, False)]
    terms = addends(expression)
    nonlinear = [term for term in terms if not term.is_affine()]
    if len(nonlinear) != 1:
        return [Other("a sum of several nonlinear terms in y")]
    rest = [term for term in terms if term is not nonlinear[0]]
    bound = -sum(rest[1:], start=rest[0]) if rest else cp.Constant(np.zeros(expression.shape))
    atom, scale, negative, promoted = _factored(nonlinear[0])
    if promoted:  # one scalar below every entry of the bound
        if bound.variables():
            return [Other(f"{_called(atom)} below several entries that move with y")]
        bound = cp.min(bound)
        if scale is not None and scale.size > 1:
            return [Other(f"{_called(atom)} scaled entry by entry")]
    readers = _CONCAVE_READERS if negative else _READERS
    reader = next((reader for kind, reader in readers.items() if isinstance(atom, kind)), None)
    function, bound = (Unread(_called(atom)), bound) if reader is None else reader(atom, bound)
    if isinstance(function, LargestEntry):
        return [AffineRows(_weighted(scale, argument) - bound, False) for argument in function.arguments]
    return [BoundedTerm(function, bound, scale, atom)]


def _factored(term: Expression) -> tuple[Atom, Expression | None, bool, bool]:
    """``sign * scale * atom`` of a term: (atom, y-free scale >= 0, None for 1, whether the sign is negative, whether a scalar was spread over a shape)."""
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
            return term, scale, negative, promoted
        if not factor.is_nonneg():
            factor, negative = -factor, not negative
        factor = factor.args[0] if isinstance(factor, Promote) else factor
        scale = _weighted(scale, factor)
        term = inner


def _multiplies_entries(term: Expression) -> bool:
    """Whether it is a product entry by entry: also a matrix product with a single number."""
    if isinstance(term, multiply):
        return True
    return isinstance(term, MulExpression) and any(int(argument.size) == 1 for argument in term.args)


def _called(atom: Atom) -> str:
    return f"the atom {type(atom).__name__.removesuffix('Approx')}"


def _weighted(weights: Expression | None, argument: Expression) -> Expression:
    return argument if weights is None else cp.multiply(weights, argument)


# --- atoms: (the function, the bound) of ``atom <= bound`` ---------------------------------------------------------------

_Function = Norm | LargestEigenvalue | LargestEntry | Unread
_Reader = Callable[[Atom, Expression], tuple[_Function, Expression]]


def _of_affine(refusal: str, make: Callable[[Atom], _Function]) -> _Reader:
    """A reader of atoms whose argument has to be affine."""
    return lambda atom, bound: (make(atom) if atom.args[0].is_affine() else Unread(refusal), bound)


def _extreme(negated: bool) -> _Reader:
    """A reader of the largest entry, of the arguments or of their negatives: -min(...) is the largest of these."""

    def reader(atom: Atom, bound: Expression) -> tuple[_Function, Expression]:
        if any(not argument.is_affine() for argument in atom.args) or getattr(atom, "axis", None) is not None:
            return Unread(f"{_called(atom)} of a nonlinear expression or along an axis"), bound
        return LargestEntry(tuple(-argument if negated else argument for argument in atom.args)), bound

    return reader


_absolute = _of_affine("abs of a nonlinear expression", lambda atom: LargestEntry((atom.args[0], -atom.args[0])))


def _largest_absolute(atom: Atom, bound: Expression) -> tuple[_Function, Expression]:
    """Rows: two for each entry."""
    if atom.axis is not None and atom.args[0].is_affine():
        rows, columns = atom.args[0].shape
        if atom.axis == 1:
            bound = cp.reshape(bound, (rows, 1), order="F") @ np.ones((1, columns))
        else:
            bound = np.ones((rows, 1)) @ cp.reshape(bound, (1, columns), order="F")
    return _absolute(atom, bound)


def _euclidean(atom: Atom, bound: Expression) -> tuple[_Function, Expression]:
    if float(atom.p) != 2:
        return Unread(f"the {float(atom.p):g}-norm"), bound
    return _of_affine("a norm of a nonlinear expression", lambda atom: Norm(2, atom.args[0], atom.axis))(atom, bound)


def _sum(atom: Atom, bound: Expression) -> tuple[_Function, Expression]:
    """Sums of squares and of absolute values, with weights or without."""
    inner, weights = atom.args[0], None
    if isinstance(inner, multiply):
        weights, inner = (inner.args[0], inner.args[1]) if inner.args[1].variables() else (inner.args[1], inner.args[0])
        if weights.variables() or not weights.is_nonneg():
            return Unread("a sum weighted by y, or with weights of unknown sign"), bound
    if atom.axis is not None:
        return Unread("sums of nonlinear terms along an axis"), bound
    return _weighted_sum(inner, weights), bound


def _product(atom: Atom, bound: Expression) -> tuple[_Function, Expression]:
    """weights @ (vector of nonlinear terms)."""
    left, right = atom.args
    weights, inner = (right, left) if left.variables() else (left, right)
    if atom.size != 1 or inner.ndim != 1 or weights.variables() or not weights.is_nonneg():
        return Unread("a product with a nonlinear expression"), bound
    return _weighted_sum(inner, weights), bound


def _weighted_sum(inner: Expression, weights: Expression | None) -> _Function:
    if isinstance(inner, cp.abs) and inner.args[0].is_affine():
        return Norm(1, _weighted(weights, inner.args[0]))
    if _is_square(inner):
        return _squares(_weighted(None if weights is None else cp.sqrt(weights), inner.args[0]))
    return Unread("a sum of nonlinear terms")


def _squares(argument: Expression) -> _Function:
    return Norm(2, argument, squared=True) if argument.is_affine() else Unread("the square of a nonlinear expression")


def _is_square(atom: Expression) -> bool:
    return isinstance(atom, Power) and atom.args[0].is_affine() and _exponent(atom) == 2


def _exponent(power: Power) -> float | None:
    return power.p.value if hasattr(power.p, "value") else power.p


def _power(atom: Atom, bound: Expression) -> tuple[_Function, Expression]:
    """The square of a number or of a Euclidean norm."""
    inner = atom.args[0]
    if _is_square(atom) and atom.size == 1:
        return _squares(inner), bound
    of_norm = isinstance(inner, Pnorm) and float(inner.p) == 2 and inner.axis is None
    if _exponent(atom) == 2 and of_norm and atom.size == 1:
        return _squares(inner.args[0]), bound
    return Unread("an elementwise power"), bound


def _quad_over_lin(atom: Atom, bound: Expression) -> tuple[_Function, Expression]:
    argument, denominator = atom.args
    if atom.size != 1 or getattr(atom, "axis", None) is not None or denominator.variables():
        return Unread("quad_over_lin along an axis or over what moves with y"), bound
    return _squares(argument), bound * denominator


def _quadratic_form(atom: Atom, bound: Expression) -> tuple[_Function, Expression]:
    """The squares of a root of the matrix times the argument."""
    argument, matrix = atom.args
    if matrix.parameters() or matrix.variables():
        return Unread("a quadratic form whose matrix moves"), bound
    values, vectors = np.linalg.eigh(0.5 * (matrix.value + matrix.value.T))
    keep = values > 1e-14 * np.abs(values).max()
    return _squares((np.sqrt(values[keep])[:, None] * vectors[:, keep].T) @ argument), bound


# atom <= bound
_READERS: dict[type[Atom], _Reader] = {
    cp.abs: _absolute,
    cp.norm_inf: _largest_absolute,
    cp.norm1: _of_affine("a norm of a nonlinear expression", lambda atom: Norm(1, atom.args[0], atom.axis)),
    cp.max: _extreme(False),
    cp.maximum: _extreme(False),
    Pnorm: _euclidean,
    Power: _power,
    Sum: _sum,
    MulExpression: _product,
    cp.quad_over_lin: _quad_over_lin,
    cp.QuadForm: _quadratic_form,
    cp.lambda_max: _of_affine("an eigenvalue of a nonlinear expression", lambda atom: LargestEigenvalue(atom.args[0])),
}

# -atom <= bound
_CONCAVE_READERS: dict[type[Atom], _Reader] = {cp.min: _extreme(True), cp.minimum: _extreme(True)}
