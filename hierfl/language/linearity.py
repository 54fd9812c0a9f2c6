"""``E`` and ``total`` must enter a term affinely, or a minibatch would bias it."""

from __future__ import annotations

from typing import Any

from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.expressions.expression import Expression

from hierfl.atoms.table import row_of
from hierfl.errors import DeclarationError
from hierfl.language.expectation import SampleAverage
from hierfl.language.levels import averages_of
from hierfl.language.printing.text import expression_text


def require_affine_in_averages(expression: Expression, what: str) -> None:
    """Check that the expression is affine in its ``E`` and ``total`` nodes.

    Raises
    ------
    DeclarationError
        Naming the smallest subexpression that is not.
    """
    if isinstance(expression, SampleAverage):
        for inner in averages_of(expression.per_sample):
            raise DeclarationError(
                f"{expression_text(inner)} is nested in {expression_text(expression)}: a mean of a mean is not supported."
            )
        return
    holders = [argument for argument in expression.args if any(averages_of(argument))]
    for argument in holders:
        require_affine_in_averages(argument, what)
    if holders and not _is_affine_in(expression, holders):
        raise DeclarationError(
            f"{expression_text(expression)} in {what} is not affine in its mean {expression_text(next(iter(averages_of(expression))))}: a minibatch "
            f"would bias it. Means and totals may only be added, scaled, or put through affine atoms."
        )


def _is_affine_in(expression: Any, holders: list[Any]) -> bool:
    if isinstance(expression, DivExpression):
        return holders[0] is expression.args[0] and len(holders) == 1
    if row_of(expression).product:
        return len(holders) == 1 < len(expression.args)
    return isinstance(expression, AffAtom)
