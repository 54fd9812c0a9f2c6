"""Constraints on y to pieces that have closed-form projections: affine rows and Euclidean balls.

The outermost convex atom is matched on the (hoisted) tree; what stands under it is recognised semantically, by its
coefficients at two random values of everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.elementwise.power import Power
from cvxpy.atoms.pnorm import Pnorm
from cvxpy.constraints.nonpos import Inequality, NonNeg, NonPos
from cvxpy.constraints.second_order import SOC
from cvxpy.constraints.zero import Equality, Zero

from hierfl.compiler.curvature import addends


@dataclass(frozen=True)
class AffineRows:
    """``expression <= 0`` (or ``== 0``), affine in y, element by element."""

    expression: Any
    equality: bool


@dataclass(frozen=True)
class NormBound:
    """``scale * ||argument||_2 <= radius``, or ``scale * ||argument||^2 <= radius`` when ``squared``.

    The argument is affine in y, the radius and the scale (>= 0; None for 1) are y-free scalars.
    """

    argument: Any
    radius: Any
    squared: bool
    scale: Any = None


@dataclass(frozen=True)
class Other:
    """A convex constraint without a closed form; ``reason`` says what it is."""

    reason: str


Piece = AffineRows | NormBound | Other


def pieces_of(constraint: Any) -> list[Piece]:
    """The pieces of one hoisted constraint."""
    if isinstance(constraint, (Equality, Zero)):
        return [
            AffineRows(
                constraint.args[0] - constraint.args[1] if isinstance(constraint, Equality) else constraint.args[0],
                True,
            )
        ]
    if isinstance(constraint, (Inequality, NonPos)):
        return _at_most_zero(
            constraint.args[0] - constraint.args[1] if isinstance(constraint, Inequality) else constraint.args[0]
        )
    if isinstance(constraint, NonNeg):
        return _at_most_zero(-constraint.args[0])
    if isinstance(constraint, SOC) and constraint.args[0].size == 1 and not constraint.args[0].variables():
        return [NormBound(constraint.args[1], constraint.args[0], False)]
    return [Other(f"{type(constraint).__name__} constraint")]


def _at_most_zero(expression: Any) -> list[Piece]:
    if expression.is_affine():
        return [AffineRows(expression, False)]
    terms = addends(expression)
    rough = [term for term in terms if term.variables()]
    if len(rough) != 1:
        return [Other("a sum of several terms in y")]
    rest = [term for term in terms if not term.variables()]
    bound = -sum(rest[1:], start=rest[0]) if rest else cp.Constant(np.zeros(expression.shape))
    found = _factored(rough[0])
    if found.promoted:  # one scalar below every entry of the bound
        bound = cp.min(bound)
        if found.scale is not None and found.scale.size > 1:
            return [Other(f"{_name(found.atom)} scaled entry by entry")]
    table = _HYPOGRAPHS if found.negative else _EPIGRAPHS
    rule = next((rule for kind, rule in table.items() if isinstance(found.atom, kind)), None)
    return [Other(_name(found.atom))] if rule is None else rule(found.atom, bound, found.scale)


@dataclass(frozen=True)
class _Factored:
    """``sign * scale * atom`` with a y-free scale >= 0 (None for 1); ``promoted`` when a scalar atom was spread over a shape."""

    atom: Any
    scale: Any = None
    negative: bool = False
    promoted: bool = False


def _factored(term: Any) -> _Factored:
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
        if isinstance(term, (MulExpression, multiply)) and (isinstance(term, multiply) or 1 in map(_size, term.args)):
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


def _size(expression: Any) -> int:
    return int(expression.size)


def _name(atom: Any) -> str:
    return f"the atom {type(atom).__name__}"


def _times(scale: Any, argument: Any) -> Any:
    return argument if scale is None else cp.multiply(scale, argument)


def _absolute(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    if not atom.args[0].is_affine():
        return [Other("abs of a nonlinear expression")]
    argument = _times(scale, atom.args[0])
    return [AffineRows(argument - bound, False), AffineRows(-argument - bound, False)]


def _largest_absolute(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    return _absolute(atom, bound, scale) if atom.axis is None else [Other("norm_inf along an axis")]


def _largest(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    """max(...) <= bound."""
    return _each(atom, bound, scale, 1.0)


def _smallest(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    """-min(...) <= bound."""
    return _each(atom, bound, scale, -1.0)


def _each(atom: Any, bound: Any, scale: Any, sign: float) -> list[Piece]:
    if any(not argument.is_affine() for argument in atom.args) or getattr(atom, "axis", None) is not None:
        return [Other(f"{type(atom).__name__} of a nonlinear expression or along an axis")]
    return [AffineRows(sign * _times(scale, argument) - bound, False) for argument in atom.args]


def _euclidean(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    if float(atom.p) != 2:
        return [Other(f"the {float(atom.p):g}-norm")]
    if atom.axis is not None or not atom.args[0].is_affine():
        return [Other("a norm of a nonlinear expression or along an axis")]
    return [NormBound(atom.args[0], bound, False, scale)]


def _square(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    if not _is_square(atom) or atom.size != 1:
        return [Other("an elementwise power")]
    return [NormBound(atom.args[0], bound, True, scale)]


def _sum(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    """sum(square(argument)) <= bound."""
    if atom.axis is not None or not _is_square(atom.args[0]):
        return [Other("a sum of nonlinear terms")]
    return [NormBound(atom.args[0].args[0], bound, True, scale)]


def _is_square(atom: Any) -> bool:
    if not isinstance(atom, Power) or not atom.args[0].is_affine():
        return False
    exponent = atom.p.value if hasattr(atom.p, "value") else atom.p
    return exponent is not None and float(exponent) == 2


def _sum_of_squares(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    argument, denominator = atom.args
    if denominator.variables() or not argument.is_affine() or atom.size != 1 or getattr(atom, "axis", None) is not None:
        return [Other("quad_over_lin with a variable denominator, a nonlinear argument, or an axis")]
    return [NormBound(argument, bound * denominator, True, scale)]


_Rule = Callable[[Any, Any, Any], list[Piece]]

# scale * atom <= bound
_EPIGRAPHS: dict[type, _Rule] = {
    cp.abs: _absolute,
    cp.norm_inf: _largest_absolute,
    cp.max: _largest,
    cp.maximum: _largest,
    Pnorm: _euclidean,
    Power: _square,
    Sum: _sum,
    cp.quad_over_lin: _sum_of_squares,
}

# -scale * atom <= bound
_HYPOGRAPHS: dict[type, _Rule] = {cp.min: _smallest, cp.minimum: _smallest}


@dataclass(frozen=True)
class Coefficients:
    """The matrix of an affine expression in the flat (C-order) y; rows in Fortran order of the expression.

    ``constant`` says that it is the same at two random values of the parameters; the sparsity pattern is their union.
    """

    matrix: sp.csr_array
    constant: bool


def coefficients(expression: Any, variables: Sequence[cp.Variable], parameters: Sequence[cp.Parameter]) -> Coefficients:
    """Extract the coefficients of an affine expression of the twins ``variables``."""
    found = []
    for seed in (11, 12):
        randomise(parameters, np.random.default_rng(seed))
        found.append(_matrix(expression, variables))
    first, second = found
    scale = 1.0 + abs(first).max() if first.nnz else 1.0
    constant = (abs(first - second) > 1e-12 * scale).nnz == 0
    union = first if constant else sp.csr_array(abs(first) + abs(second))
    union.eliminate_zeros()
    return Coefficients(union, constant)


def randomise(parameters: Sequence[cp.Parameter], rng: np.random.Generator) -> None:
    """Random values that respect the parameters' signs."""
    for parameter in parameters:
        value = rng.standard_normal(parameter.shape)
        if parameter.attributes.get("PSD") or parameter.attributes.get("NSD"):
            value = value @ value.T * (1.0 if parameter.attributes.get("PSD") else -1.0)
        elif parameter.is_nonneg():
            value = np.abs(value) + 0.1
        elif parameter.is_nonpos():
            value = -np.abs(value) - 0.1
        elif parameter.attributes.get("symmetric"):
            value = value + value.T
        parameter.save_value(value)


def _matrix(expression: Any, variables: Sequence[cp.Variable]) -> sp.csr_array:
    for variable in variables:
        variable.save_value(np.zeros(variable.shape))
    gradients = expression.grad
    blocks = []
    for variable in variables:
        gradient = gradients.get(variable)
        if gradient is None:
            block = sp.csr_array((expression.size, variable.size))
        else:
            block = sp.csr_array(sp.csc_array(np.atleast_2d(gradient) if np.isscalar(gradient) else gradient).T)
        order = np.arange(variable.size).reshape(variable.shape, order="F").ravel(order="C")
        blocks.append(sp.csr_array(block)[:, order])
    matrix = sp.csr_array(sp.hstack(blocks, format="csr"))
    matrix.eliminate_zeros()
    return matrix
