"""Sums and products of expressions with the idle parts left out (no zeros, no ones, numbers multiplied together), and a rule of curvature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.constraints import Equality, Inequality, NonNeg, NonPos, Zero
from cvxpy.expressions.expression import Expression

from hierfl.atoms.row import CurvatureSearch, own_row


def depends(expression: Any, wanted: set[int]) -> bool:
    """Whether one of the variables with these ids occurs in the expression."""
    return any(v.id in wanted for v in expression.variables())


def nodes_of(expression: Any) -> Iterator[Any]:
    """The expression, or constraint, and all below it, from the top."""
    yield expression
    for argument in getattr(expression, "args", ()):
        yield from nodes_of(argument)


def only_compiled(expression: Any) -> bool:
    """Whether an atom that CVXPY cannot evaluate is in the expression."""
    rows = (own_row(type(node)) for node in nodes_of(expression))
    return any(row is not None and row.only_compiled for row in rows)


def constant_value(expression: Any) -> np.ndarray | None:
    """The dense number(s) that the expression is; None for what has leaves, and for a sparse constant."""
    if expression.variables() or expression.parameters() or only_compiled(expression):
        return None
    value = expression.value
    return None if sp.issparse(value) else np.broadcast_to(np.asarray(value, dtype=float), expression.shape)


def vanishes(expression: Any) -> bool:
    """Whether it is the constant zero."""
    value = constant_value(expression)
    return value is not None and not value.any()


def zeros(expression: Any) -> Expression:
    """Zeros of the expression's shape."""
    return cp.Constant(np.zeros(expression.shape))


def minus(expression: Any) -> Expression:
    """The negation, without double signs."""
    value = constant_value(expression)
    if value is not None:
        return cp.Constant(-value)
    return expression.args[0] if isinstance(expression, NegExpression) else -expression


def plus(*terms: Expression, zero: Expression) -> Expression:
    """The sum of expressions of one shape; ``zero`` if all of them vanish."""
    kept = [term for term in terms if not vanishes(term)]
    numbers = [value for value in map(constant_value, kept) if value is not None]
    rest = [term for term in kept if constant_value(term) is None]
    constant = sum(numbers)
    if np.any(constant):
        rest = [*rest, cp.Constant(constant)]
    return sum(rest[1:], start=rest[0]) if rest else zero


def times(left: Any, right: Any) -> Expression:
    """The elementwise product of two expressions that broadcast."""
    left, right = (e if isinstance(e, Expression) else cp.Constant(e) for e in (left, right))
    a, b = constant_value(left), constant_value(right)
    if a is not None and b is not None:
        return cp.Constant(a * b)
    if b is not None:
        return times(right, left)
    if a is not None:
        return _scaled(a, right)
    for first, second in ((left, right), (right, left)):
        if isinstance(first, NegExpression):
            return minus(times(first.args[0], second))
    number, bare = _coefficient(left)
    other, rest = _coefficient(right)
    if number is None and other is None:
        return cp.multiply(left, right)
    return _scaled(_or_one(number) * _or_one(other), cp.multiply(bare, rest))


def inverse(expression: Expression) -> Expression:
    """One over the expression."""
    value = constant_value(expression)
    return 1 / expression if value is None else cp.Constant(1 / value)


def product(left: Any, right: Any) -> Expression:
    """The matrix product; a zero factor makes a zero."""
    whole = left @ right
    return cp.Constant(np.zeros(whole.shape)) if vanishes(left) or vanishes(right) else whole


def expanded(expression: Expression, axis: Any, shape: tuple[int, ...]) -> Expression:
    """What was summed over ``axis`` (None: all, or an empty tuple: nothing was left) spread over ``shape`` again."""
    value = constant_value(expression)
    whole = expression.ndim == 0 or (expression.size == 1 and axis in (None, ()))
    places = () if whole else _kept_shape(axis, shape)
    if value is not None:
        return cp.Constant(np.broadcast_to(value.reshape(places), shape))
    if expression.shape != places:
        expression = cp.reshape(expression, places, order="C")
    return expression if expression.shape == shape else cp.broadcast_to(expression, shape)


