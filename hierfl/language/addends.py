"""The terms of a sum."""

from __future__ import annotations

from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.expressions.expression import Expression


def addends(expression: Expression) -> list[Expression]:
    """Top-level terms of a sum, signs included."""
    if isinstance(expression, AddExpression):
        return [term for argument in expression.args for term in addends(argument)]
    if isinstance(expression, NegExpression):
        return [-term for term in addends(expression.args[0])]
    return [expression]
