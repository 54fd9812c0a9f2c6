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
    refusal: str = "a largest entry"


@dataclass(frozen=True, eq=False)
class Unread:
    """Any other function."""

    refusal: str


@dataclass(frozen=True, eq=False)
class BoundedTerm:
    """``scale * function <= bound`` with an affine bound; the y-free ``scale`` >= 0 is None for 1."""

    function: Norm | LargestEigenvalue | Semidefinite | LargestEntry | Unread
    bound: Expression
    scale: Expression | None = None

    def scaled(self, argument: Expression) -> Expression:
        """The argument times the scale."""
        return argument if self.scale is None else cp.multiply(self.scale, argument)


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
        return _read_term(BoundedTerm(Semidefinite(constraint.args[0]), cp.Constant(0.0)))
    if isinstance(constraint, SOC):
        bound, vector = constraint.args
        axis = None if bound.size == 1 else constraint.axis
        return _read_term(BoundedTerm(Norm(2, vector, axis, refusal="several second-order cones at once"), bound))
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
    term = _factored(nonlinear[0])
    if term.promoted:  # one scalar below every entry of the bound
        if bound.variables():
            return [Other(f"{atom_name(term.atom)} below several entries that move with y")]
        bound = cp.min(bound)
        if term.scale is not None and term.scale.size > 1:
            return [Other(f"{atom_name(term.atom)} scaled entry by entry")]
    return _read_term(read(term.atom, bound, term.scale, term.negative))


def _read_term(term: BoundedTerm) -> list[Read]:
    """Rows for a largest entry, else the term."""
    if isinstance(term.function, LargestEntry):
        return [AffineRows(term.scaled(argument) - term.bound, False) for argument in term.function.arguments]
    return [term]


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


# --- atoms -----------------------------------------------------------------------------------------------------------


_Reader = Callable[[Atom, Expression], BoundedTerm]


def read(atom: Atom, bound: Expression, scale: Expression | None, negative: bool) -> BoundedTerm:
    """``scale * atom <= bound``, or ``-scale * atom <= bound`` where ``negative``."""
    readers = _CONCAVE_READERS if negative else _READERS
    reader = next((reader for kind, reader in readers.items() if isinstance(atom, kind)), None)
    term = _unread(bound, atom_name(atom)) if reader is None else reader(atom, bound)
    return BoundedTerm(term.function, term.bound, scale)


def atom_name(atom: Atom) -> str:
    """The atom as messages name it."""
    return f"the atom {type(atom).__name__.removesuffix('Approx')}"


def _unread(bound: Expression, refusal: str) -> BoundedTerm:
    return BoundedTerm(Unread(refusal), bound)


def _weighted(weights: Expression | None, argument: Expression) -> Expression:
    return argument if weights is None else cp.multiply(weights, argument)


# --- entries -------------------------------------------------------------------------------------------------------


def _absolute(atom: Atom, bound: Expression) -> BoundedTerm:
    argument = atom.args[0]
    if not argument.is_affine():
        return _unread(bound, "abs of a nonlinear expression")
    return BoundedTerm(LargestEntry((argument, -argument)), bound)


def _largest(atom: Atom, bound: Expression) -> BoundedTerm:
    return _entries(atom, bound, atom.args)


def _smallest(atom: Atom, bound: Expression) -> BoundedTerm:
    """-min(...) is the largest of the negatives."""
    return _entries(atom, bound, [-argument for argument in atom.args])


def _entries(atom: Atom, bound: Expression, arguments: list[Expression]) -> BoundedTerm:
    if any(not argument.is_affine() for argument in arguments) or getattr(atom, "axis", None) is not None:
        return _unread(bound, f"{atom_name(atom)} of a nonlinear expression or along an axis")
    return BoundedTerm(LargestEntry(tuple(arguments)), bound)


def _largest_absolute(atom: Atom, bound: Expression) -> BoundedTerm:
    """Rows: two for each entry."""
    argument = atom.args[0]
    if atom.axis is None or not argument.is_affine():
        return _absolute(atom, bound)
    rows, columns = argument.shape
    if atom.axis == 1:
        return _absolute(atom, cp.reshape(bound, (rows, 1), order="F") @ np.ones((1, columns)))
    return _absolute(atom, np.ones((rows, 1)) @ cp.reshape(bound, (1, columns), order="F"))


# --- norms ---------------------------------------------------------------------------------------------------------


def _norm(order: float, argument: Expression, axis: int | None, bound: Expression) -> BoundedTerm:
    if not argument.is_affine():
        return _unread(bound, "a norm of a nonlinear expression")
    return BoundedTerm(Norm(order, argument, axis), bound)


def _euclidean(atom: Atom, bound: Expression) -> BoundedTerm:
    if float(atom.p) != 2:
        return _unread(bound, f"the {float(atom.p):g}-norm")
    return _norm(2, atom.args[0], atom.axis, bound)


