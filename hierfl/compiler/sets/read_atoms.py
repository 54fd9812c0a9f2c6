"""From a CVXPY atom below an affine bound to a bounded term: a reader for each atom, whatever way a set is spelled."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.binary_operators import MulExpression, multiply
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.power import Power
from cvxpy.atoms.pnorm import Pnorm
from cvxpy.expressions.expression import Expression

from hierfl.compiler.sets.bounded_terms import BoundedTerm, LargestEigenvalue, LargestEntry, Norm, Unread

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
