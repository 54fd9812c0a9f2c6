"""Terms that end where their domain does: 1/w has a value for w < 0 as well, where CVXPY's ``inv_pos(w)`` is infinite.

Newton's method is kept from what has no value. Logarithms and roots have none outside their domain; reciprocals, odd powers and quotients do,
those of another function.
"""

from __future__ import annotations

from typing import Any, ClassVar

import cvxpy as cp
import jax.numpy as jnp
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.matrix_frac import MatrixFrac
from cvxpy.constraints import PSD, Inequality
from cvxpy.expressions.expression import Expression

from hierfl.analysis.enclosure import Enclosure
from hierfl.analysis.hoist import copy_with
from hierfl.atoms.families.powers import exponent_of
from hierfl.atoms.row import AtomRow

BEYOND = (Power, PowerApprox, cp.quad_over_lin, cp.xexp, MatrixFrac)  # which have values outside their domain


def _lower(atom: Any, value: Any, *ends: Any) -> Any:
    inside = jnp.array(True)
    for end in ends:
        inside &= jnp.all(end >= 0)
    return jnp.where(inside, value, jnp.nan)


class Guarded(Atom):
    """An expression, without a value where one of some others is negative."""

    atom_row: ClassVar[AtomRow] = AtomRow(lower=_lower)

    def __init__(self, expression: Expression, *ends: Expression) -> None:
        super().__init__(expression, *ends)

    def shape_from_args(self) -> tuple[int, ...]:
        return tuple(self.args[0].shape)

    def sign_from_args(self) -> tuple[bool, bool]:
        return bool(self.args[0].is_nonneg()), bool(self.args[0].is_nonpos())

    def is_atom_convex(self) -> bool:
        return True

    def is_atom_concave(self) -> bool:
        return True

    def is_incr(self, idx: int) -> bool:
        return idx == 0

    def is_decr(self, idx: int) -> bool:
        return False

    def numeric(self, values: Any) -> Any:
        raise NotImplementedError("JAX evaluates it")

    def _grad(self, values: Any) -> Any:
        raise NotImplementedError("JAX differentiates it")


def guarded(expression: Any, variables: set[int], enclosure: Enclosure) -> Any:
    """The expression with what has values outside its domain kept inside, where it is not known to be; itself without any."""
    if not getattr(expression, "args", None) or not any(v.id in variables for v in expression.variables()):
        return expression
    parts = {id(argument): guarded(argument, variables, enclosure) for argument in expression.args}
    changed = any(parts[id(argument)] is not argument for argument in expression.args)
    inner = copy_with(expression, lambda part: parts.get(id(part), part)) if changed else expression
    ends = [end for end in _ends(expression) if any(v.id in variables for v in end.variables())]
    ends = [end for end in ends if not (enclosure(end).lo >= 0).all()]
    return Guarded(inner, *ends) if ends else inner


def _ends(atom: Any) -> list[Expression]:
    """What is nonnegative on an atom's domain, of those that have values elsewhere."""
    if not isinstance(atom, BEYOND) or (isinstance(atom, (Power, PowerApprox)) and _is_even(atom)):
        return []
    found: list[Expression] = []
    for constraint in atom._domain():
        if isinstance(constraint, Inequality):
            found.append(constraint.args[1] - constraint.args[0])
        elif isinstance(constraint, PSD):
            found.append(cp.lambda_min(constraint.args[0]))
    return found


def _is_even(atom: Any) -> bool:
    """Whether a power is of a size: a sixth power is one, which CVXPY takes of what is positive alone."""
    exponent = exponent_of(atom)
    return exponent is not None and exponent > 0 and exponent % 2 == 0
