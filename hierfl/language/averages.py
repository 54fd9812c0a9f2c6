"""Where ``E`` and ``total`` stand in an expression or a constraint, and that they enter it affinely.

Were a mean put through a function that is not affine, minibatches would bias the term.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import cvxpy as cp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.atoms.table import row_of
from hierfl.errors import DataError, DeclarationError
from hierfl.language.expectation import SampleAverage, total
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample

Part: TypeAlias = Expression | Constraint  # of a declaration


def averages_of(part: Part) -> Iterable[SampleAverage]:
    """All ``E`` and ``total`` nodes of an expression or a constraint, in order of appearance."""
    if isinstance(part, SampleAverage):
        yield part
    for argument in getattr(part, "args", ()):
        yield from averages_of(argument)


def bare_samples(part: Part) -> list[Sample]:
    """The samples that occur outside every ``E`` and ``total``, in order of appearance."""
    if isinstance(part, SampleAverage):
        return []
    if isinstance(part, Sample):
        return [part]
    return [sample for argument in getattr(part, "args", ()) for sample in bare_samples(argument)]


def variables_outside_averages(part: Part) -> list[cp.Variable]:
    """The variables that occur outside every ``E`` and ``total``, as often as they occur."""
    if isinstance(part, SampleAverage):
        return []
    if isinstance(part, cp.Variable):
        return [part]
    return [v for argument in getattr(part, "args", ()) for v in variables_outside_averages(argument)]


def require_affine_in_averages(expression: Expression, what: str) -> None:
    """Check that the expression is affine in its ``E`` and ``total`` nodes.

    Raises ``DeclarationError``, naming the smallest subexpression that is not.
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
    if holders and not is_affine_in(expression, holders):
        raise DeclarationError(
            f"{expression_text(expression)} in {what} is not affine in its mean {expression_text(next(iter(averages_of(expression))))}: a minibatch "
            f"would bias it. Means and totals may only be added, scaled, or put through affine atoms."
        )


def refuse_total_of_distribution(parts: Iterable[Part], distributions: set[int]) -> None:
    """Refuse ``total`` over a sample that is held as a distribution, which has no number of samples.

    Raises ``DataError``, naming the expression.
    """
    for part in parts:
        for average in averages_of(part):
            if isinstance(average, total) and any(p.id in distributions for p in average.parameters()):
                raise DataError(
                    f"{expression_text(average)} sums over a distribution, which has no number of samples: write hf.E(...) instead."
                )


def is_affine_in(expression: Expression, holders: list[Expression]) -> bool:
    """Whether an atom is affine in some of its arguments, the ``holders``."""
    if isinstance(expression, DivExpression):
        return holders[0] is expression.args[0] and len(holders) == 1
    if row_of(expression).product:
        return len(holders) == 1 < len(expression.args)
    return isinstance(expression, AffAtom)
