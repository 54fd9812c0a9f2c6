"""From one hoisted constraint to its pieces: the outermost convex atom decides, its affine argument is read semantically."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
from cvxpy.constraints.psd import PSD
from cvxpy.constraints.second_order import SOC
from cvxpy.constraints.zero import Equality, Zero

from hierfl.compiler.sets.families import (
    Family,
    GroupBall,
    L1Ball,
    L1Cone,
    L2Ball,
    LinfCone,
    NuclearBall,
    Paraboloid,
    PsdCone,
    RotatedCone,
    SecondOrderCone,
    SpectralBall,
    svec_map,
)
from hierfl.compiler.sets.pieces import AffineRows, Membership, Other, Piece, all_rows, rows_along
from hierfl.language.addends import addends


def pieces_of(constraint: Any) -> list[Piece]:
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
        return [_semidefinite(constraint.args[0])]
    if isinstance(constraint, SOC):
        return [_second_order(constraint)]
    return [Other(f"{type(constraint).__name__} constraint")]


def _at_most_zero(expression: Any) -> list[Piece]:
    """``expression <= 0``: one convex term under an affine bound."""
    if expression.is_affine():
        return [AffineRows(expression, False)]
    terms = addends(expression)
    rough = [term for term in terms if not term.is_affine()]
    if len(rough) != 1:
        return [Other("a sum of several nonlinear terms in y")]
    rest = [term for term in terms if term is not rough[0]]
    bound = -sum(rest[1:], start=rest[0]) if rest else cp.Constant(np.zeros(expression.shape))
    term = _factored(rough[0])
    if term.promoted:  # one scalar below every entry of the bound
        if bound.variables():
            return [Other(f"{_name(term.atom)} below several entries that move with y")]
        bound = cp.min(bound)
        if term.scale is not None and term.scale.size > 1:
            return [Other(f"{_name(term.atom)} scaled entry by entry")]
    table = _HYPOGRAPHS if term.negative else _EPIGRAPHS
    rule = next((rule for kind, rule in table.items() if isinstance(term.atom, kind)), None)
    return [Other(_name(term.atom))] if rule is None else rule(term.atom, bound, term.scale)


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
    return f"the atom {type(atom).__name__.removesuffix('Approx')}"


def _times(scale: Any, argument: Any) -> Any:
    return argument if scale is None else cp.multiply(scale, argument)


# --- rows ----------------------------------------------------------------------------------------------------------


def _absolute(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    argument = atom.args[0]
    if not argument.is_affine():
        return [Other("abs of a nonlinear expression")]
    argument = _times(scale, argument)
    return [AffineRows(argument - bound, False), AffineRows(-argument - bound, False)]


def _largest(atom: Any, bound: Any, scale: Any, sign: float) -> list[Piece]:
    """max(...) <= bound, or -min(...) <= bound for ``sign`` -1."""
    if any(not argument.is_affine() for argument in atom.args) or getattr(atom, "axis", None) is not None:
        return [Other(f"{_name(atom)} of a nonlinear expression or along an axis")]
    return [AffineRows(sign * _times(scale, argument) - bound, False) for argument in atom.args]


# --- norms ---------------------------------------------------------------------------------------------------------


def _norm(argument: Any, axis: int | None, bound: Any, scale: Any, ball: Family, cone: Family | None) -> list[Piece]:
    """``scale * ||argument|| <= bound``, along an axis or not: balls, or a cone where the bound moves with y."""
    if not argument.is_affine():
        return [Other("a norm of a nonlinear expression")]
    if not bound.variables():
        groups = rows_along(argument.shape, axis)
        return [Membership(ball, argument, groups, radius=bound, scale=scale)]
    if cone is None or axis is not None or bound.size > 1:
        return [Other("norms below a bound that moves with y")]
    return [_stacked(cone, [_times(scale, argument)], [bound])]


def _stacked(cone: Family, vectors: list[Any], scalars: list[Any]) -> Membership:
    """(u, t) or (u, s, t) in a cone, as one argument."""
    parts = [cp.vec(v, order="F") for v in vectors] + [cp.reshape(s, (1,), order="F") for s in scalars]
    argument = cp.hstack(parts)
    return Membership(cone, argument, all_rows(argument))


def _euclidean(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    if float(atom.p) != 2:
        return [Other(f"the {float(atom.p):g}-norm")]
    return _norm(atom.args[0], atom.axis, bound, scale, L2Ball(), SecondOrderCone())


def _largest_absolute(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    argument = atom.args[0]
    if bound.variables() and bound.size == 1 and atom.axis is None and argument.size > 1:
        return _norm(argument, None, bound, scale, L2Ball(), LinfCone())
    if atom.axis is not None and argument.is_affine():
        along = cp.reshape(bound, _kept(argument.shape, atom.axis), order="F")
        return _absolute(
            atom, along @ np.ones((1, argument.shape[1])) if atom.axis == 1 else _rows_of(along, argument), scale
        )
    return _absolute(atom, bound, scale)


def _kept(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return tuple(1 if k == axis else size for k, size in enumerate(shape))


def _rows_of(bound: Any, argument: Any) -> Any:
    return np.ones((argument.shape[0], 1)) @ bound


def _sum_of_absolutes(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    """norm1, of affine entries or of Euclidean norms along an axis."""
    argument = atom.args[0]
    if isinstance(argument, Pnorm) and atom.axis is None:
        return _grouped(argument, None, bound, scale)
    return _norm(argument, atom.axis, bound, scale, L1Ball(), L1Cone())


def _grouped(norms: Any, weights: Any, bound: Any, scale: Any) -> list[Piece]:
    """sum(weights * norms along an axis) <= bound."""
    argument = norms.args[0]
    if float(norms.p) != 2 or not argument.is_affine() or bound.variables() or weights is not None:
        return [Other("a weighted sum of norms, or one below a bound that moves with y")]
    groups = rows_along(argument.shape, norms.axis)
    partition = np.empty(argument.size, int)
    for place, rows in enumerate(groups):
        partition[rows] = place
    return [Membership(GroupBall(partition), argument, all_rows(argument), radius=bound, scale=scale)]


def _sum(atom: Any, bound: Any, scale: Any, weights: Any = None) -> list[Piece]:
    """Sums of squares, of absolute values (weighted), of Euclidean norms."""
    inner = atom.args[0]
    if isinstance(inner, multiply) and weights is None:
        weights, inner = (inner.args[0], inner.args[1]) if inner.args[1].variables() else (inner.args[1], inner.args[0])
        if weights.variables() or not weights.is_nonneg():
            return [Other("a sum weighted by y, or with weights of unknown sign")]
    if atom.axis is not None:
        return [Other("sums of nonlinear terms along an axis")]
    return _weighted_sum(inner, weights, bound, scale)


def _product(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    """weights @ (vector of nonlinear terms)."""
    left, right = atom.args
    weights, inner = (right, left) if left.variables() else (left, right)
    if atom.size != 1 or inner.ndim != 1 or weights.variables() or not weights.is_nonneg():
        return [Other("a product with a nonlinear expression")]
    return _weighted_sum(inner, weights, bound, scale)


def _weighted_sum(inner: Any, weights: Any, bound: Any, scale: Any) -> list[Piece]:
    if isinstance(inner, cp.abs) and inner.args[0].is_affine():
        return _norm(_times(weights, inner.args[0]), None, bound, scale, L1Ball(), L1Cone())
    if _is_square(inner):
        root = None if weights is None else cp.sqrt(weights)
        return _squared(_times(root, inner.args[0]), bound, scale)
    if isinstance(inner, Pnorm):
        return _grouped(inner, weights, bound, scale)
    return [Other("a sum of nonlinear terms")]


# --- squares -------------------------------------------------------------------------------------------------------


def _squared(argument: Any, bound: Any, scale: Any) -> list[Piece]:
    """scale * ||argument||^2 <= bound."""
    if not argument.is_affine():
        return [Other("the square of a nonlinear expression")]
    if not bound.variables():
        return [Membership(L2Ball(), argument, all_rows(argument), radius=bound, squared=True, scale=scale)]
    return [_stacked(Paraboloid(), [_times(None if scale is None else cp.sqrt(scale), argument)], [bound])]


def _is_square(atom: Any) -> bool:
    if not isinstance(atom, Power) or not atom.args[0].is_affine():
        return False
    exponent = atom.p.value if hasattr(atom.p, "value") else atom.p
    return exponent is not None and float(exponent) == 2


def _square(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    if _is_square(atom) and atom.size == 1:
        return _squared(atom.args[0], bound, scale)
    inner = atom.args[0]
    exponent = atom.p.value if hasattr(atom.p, "value") else atom.p
    if exponent == 2 and isinstance(inner, Pnorm) and float(inner.p) == 2 and inner.axis is None and atom.size == 1:
        return _squared(inner.args[0], bound, scale)
    return [Other("an elementwise power")]


def _sum_of_squares(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    argument, denominator = atom.args
    if (
        atom.size != 1
        or getattr(atom, "axis", None) is not None
        or not (argument.is_affine() and denominator.is_affine())
    ):
        return [Other("quad_over_lin of nonlinear expressions or along an axis")]
    if not denominator.variables():
        return _squared(argument, bound * denominator, scale)
    argument = _times(None if scale is None else cp.sqrt(scale), argument)
    if not bound.variables():
        return (
            [_stacked(Paraboloid(), [argument], [denominator * bound])]
            if bound.is_nonneg()
            else [Other("quad_over_lin")]
        )
    return [_stacked(RotatedCone(), [argument], [denominator, bound])]


def _quadratic_form(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    argument, matrix = atom.args
    if matrix.parameters() or matrix.variables():
        return [Other("a quadratic form whose matrix moves")]
    values, vectors = np.linalg.eigh(0.5 * (matrix.value + matrix.value.T))
    keep = values > 1e-14 * np.abs(values).max()
    return _squared((np.sqrt(values[keep])[:, None] * vectors[:, keep].T) @ argument, bound, scale)


# --- matrices ------------------------------------------------------------------------------------------------------


def _matrix_norm(family: type[NuclearBall] | type[SpectralBall], atom: Any, bound: Any, scale: Any) -> list[Piece]:
    argument = atom.args[0]
    if bound.variables():
        return [Other(f"{_name(atom)} below a bound that moves with y")]
    return _norm(argument, None, bound, scale, family(argument.shape), None)


def _semidefinite(argument: Any) -> Piece:
    order = int(argument.shape[0])
    coordinates = sp.csr_array(svec_map(order))
    return Membership(PsdCone(order), argument, np.arange(coordinates.shape[0])[None], coordinates=coordinates)


def _largest_eigenvalue(atom: Any, bound: Any, scale: Any) -> list[Piece]:
    """scale * lambda_max(X) <= bound, as bound * I - scale * X in the PSD cone."""
    argument = atom.args[0]
    if not argument.is_affine():
        return [Other("an eigenvalue of a nonlinear expression")]
    return [_semidefinite(bound * np.eye(argument.shape[0]) - _times(scale, argument))]


def _second_order(constraint: Any) -> Piece:
    t, u = constraint.args
    if t.size == 1:
        if not t.variables():
            return Membership(L2Ball(), u, all_rows(u), radius=t)
        return _stacked(SecondOrderCone(), [u], [t])
    if t.variables():
        return Other("several second-order cones at once")
    return Membership(L2Ball(), u, rows_along(u.shape, constraint.axis), radius=t)


_Rule = Callable[[Any, Any, Any], list[Piece]]

# scale * atom <= bound
_EPIGRAPHS: dict[type, _Rule] = {
    cp.abs: _absolute,
    cp.norm_inf: _largest_absolute,
    cp.norm1: _sum_of_absolutes,
    cp.max: partial(_largest, sign=1.0),
    cp.maximum: partial(_largest, sign=1.0),
    Pnorm: _euclidean,
    Power: _square,
    Sum: _sum,
    MulExpression: _product,
    cp.quad_over_lin: _sum_of_squares,
    cp.QuadForm: _quadratic_form,
    cp.normNuc: partial(_matrix_norm, NuclearBall),
    cp.sigma_max: partial(_matrix_norm, SpectralBall),
    cp.lambda_max: _largest_eigenvalue,
}

# -scale * atom <= bound
_HYPOGRAPHS: dict[type, _Rule] = {
    cp.min: partial(_largest, sign=-1.0),
    cp.minimum: partial(_largest, sign=-1.0),
}
