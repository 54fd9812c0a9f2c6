"""What can be wrong with a declaration as a whole, found before any data are read."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, multiply
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.constraints import Equality, Inequality
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf
from scipy.sparse import issparse

from hierfl.errors import DeclarationError
from hierfl.language.averages import (
    Part,
    averages_of,
    bare_samples,
    require_affine_in_averages,
    variables_outside_averages,
)
from hierfl.language.declared_arguments import samples_among
from hierfl.language.levels import LowerLevel
from hierfl.language.objective import Objective
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter

BROADCASTING = (AddExpression, multiply, DivExpression, Elementwise, Inequality, Equality)


def check_declaration(
    objective: Objective, lower: LowerLevel | None, constraints: Sequence[Constraint], upper: Sequence[cp.Variable]
) -> None:
    """Check the parts of a declaration together; ``upper`` are its variables that no lower level names.

    Raises ``DeclarationError`` for every misuse listed in ``tests/test_declaration_errors.py``: wrong scope, samples
    outside ``E``, no upper variable, lower variables where only x may stand, dual variables, duplicate names.
    """
    _check_prices(objective, lower, constraints)
    below = [*lower.expressions, *lower.constraints] if lower else []
    parts = [*objective.terms, *constraints, *below]
    for part in parts:
        _check_constants(part)
        _check_shapes(part, part, set())
    _check_upper_variables(upper, lower)
    _check_upper_constraints(constraints, lower)
    for term, what in ((objective.server, "server"), (objective.clients, "clients")):
        if term is not None:
            _check_term(term, what, lower)
    if lower:
        _check_lower_constraints(lower)
        for expression in lower.expressions:
            _check_averages(expression, set())
            require_affine_in_averages(expression, f"the {type(lower).__name__}")
    _check_names([*upper, *(lower.variables if lower else ()), *(p for part in parts for p in part.parameters())])


def _check_prices(objective: Objective, lower: LowerLevel | None, constraints: Sequence[Constraint]) -> None:
    """Check that no dual variable of a constraint stands in the declaration: to CVXPY it is a variable like any, and would be decided."""
    below = [*lower.variables, *lower.declared, *lower.constraints] if lower else []
    owners = {
        dual.id: owner
        for owner in (*constraints, *(lower.constraints if lower else ()))
        for dual in owner.dual_variables
    }
    for part in (*objective.terms, *constraints, *below):
        for variable in part.variables():
            if variable.id in owners:
                owner = expression_text(owners[variable.id])
                raise DeclarationError(
                    f"{expression_text(part)} mentions the dual variable of the constraint {owner}: prices, the multipliers of constraints, "
                    f"are not supported in a declaration yet, and as a variable it would be one more decision. Once a problem is "
                    f"declared, problem.implicit.multipliers(x) gives them."
                )


def _check_constants(part: Part) -> None:
    """Check that no constant is nan, and that infinite ones stand in constraints only, where they are no bound at all."""
    values = [
        np.asarray(constant.value.todense() if issparse(constant.value) else constant.value)
        for constant in part.constants()
    ]
    if any(np.isnan(value).any() for value in values):
        raise DeclarationError(f"{expression_text(part)} has a constant that is nan.")
    if not any(np.isinf(value).any() for value in values):
        return
    if not isinstance(part, (Inequality, Equality)):
        raise DeclarationError(f"{expression_text(part)} has an infinite constant: that is no number to compute with.")
    least, most = (arg.value if arg.is_constant() and not arg.parameters() else None for arg in part.args)
    never = (least is not None and np.isposinf(least).any()) or (most is not None and np.isneginf(most).any())
    if never or isinstance(part, Equality):
        raise DeclarationError(f"no point satisfies {expression_text(part)}.")


def _check_shapes(part: Part, whole: Part, seen: set[int]) -> None:
    """Check that no column (n, 1) meets a vector (n,): broadcasting makes a matrix (n, n) of them, which nobody meant."""
    if id(part) in seen:
        return
    seen.add(id(part))
    arguments = list(getattr(part, "args", ()))
    if isinstance(part, BROADCASTING):
        operands = [a.args[0] if isinstance(a, broadcast_to) else a for a in arguments]
        vector = next((a for a in operands if len(a.shape) == 1 and a.size > 1), None)
        column = next((a for a in operands if vector is not None and a.shape == (vector.size, 1)), None)
        if vector is not None and column is not None:
            n = vector.size
            column_text, vector_text = expression_text(column), expression_text(vector)
            raise DeclarationError(
                f"{column_text} of shape ({n}, 1) and {vector_text} of shape ({n},) meet in {expression_text(whole)}, which broadcasting "
                f"makes ({n}, {n}), every entry with every other. Write cp.vec({column_text}, order='F') for entry by entry, or "
                f"cp.reshape({vector_text}, (1, {n}), order='F') if all pairs are meant."
            )
    for argument in arguments:
        _check_shapes(argument, whole, seen)


def _check_upper_variables(upper: Sequence[cp.Variable], lower: LowerLevel | None) -> None:
    """Check that there is something to decide at the top."""
    if not upper:
        names = ", ".join(v.name() for v in (lower.variables if lower else ()))
        raise DeclarationError(
            "the problem has no upper variable: "
            + (
                f"{names} is declared by the lower level, and no other variable appears."
                if names
                else "no cp.Variable appears."
            )
        )


def _check_upper_constraints(constraints: Sequence[Constraint], lower: LowerLevel | None) -> None:
    """Check that X is a set of upper variables alone, which depends on no private data."""
    lower_ids = {v.id for v in lower.variables} if lower else set()
    for constraint in constraints:
        if not constraint.variables():
            raise DeclarationError(f"the constraint {expression_text(constraint)} on x mentions no variable.")
        for variable in constraint.variables():
            if variable.id in lower_ids:
                raise DeclarationError(
                    f"lower variable {variable.name()!r} appears in the upper constraint {expression_text(constraint)}: the same variable "
                    f"cannot be decided at both levels. If it restricts the answers, write it in the lower level's constraints, where it is part of "
                    f"Y(x). If x is to be such that the answers satisfy it, put what violates it into the objective, such as clients=... + "
                    f"penalty * cp.sum(cp.pos(left - right)): X is what x may be, whatever the answers are."
                )
        for average in averages_of(constraint):
            raise DeclarationError(
                f"{expression_text(average)} in the constraint {expression_text(constraint)} on x: X cannot depend on private data."
            )
        for sample in bare_samples(constraint):
            raise DeclarationError(
                f"sample {sample.name()!r} in the constraint {expression_text(constraint)} on x: X cannot depend on private data. "
                f"A private constant of a client is a hf.ClientParameter."
            )


def _check_term(term: Expression, what: str, lower: LowerLevel | None) -> None:
    """Check the samples, the averages and the lower variables of an upper term; ``what`` is "server" or "clients"."""
    for sample in bare_samples(term):
        raise DeclarationError(
            f"sample {sample.name()!r} is used outside E or total in the {what} term {expression_text(term)}: write hf.E(...) around the "
            f"per-sample expression."
        )
    require_affine_in_averages(term, f"the {what} term")
    answers = {v.id for v in lower.variables} if lower is not None and lower.scope == "sample" else set()
    _check_averages(term, answers)
    if what == "server":
        _check_known_to_server(term, lower)
    outside = [v for v in variables_outside_averages(term) if v.id in answers]
    if outside:
        raise DeclarationError(
            f"lower variable {outside[0].name()!r} answers each sample, so it must stand under hf.E in the {what} term "
            f"{expression_text(term)}."
        )


def _check_known_to_server(term: Expression, lower: LowerLevel | None) -> None:
    """Check that the server's term mentions neither a client's parameter nor a y that has copies."""
    for parameter in term.parameters():
        if isinstance(parameter, ClientParameter):
            raise DeclarationError(
                f"client parameter {parameter.name()!r} in the server term {expression_text(term)}: the server does not know it."
            )
    if lower is None or lower.scope == "federation":
        return
    lower_by_id = {v.id: v for v in lower.variables}
    mentioned = [lower_by_id[v.id] for v in term.variables() if v.id in lower_by_id]
    if mentioned:
        raise DeclarationError(
            f"lower variable {mentioned[0].name()!r} has {lower.scope} scope and appears in the server term {expression_text(term)}: "
            f"there is one copy for each {lower.scope}. Put the term into clients=..."
        )


def _check_lower_constraints(lower: LowerLevel) -> None:
    """Check that every constraint of the level constrains y."""
    own = {v.id for v in lower.variables}
    for constraint in lower.constraints:
        if not any(v.id in own for v in constraint.variables()):
            raise DeclarationError(
                f"the constraint {expression_text(constraint)} of {type(lower).__name__} does not mention the lower variables: a "
                f"condition on x alone belongs to Problem(constraints=...)."
            )


def _check_averages(part: Part, answers: set[int]) -> None:
    """Check that every average is one over something: a sample, or an answer (by id) to each sample."""
    for average in averages_of(part):
        if not samples_among(average.parameters()) and not any(v.id in answers for v in average.variables()):
            raise DeclarationError(
                f"{expression_text(average)} contains no Sample: there is nothing to average over. Write the expression itself, "
                f"or declare its data with hf.Sample."
            )


def _check_names(leaves: Sequence[Leaf]) -> None:
    """Check that names are unique."""
    seen: dict[str, Leaf] = {}
    for leaf in leaves:
        other = seen.setdefault(leaf.name(), leaf)
        if other.id != leaf.id:
            raise DeclarationError(
                f"two different leaves are named {leaf.name()!r} ({type(other).__name__} and {type(leaf).__name__}): names "
                f"are unique in a problem, since results are stored by name."
            )