def _kept_shape(axis: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    gone = {int(k) % len(shape) for k in (axis if isinstance(axis, (tuple, list)) else (axis,))}
    return tuple(1 if k in gone else n for k, n in enumerate(shape))


def _scaled(value: np.ndarray, expression: Expression) -> Expression:
    shape = np.broadcast_shapes(value.shape, expression.shape)
    if shape == expression.shape and value.size and (value == value.flat[0]).all():
        value = np.asarray(value.flat[0])
    if not value.any():
        return cp.Constant(np.zeros(shape))
    if isinstance(expression, NegExpression):
        return _scaled(-value, expression.args[0])
    number, bare = _coefficient(expression)
    if number is not None and np.broadcast_shapes(np.shape(value * number), bare.shape) == shape:
        return _scaled(value * number, bare)
    if value.ndim == 0 and value == 1:
        return expression
    if value.ndim == 0 and value == -1:
        return -expression
    return cp.multiply(value, expression)


def _coefficient(expression: Any) -> tuple[np.ndarray | None, Any]:
    """(c, e) for c * e with constant c, else (None, expression)."""
    if isinstance(expression, multiply):
        for place in (0, 1):
            value = constant_value(expression.args[place])
            if value is not None:
                other = expression.args[1 - place]
                return value, other
    return None, expression


def _or_one(value: np.ndarray | None) -> np.ndarray:
    return np.ones(()) if value is None else value


SPARSE, FILLED = 250_000, 0.05  # entries of a constant matrix, and the share of them that is not zero, up to which it stays sparse


def sparse_factor(expression: Any) -> tuple[int, sp.csr_array] | None:
    """(which argument of a matrix product is a large sparse constant, its matrix); None for other expressions."""
    if not isinstance(expression, MulExpression) or isinstance(expression, multiply):
        return None
    for place, argument in enumerate(expression.args):
        large = isinstance(argument, cp.Constant) and argument.size >= SPARSE and argument.ndim == 2
        if large and sp.issparse(argument.value) and expression.args[1 - place].ndim:
            matrix = sp.csr_array(argument.value, dtype=float)
            return (place, matrix) if matrix.nnz <= FILLED * argument.size else None
    return None


def addends(expression: Expression) -> list[Expression]:
    """Top-level terms of a sum, signs included."""
    if isinstance(expression, AddExpression):
        return [term for argument in expression.args for term in addends(argument)]
    if isinstance(expression, NegExpression):
        return [-term for term in addends(expression.args[0])]
    return [expression]


def sides_of(constraint: Any) -> tuple[Expression, Expression, bool] | None:
    """(left, right, whether they are to be equal) of a constraint left <= right, entry by entry; None of a cone."""
    if isinstance(constraint, Inequality | Equality):
        left, right = constraint.args
        return left, right, isinstance(constraint, Equality)
    zero = cp.Constant(0.0)
    if isinstance(constraint, NonNeg):
        return -constraint.args[0], zero, False
    return (constraint.args[0], zero, isinstance(constraint, Zero)) if isinstance(constraint, NonPos | Zero) else None


def factored(search: CurvatureSearch, node: Any) -> tuple[Any, Any] | None:
    """(c, w) where the part with kept variables is c * w, affine in these where anything is added to it."""
    if isinstance(node, AddExpression):
        held = [argument for argument in node.args if search.has_kept(argument)]
        alone = len(held) == 1 and held[0].shape == node.shape and search.is_affine(held[0])
        return factored(search, held[0]) if alone else None
    if isinstance(node, NegExpression):
        return factored(search, node.args[0])
    if isinstance(node, (multiply, DivExpression)):
        left, right = node.args
        if isinstance(node, DivExpression) and not search.has_kept(right):
            return inverse(right), left
        if isinstance(node, multiply) and not (search.has_kept(left) and search.has_kept(right)):
            return (right, left) if search.has_kept(left) else (left, right)
    return None