def _sum_of_absolutes(atom: Atom, bound: Expression) -> BoundedTerm:
    return _norm(1, atom.args[0], atom.axis, bound)


def _largest_eigenvalue(atom: Atom, bound: Expression) -> BoundedTerm:
    if not atom.args[0].is_affine():
        return _unread(bound, "an eigenvalue of a nonlinear expression")
    return BoundedTerm(LargestEigenvalue(atom.args[0]), bound)


# --- sums ----------------------------------------------------------------------------------------------------------


def _sum(atom: Atom, bound: Expression) -> BoundedTerm:
    """Sums of squares and of absolute values, with weights or without."""
    inner, weights = atom.args[0], None
    if isinstance(inner, multiply):
        weights, inner = (inner.args[0], inner.args[1]) if inner.args[1].variables() else (inner.args[1], inner.args[0])
        if weights.variables() or not weights.is_nonneg():
            return _unread(bound, "a sum weighted by y, or with weights of unknown sign")
    if atom.axis is not None:
        return _unread(bound, "sums of nonlinear terms along an axis")
    return _weighted_sum(inner, weights, bound)


def _product(atom: Atom, bound: Expression) -> BoundedTerm:
    """weights @ (vector of nonlinear terms)."""
    left, right = atom.args
    weights, inner = (right, left) if left.variables() else (left, right)
    if atom.size != 1 or inner.ndim != 1 or weights.variables() or not weights.is_nonneg():
        return _unread(bound, "a product with a nonlinear expression")
    return _weighted_sum(inner, weights, bound)


def _weighted_sum(inner: Expression, weights: Expression | None, bound: Expression) -> BoundedTerm:
    if isinstance(inner, cp.abs) and inner.args[0].is_affine():
        return BoundedTerm(Norm(1, _weighted(weights, inner.args[0])), bound)
    if _is_square(inner):
        root = None if weights is None else cp.sqrt(weights)
        return _squares(_weighted(root, inner.args[0]), bound)
    return _unread(bound, "a sum of nonlinear terms")


# --- squares -------------------------------------------------------------------------------------------------------


def _squares(argument: Expression, bound: Expression) -> BoundedTerm:
    if not argument.is_affine():
        return _unread(bound, "the square of a nonlinear expression")
    return BoundedTerm(Norm(2, argument, squared=True), bound)


def _is_square(atom: Expression) -> bool:
    if not isinstance(atom, Power) or not atom.args[0].is_affine():
        return False
    exponent = _exponent(atom)
    return exponent is not None and float(exponent) == 2


def _exponent(power: Power) -> float | None:
    return power.p.value if hasattr(power.p, "value") else power.p


def _power(atom: Atom, bound: Expression) -> BoundedTerm:
    """The square of a number or of a Euclidean norm."""
    inner = atom.args[0]
    if _is_square(atom) and atom.size == 1:
        return _squares(inner, bound)
    of_norm = isinstance(inner, Pnorm) and float(inner.p) == 2 and inner.axis is None
    if _exponent(atom) == 2 and of_norm and atom.size == 1:
        return _squares(inner.args[0], bound)
    return _unread(bound, "an elementwise power")


def _quad_over_lin(atom: Atom, bound: Expression) -> BoundedTerm:
    argument, denominator = atom.args
    if atom.size != 1 or getattr(atom, "axis", None) is not None or denominator.variables():
        return _unread(bound, "quad_over_lin along an axis or over what moves with y")
    return _squares(argument, bound * denominator)


def _quadratic_form(atom: Atom, bound: Expression) -> BoundedTerm:
    """The squares of a root of the matrix times the argument."""
    argument, matrix = atom.args
    if matrix.parameters() or matrix.variables():
        return _unread(bound, "a quadratic form whose matrix moves")
    values, vectors = np.linalg.eigh(0.5 * (matrix.value + matrix.value.T))
    keep = values > 1e-14 * np.abs(values).max()
    return _squares((np.sqrt(values[keep])[:, None] * vectors[:, keep].T) @ argument, bound)


# atom <= bound
_READERS: dict[type[Atom], _Reader] = {
    cp.abs: _absolute,
    cp.norm_inf: _largest_absolute,
    cp.norm1: _sum_of_absolutes,
    cp.max: _largest,
    cp.maximum: _largest,
    Pnorm: _euclidean,
    Power: _power,
    Sum: _sum,
    MulExpression: _product,
    cp.quad_over_lin: _quad_over_lin,
    cp.QuadForm: _quadratic_form,
    cp.lambda_max: _largest_eigenvalue,
}

# -atom <= bound
_CONCAVE_READERS: dict[type[Atom], _Reader] = {
    cp.min: _smallest,
    cp.minimum: _smallest,
}
