"""The attributes of CVXPY variables: those that hierfl refuses, and the others as constraints."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np
import numpy.typing as npt
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.errors import DeclarationError

_REFUSED = ("boolean", "integer", "complex", "imag", "hermitian", "sparsity")


def check_attributes(variables: Sequence[cp.Variable]) -> None:
    """Refuse variables that are not real and continuous.

    Raises ``DeclarationError``, naming the variable and the attribute.
    """
    for variable in variables:
        for attribute in _REFUSED:
            value = variable.attributes.get(attribute)
            if value is not None and value is not False:
                raise DeclarationError(
                    f"variable {variable.name()!r} is declared {attribute}; hierfl treats real, continuous, dense variables."
                )


def attribute_constraints(variables: Sequence[cp.Variable]) -> list[Constraint]:
    """The variables' attributes (nonneg, bounds, PSD, ...) as explicit constraints."""
    constraints: list[Constraint] = []
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


def _everywhere(bound: Expression | npt.ArrayLike) -> bool:
    """Whether a bound holds for every entry: an expression, or finite numbers."""
    return isinstance(bound, Expression) or bool(np.all(np.isfinite(bound)))


def _partial(variable: cp.Variable, bound: npt.ArrayLike, sign: float) -> list[Constraint]:
    """The bounds that are finite: upper ones for ``sign`` -1."""
    limits = np.broadcast_to(np.asarray(bound, dtype=float), variable.shape)
    rows = np.isfinite(limits)
    return [sign * variable[rows] >= sign * limits[rows]] if rows.any() else []
