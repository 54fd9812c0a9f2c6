"""Terms with averages over rows, as expressions of one row."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.atoms.affine.unary_operators import NegExpression

from hierfl.atoms.algebra import addends
from hierfl.atoms.table import row_of
from hierfl.compiler.data.tables import Population
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.language.averages import averages_of
from hierfl.language.expectation import SampleAverage, total
from hierfl.language.sample import Sample


def per_sample(term: Any) -> tuple[type[SampleAverage], Any]:
    """(the kind of average, the expression that is averaged) of a term that is affine in means, or linear in one total.

    Raises
    ------
    NoStandardFormError
        Where a term has a total beside something that is not added up.
    """
    kinds: set[type[SampleAverage]] = set()

    def replaced(node: Any) -> Any:
        if isinstance(node, SampleAverage):
            kinds.add(type(node))
            return node.per_sample
        if not getattr(node, "args", None):
            return node
        args = [replaced(argument) for argument in node.args]
        return node if all(a is b for a, b in zip(args, node.args)) else node.copy(args)

    expression = replaced(term)
    if len(kinds) > 1 or (total in kinds and not _is_scaled(term)):
        raise NoStandardFormError("a total within a sum of something that is not smooth in y")
    return kinds.pop(), expression


def _is_scaled(term: Any) -> bool:
    """Whether a term is an average, scaled or not."""
    if isinstance(term, SampleAverage):
        return True
    scales = isinstance(term, (NegExpression, DivExpression, cp.Sum)) or row_of(term).product
    holders = [argument for argument in term.args if any(True for _ in averages_of(argument))]
    return scales and len(holders) == 1 and _is_scaled(holders[0])


def distributed(expression: Any) -> list[Any]:
    """The addends of an expression, those under a scalar factor too."""
    parts = addends(expression)
    if len(parts) > 1:
        return [each for part in parts for each in distributed(part)]
    (term,) = parts
    if not isinstance(term, (NegExpression, DivExpression)) and not row_of(term).product:
        return [term]
    sums = [k for k, argument in enumerate(term.args) if argument.shape == () and len(distributed(argument)) > 1]
    if len(sums) != 1 or term.shape != () or (isinstance(term, DivExpression) and sums[0] == 1):
        return [term]
    (k,) = sums
    return [
        each
        for part in distributed(term.args[k])
        for each in distributed(term.copy([part if at == k else argument for at, argument in enumerate(term.args)]))
    ]


def table_of(expression: Any, clients: Population) -> int:
    """The place of the table that holds the samples of an expression.

    Raises
    ------
    NoStandardFormError
        Where they are of several.
    """
    samples = [p.id for p in expression.parameters() if isinstance(p, Sample)]
    places = [k for k, table in enumerate(clients.tables) if any(sample in table.values for sample in samples)]
    if len(places) != 1:
        raise NoStandardFormError("a sum of averages over different samples within something that is not smooth in y")
    return places[0]
