"""Convexity in the kept variables, by CVXPY's rules; a refusal names the smallest subexpression at fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.expressions.expression import Expression

from hierfl.analysis.enclosure import NOTHING_KNOWN, Enclosure, Known, own_domain
from hierfl.analysis.hoist import hoist
from hierfl.errors import DeclarationError, NotConvexError
from hierfl.language.printing.text import expression_text

_REFUSED = ("boolean", "integer", "complex", "imag", "hermitian", "sparsity")


def require_convex(expression: Any, keep: Sequence[cp.Variable], what: str, known: Known = NOTHING_KNOWN) -> None:
    """Check convexity in ``keep``, everything else fixed within its bounds ``known`` (by leaf id).

    Raises
    ------
    NotConvexError
        Naming the smallest subexpression that breaks CVXPY's rules.
    DeclarationError
        For an integer, boolean or complex variable.
    """
    _require(expression, keep, what, "convex", known)


def require_concave(expression: Any, keep: Sequence[cp.Variable], what: str, known: Known = NOTHING_KNOWN) -> None:
    """Check concavity in ``keep``; errors as for :func:`require_convex`."""
    _require(expression, keep, what, "concave", known)


def require_convex_set(
    constraints: Sequence[Any], keep: Sequence[cp.Variable], what: str, known: Known = NOTHING_KNOWN
) -> None:
    """Check that the constraints describe a convex set of ``keep``; errors as for :func:`require_convex`."""
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


def require_domain(parts: Sequence[Any], keep: Sequence[cp.Variable], what: str, known: Known = NOTHING_KNOWN) -> None:
    """Check that what is fixed stays in the domain of the atoms over ``keep``: ``quad_over_lin(y, x)`` needs x >= 0.

    Raises
    ------
    DeclarationError
        Naming the atom and the constraint to declare.
    """
    kept, enclosure = {v.id for v in keep}, Enclosure(known)

    def visit(node: Any) -> None:
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


def check_attributes(variables: Sequence[cp.Variable]) -> None:
    """Refuse variables that are not real and continuous.

    Raises
    ------
    DeclarationError
        Naming the variable and the attribute.
    """
    for variable in variables:
        for attribute in _REFUSED:
            value = variable.attributes.get(attribute)
            if value is not None and value is not False:
                raise DeclarationError(
                    f"variable {variable.name()!r} is declared {attribute}; hierfl treats real, continuous, dense variables."
                )


def attribute_constraints(variables: Sequence[cp.Variable]) -> list[Any]:
    """The variables' attributes (nonneg, bounds, PSD, ...) as explicit constraints."""
    constraints: list[Any] = []
    for variable in variables:
        on = {name for name, value in variable.attributes.items() if value is not None and value is not False}
        if on & {"nonneg", "pos"}:
            constraints.append(variable >= 0)
        if on & {"nonpos", "neg"}:
            constraints.append(variable <= 0)
        if "PSD" in on:
            constraints.append(variable >> 0)
        if "NSD" in on:
            constraints.append(variable << 0)
        if on & {"symmetric", "PSD", "NSD"} and variable.ndim == 2:
            constraints.append(variable == variable.T)
        if "diag" in on:
            constraints.append(cp.multiply(1 - np.eye(variable.shape[0]), variable) == 0)
        if "bounds" in on:
            low, high = variable.attributes["bounds"]
            constraints += [variable >= low] if _everywhere(low) else _partial(variable, low, 1.0)
            constraints += [variable <= high] if _everywhere(high) else _partial(variable, high, -1.0)
    return constraints


def _everywhere(bound: Any) -> bool:
    """Whether a bound holds for every entry: an expression, or finite numbers."""
    return isinstance(bound, Expression) or bool(np.all(np.isfinite(bound)))


def _partial(variable: cp.Variable, bound: Any, sign: float) -> list[Any]:
    limits = np.broadcast_to(np.asarray(bound, dtype=float), variable.shape)
    rows = np.isfinite(limits)
    return [sign * variable[rows] >= sign * limits[rows]] if rows.any() else []


def _require(expression: Any, keep: Sequence[cp.Variable], what: str, curvature: str, known: Known) -> None:
    check_attributes(keep)
    hoisted = hoist([expression], keep, known).expressions[0]
    if hoisted.is_convex() if curvature == "convex" else hoisted.is_concave():
        return
    culprit = _smallest(hoisted)
    found = (
        f"{expression_text(culprit)} has no curvature that CVXPY can prove"
        if culprit is not None
        else f"{expression_text(hoisted)} is {hoisted.curvature.lower()}"
    )
    raise NotConvexError(
        f"{what} must be {curvature} in {_names(keep)} for every x, but {found}. Rewrite it with CVXPY's atoms, declare signs "
        f"(nonneg=True, or constraints such as x >= 0), or assert it with hf.Function(..., convex=True)."
    )


def _smallest(expression: Any) -> Any:
    """The smallest subexpression that is neither convex nor concave."""
    if expression.is_dcp():
        return None
    for argument in expression.args:
        found = _smallest(argument)
        if found is not None:
            return found
    return expression


def _names(variables: Sequence[cp.Variable]) -> str:
    return ", ".join(v.name() for v in variables)
