"""Prices: multipliers of the lower level's constraints, as unknowns that the level decides beside its y.

``Dual(c)`` and ``ShadowPrice(c)`` stand for them in upper terms. When a problem is declared, every mention of a constraint's price (CVXPY's
own ``c.dual_variables[0]`` too) becomes one leaf of the lower level.
"""

from __future__ import annotations

from copy import copy

import cvxpy as cp
from cvxpy.constraints import Equality, Inequality
from cvxpy.constraints.constraint import Constraint

from hierfl.errors import DeclarationError
from hierfl.language.declared_arguments import called
from hierfl.language.levels import LowerLevel
from hierfl.language.printing.text import expression_text
from hierfl.near_names import suggests_names


class Price(cp.Variable):
    """The price of a constraint, of its shape."""

    @suggests_names
    def __init__(self, constraint: Constraint, name: str | None = None) -> None:
        kind = type(self).__name__
        if not isinstance(constraint, (Equality, Inequality)):
            raise DeclarationError(
                f"{kind}(...) takes an equation or an inequality that stands in the constraints of the lower level, lhs == rhs, lhs <= rhs or "
                f"lhs >= rhs; this is {called(constraint)}. Multipliers of cones are told by problem.implicit.multipliers(x)."
            )
        self.constraint, self.is_named = constraint, name is not None
        super().__init__(constraint.shape, name=name or f"{kind}({expression_text(constraint)})")


class Dual(Price):
    """The multiplier of a lower constraint, as CVXPY's ``constraint.dual_value``: at least 0 for inequalities, of lhs - rhs for equations.

    Parameters
    ----------
    constraint
        An equation or an inequality that stands in the ``constraints`` of the lower level, as the same object.
    name
        How results call it; by default the text of the constraint.

    Raises
    ------
    DeclarationError
        For what is no such constraint; when the problem is declared, for a constraint that is none of the lower level's.

    Examples
    --------
    >>> balance = cp.sum(y) == 1 + x[0]
    >>> paid = hf.Dual(balance, name="paid")
    >>> market = hf.Problem(hf.Minimize(clients=paid), hf.ArgMin(y, cp.sum_squares(y), [balance]))
    >>> round(market.implicit(np.zeros(2)), 6)
    -1.0
    """


class ShadowPrice(Price):
    """By how much the lower level's optimal value changes for each unit more of a constraint's right-hand side.

    That is the side without y; where both have y, the right one of ``lhs <= rhs``. The value is the one that is minimised, or maximised, as
    declared: the shadow price of a demand is what one unit more of it costs.

    Parameters
    ----------
    constraint, name
        As of :class:`Dual`.

    Raises
    ------
    DeclarationError
        As :class:`Dual`; also for an equilibrium, which has no optimal value.

    Examples
    --------
    >>> balance = cp.sum(y) == 1 + x[0]
    >>> price = hf.ShadowPrice(balance)
    >>> market = hf.Problem(hf.Minimize(clients=price), hf.ArgMin(y, cp.sum_squares(y), [balance]))
    >>> round(market.implicit(np.zeros(2)), 6)
    1.0
    """


def price_sign(price: cp.Variable, constraint: Constraint, level: LowerLevel) -> float:
    """What CVXPY's dual value is multiplied by. Raises ``DeclarationError`` for the shadow price of an equilibrium."""
    if not isinstance(price, ShadowPrice):
        return 1.0
    if level.kind == "equilibrium":
        raise DeclarationError(
            f"{price.name()}: an equilibrium ({type(level).__name__}) has no optimal value that would change. Write hf.Dual, its multiplier."
        )
    own = {variable.id for variable in level.decided}
    right_moves = any(v.id in own for v in constraint.args[1].variables())
    left_moves = any(v.id in own for v in constraint.args[0].variables())
    of_left = right_moves and not left_moves
    return (1.0 if of_left else -1.0) * (-1.0 if level.kind == "argmax" else 1.0)


def priced(
    level: LowerLevel, prices: tuple[cp.Variable, ...], same: tuple[tuple[cp.Variable, cp.Variable, float], ...] = ()
) -> LowerLevel:
    """The level with these prices among its variables, and no others; ``same`` are other names of theirs."""
    own, count = copy(level), len(level.decided)
    own.variables, own.prices, own.same_prices = (*level.decided, *prices), prices, same
    if level.kind == "equilibrium":
        own.expressions = (*level.expressions[:count], *(cp.Constant(0.0) * price for price in prices))
    return own
