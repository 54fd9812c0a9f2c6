"""What users give as variables, constraints and objectives, checked and made tuples and expressions of CVXPY, and the leaves of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import cvxpy as cp
import numpy as np
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf
from cvxpy.lin_ops import lin_utils

from hierfl.errors import DeclarationError
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample


def called(given: Any) -> str:
    """What stands where something else was expected: mathematics by its text, whatever CVXPY made of it; the kind of what has no short text."""
    if isinstance(given, cp.Variable):
        return f"the variable {given.name()!r}"
    if isinstance(given, Expression):
        return f"the expression {expression_text(given)}"
    if isinstance(given, Constraint):
        return f"the {type(given).__name__} constraint {expression_text(given)}"
    if isinstance(given, cp.problems.objective.Objective):
        return f"cp.{type(given).__name__}({expression_text(given.args[0])})"
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if isinstance(given, (str, int, float, np.bool_)):
        return f"{given!r} ({type(given).__name__})"
    return "a list" if isinstance(given, (list, tuple)) else type(given).__name__


def variable_tuple(y: Any, owner: str) -> tuple[cp.Variable, ...]:
    """The variables as a tuple. Raises ``DeclarationError``, naming what is none, or one that is named twice."""
    items: Sequence[Any] = tuple(y) if isinstance(y, (list, tuple)) else (y,)
    for item in items:
        if not isinstance(item, cp.Variable):
            raise DeclarationError(f"{owner} takes first what is decided, a cp.Variable or a list of them, not {called(item)}.")
    if not items:
        raise DeclarationError(f"{owner} needs at least one variable.")
    if len({v.id for v in items}) < len(items):
        raise DeclarationError(f"{owner} names the same variable twice: {', '.join(v.name() for v in items)}.")
    return tuple(items)


def constraint_tuple(constraints: Any, owner: str) -> tuple[Constraint, ...]:
    """The constraints as a tuple. Raises ``DeclarationError``, naming the entry that is none of CVXPY's."""
    if isinstance(constraints, Constraint):
        constraints = (constraints,)
    if not isinstance(constraints, Iterable):
        hint = " A federation is given by name, federation=...." if type(constraints).__name__ == "Federation" else ""
        raise DeclarationError(f"constraints of {owner} are a list of CVXPY constraints, not {type(constraints).__name__}.{hint}")
    items = tuple(constraints)
    for place, item in enumerate(items):
        if not isinstance(item, Constraint):
            hint = " Join lists with +: one + other." if isinstance(item, (list, tuple)) else ""
            raise DeclarationError(f"constraints[{place}] of {owner} is {called(item)}, not a CVXPY constraint such as y >= 0.{hint}")
    return items


def scalar_expression(expression: Any, what: str) -> Expression:
    """An objective as a real scalar expression. Raises ``DeclarationError``, naming ``what`` and the shape."""
    if isinstance(expression, (cp.Minimize, cp.Maximize)):
        raise DeclarationError(f"{what} is a cvxpy {type(expression).__name__}; give the expression inside it.")
    expression = as_expression(expression, what)
    if expression.size != 1:
        raise DeclarationError(
            f"{what} must be a scalar, but {expression_text(expression)} has shape {expression.shape}; write cp.sum(...) of it?"
        )
    if expression.is_complex():
        raise DeclarationError(f"{what} is complex; hierfl treats real problems only.")
    return expression


def as_expression(given: Any, what: str) -> Expression:
    """A CVXPY expression, or a number or an array as one. Raises ``DeclarationError``, naming ``what``, for others."""
    if isinstance(given, Expression):
        return given
    try:
        return cp.Constant(given)
    except (TypeError, ValueError) as error:
        own = f"the text {given!r}" if isinstance(given, str) else type(given).__name__
        raise DeclarationError(f"{what} must be a CVXPY expression, not {own}.") from error


AnyLeaf = TypeVar("AnyLeaf", bound=Leaf)


def unique_leaves(leaves: Iterable[AnyLeaf]) -> tuple[AnyLeaf, ...]:
    """The leaves without repetitions; CVXPY tells them apart by their ids."""
    return tuple({leaf.id: leaf for leaf in leaves}.values())


def samples_among(leaves: Iterable[Leaf]) -> tuple[Sample, ...]:
    """The samples among the leaves, each once."""
    return unique_leaves(leaf for leaf in leaves if isinstance(leaf, Sample))


def reserve_ids(leaves: Iterable[Leaf]) -> None:
    """Have CVXPY give no new leaf the id of one of these, which come from another process."""
    counter = lin_utils.ID_COUNTER
    counter.count = max([counter.count, *(leaf.id + 1 for leaf in leaves)])
