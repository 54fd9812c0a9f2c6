"""Curvature rules that several atoms share."""

from __future__ import annotations

from typing import Any

from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, multiply
from cvxpy.atoms.affine.unary_operators import NegExpression

from hierfl.atoms.algebra import inverse
from hierfl.atoms.row import CurvatureSearch


def factored(search: CurvatureSearch, node: Any) -> tuple[Any, Any] | None:
    """(c, w) where the part with kept variables is c * w and w's slopes are fixed."""
    if isinstance(node, AddExpression):
        held = [argument for argument in node.args if search.has_kept(argument)]
        return factored(search, held[0]) if len(held) == 1 and held[0].shape == node.shape else None
    if isinstance(node, NegExpression):
        return factored(search, node.args[0])
    if isinstance(node, (multiply, DivExpression)):
        left, right = node.args
        if isinstance(node, DivExpression) and not search.has_kept(right):
            return inverse(right), left
        if isinstance(node, multiply) and not (search.has_kept(left) and search.has_kept(right)):
            return (right, left) if search.has_kept(left) else (left, right)
    return None
