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
    """``||argument||_2 <= radius``, or ``||argument||^2 <= radius`` when ``squared``; argument affine in y, radius y-free."""

    argument: Any
    radius: Any
    squared: bool


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
    flipped = rough[0].args[0] if isinstance(rough[0], NegExpression) else None
    if isinstance(flipped, (cp.min, cp.minimum)):
        return _smallest(flipped, bound)
    atom, scale = _unscaled(rough[0])
    rule = next((rule for kind, rule in _EPIGRAPHS.items() if isinstance(atom, kind)), None)
    if rule is None:
        return [Other(f"the atom {type(atom).__name__}")]
    return rule(atom, bound if scale is None else bound / scale)


def _unscaled(term: Any) -> tuple[Any, Any]:
    """(atom, scale) of ``scale * atom`` with a y-free nonnegative scalar scale; scale None for 1."""
    if isinstance(term, (MulExpression, multiply)):
        for scale, atom in (term.args, term.args[::-1]):
            if not scale.variables() and scale.is_nonneg() and scale.size == 1:
                return atom, scale
    if (
        isinstance(term, DivExpression)
        and not term.args[1].variables()
        and term.args[1].is_nonneg()
        and term.args[1].size == 1
    ):
        return term.args[0], 1 / term.args[1]
    return term, None


def _absolute(atom: Any, bound: Any) -> list[Piece]:
    argument = atom.args[0]
    if not argument.is_affine():
        return [Other("abs of a nonlinear expression")]
    return [AffineRows(argument - bound, False), AffineRows(-argument - bound, False)]


def _largest(atom: Any, bound: Any) -> list[Piece]:
    if any(not argument.is_affine() for argument in atom.args) or getattr(atom, "axis", None) is not None:
        return [Other(f"{type(atom).__name__} of a nonlinear expression or along an axis")]
    return [AffineRows(argument - bound, False) for argument in atom.args]


def _smallest(atom: Any, bound: Any) -> list[Piece]:
    """-min(...) <= bound."""
    if any(not argument.is_affine() for argument in atom.args) or getattr(atom, "axis", None) is not None:
        return [Other(f"{type(atom).__name__} of a nonlinear expression or along an axis")]
    return [AffineRows(-argument - bound, False) for argument in atom.args]


def _largest_absolute(atom: Any, bound: Any) -> list[Piece]:
    return _absolute(atom, bound) if atom.axis is None else [Other("norm_inf along an axis")]


def _euclidean(atom: Any, bound: Any) -> list[Piece]:
    if float(atom.p) != 2 or atom.axis is not None or not atom.args[0].is_affine():
        return [
            Other(
                f"the {float(atom.p):g}-norm"
                if float(atom.p) != 2
                else "a norm of a nonlinear expression or along an axis"
            )
        ]
    return [NormBound(atom.args[0], bound, False)]


def _square(atom: Any, bound: Any) -> list[Piece]:
    exponent = float(np.asarray(atom.p.value)) if hasattr(atom.p, "value") else float(atom.p)
    if exponent != 2 or atom.args[0].size != 1 or not atom.args[0].is_affine():
        return [Other("an elementwise power")]
    return [NormBound(atom.args[0], bound, True)]


def _sum_of_squares(atom: Any, bound: Any) -> list[Piece]:
    if (
        atom.args[1].variables()
        or not atom.args[0].is_affine()
        or atom.size != 1
        or getattr(atom, "axis", None) is not None
    ):
        return [Other("quad_over_lin with a variable denominator, a nonlinear argument, or an axis")]
    return [NormBound(atom.args[0], bound * atom.args[1], True)]


_EPIGRAPHS: dict[type, Callable[[Any, Any], list[Piece]]] = {
    cp.abs: _absolute,
    cp.norm_inf: _largest_absolute,
    cp.max: _largest,
    cp.maximum: _largest,
    Pnorm: _euclidean,
    Power: _square,
    cp.quad_over_lin: _sum_of_squares,
}


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
