"""Convexity in the kept variables, by CVXPY's rules; a refusal names the smallest subexpression at fault."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.analysis.enclosure import NOTHING_KNOWN, Enclosure, Known, own_domain
from hierfl.analysis.hoist import hoist
from hierfl.analysis.variable_attributes import check_attributes
from hierfl.errors import DeclarationError, NotConvexError
from hierfl.language.levels import ArgMin
from hierfl.language.printing.text import expression_text


def require_convex_set(
    constraints: Sequence[Constraint], keep: Sequence[cp.Variable], what: str, known: Known = NOTHING_KNOWN
) -> None:
    """Check that the constraints describe a convex set of ``keep``; everything else fixed within its bounds ``known`` (by leaf id).

    Raises ``NotConvexError``, naming the smallest subexpression that breaks CVXPY's rules. Raises ``DeclarationError``
    for an integer, boolean or complex variable.
    """
    check_attributes(keep)
    for constraint, hoisted in zip(constraints, hoist(constraints, keep, known).expressions):
        if isinstance(constraint, cp.FiniteSet):  # CVXPY calls it DCP and solves it with integers
            raise NotConvexError(
                f"the constraint {expression_text(constraint)} in {what} is a finite set, which is not convex in {_names(keep)}: hierfl "
                f"treats continuous variables only. Bound the variable by an interval instead."
            )
        if hoisted.is_dcp():
            continue
        culprit = next((c for c in map(_smallest, hoisted.args) if c is not None), None)
        where = f": {expression_text(culprit)} has no curvature that CVXPY can prove" if culprit is not None else ""
        raise NotConvexError(
            f"the constraint {expression_text(constraint)} in {what} is not convex in {_names(keep)}{where}. Write convex <= concave, or "
            f"affine == affine."
        )


def require_domain(
    parts: Sequence[Expression | Constraint], keep: Sequence[cp.Variable], what: str, known: Known = NOTHING_KNOWN
) -> None:
    """Check that what is fixed stays in the domain of the atoms over ``keep``: ``quad_over_lin(y, x)`` needs x >= 0.

    Raises ``DeclarationError``, naming the atom and the constraint to declare.
    """
    kept, enclosure = {v.id for v in keep}, Enclosure(known)

    def visit(node: Expression | Constraint) -> None:
        if not any(v.id in kept for v in node.variables()):
            return
        for condition in own_domain(node):
            if not any(v.id in kept for v in condition.variables()) and not enclosure.holds(condition):
                raise DeclarationError(
                    f"{what} uses {expression_text(node)}, which is convex only where {expression_text(condition)}: that does not "
                    f"follow from the declared constraints and attributes. Declare it (Problem(constraints=...), nonneg=True)."
                )
        for argument in node.args:
            visit(argument)

    for part in parts:
        visit(part)


def require_curvature(level: ArgMin, expression: Expression, known: Known) -> None:
    """Check that the objective of a level, as given, is convex in its variables (concave, of ``ArgMax``).

    Raises errors as :func:`require_convex_set`.
    """
    keep, maximised = level.variables, level.kind == "argmax"
    check_attributes(keep)
    hoisted = hoist([expression], keep, known).expressions[0]
    if hoisted.is_concave() if maximised else hoisted.is_convex():
        return
    culprit = _smallest(hoisted)
    reason = (
        f"{expression_text(culprit)} has no curvature that CVXPY can prove"
        if culprit is not None
        else f"{expression_text(hoisted)} is {hoisted.curvature.lower()}"
    )
    advice = (
        "Rewrite it with CVXPY's atoms, declare signs (nonneg=True, or constraints such as x >= 0), or assert it with "
        "hf.Function(..., convex=True)."
    )
    if hoisted.is_convex() if maximised else hoisted.is_concave():
        advice = f"If it is to be {'minimised, write hf.ArgMin' if maximised else 'maximised, write hf.ArgMax'}."
    raise NotConvexError(
        f"the objective of {type(level).__name__} must be {'concave' if maximised else 'convex'} in {_names(keep)} for every x, but "
        f"{reason}. {advice}"
    )


def _smallest(expression: Expression) -> Expression | None:
    """The smallest subexpression that is neither convex nor concave; None where there is none."""
    if expression.is_dcp():
        return None
    below = (_smallest(argument) for argument in expression.args)
    return next((culprit for culprit in below if culprit is not None), expression)


def _names(variables: Sequence[cp.Variable]) -> str:
    return ", ".join(v.name() for v in variables)
