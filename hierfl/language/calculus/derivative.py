"""Gradients of expressions as expressions: reverse accumulation over the CVXPY tree.

Sums, products, quadratics and the like have a rule in their row, so that the gradient of a quadratic is a tree that
CVXPY knows to be affine. Any other atom is differentiated by JAX when compiled: its rule is the atom ``Pullback``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.expressions.expression import Expression

from hierfl.atoms.algebra import plus, vanishes
from hierfl.atoms.table import row_of
from hierfl.errors import DeclarationError
from hierfl.language.averages import averages_of
from hierfl.language.calculus.jax_derivative import Pullback
from hierfl.language.expectation import SampleAverage, total
from hierfl.language.function import BlackBox
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample

Variables = Sequence[cp.Variable]
Gradients = dict[int, list[Expression]]
Pull = Callable[[Any, int, Expression], Expression]


def require_code_with_gradient(expression: Any, variables: Variables, what: str) -> None:
    """Check that no user code over the variables is without a gradient.

    Raises ``DeclarationError``, naming the function.
    """
    if not depends(expression, {v.id for v in variables}):
        return
    if isinstance(expression, BlackBox):
        raise DeclarationError(
            f"{expression.name()} in {what} is a BlackBox, which has no gradient: wrap a JAX function in hf.Function."
        )
    for argument in expression.args:
        require_code_with_gradient(argument, variables, what)


def gradient(expression: Expression, variables: Variables, seed: Expression | None = None) -> tuple[Expression, ...]:
    """The gradient of ``<seed, expression>`` in each of the variables, all other leaves fixed.

    Parameters
    ----------
    expression
        Differentiable in the variables; of any shape if a seed is given, else a scalar.
    variables
        The variables to differentiate in.
    seed
        Adjoint of the expression, of its shape; default 1.

    Returns
    -------
    tuple
        One expression for each variable, of its shape. Affine ones, in CVXPY's sense, for quadratics.

    Raises
    ------
    DeclarationError
        For a mean that the expression is not affine in.
    """
    start = cp.Constant(np.ones(expression.shape)) if seed is None else seed
    collected = sweep(expression, variables, start, pull, _mean_terms)
    return collect(collected, variables)


def collect(parts: Gradients, variables: Variables) -> tuple[Expression, ...]:
    """The sums of the contributions to each variable's gradient; zero where there are none."""
    zeros = {v.id: cp.Constant(np.zeros(v.shape)) for v in variables}
    return tuple(plus(*parts.get(v.id, []), zero=zeros[v.id]) for v in variables)


def sweep(
    root: Expression,
    variables: Variables,
    seed: Expression,
    rule: Pull,
    terminal: Callable[[Any, Expression, Variables], Gradients | None],
) -> Gradients:
    """Reverse accumulation: contributions to each variable's gradient.

    ``rule(node, index, adjoint)`` pulls an adjoint back to an argument; ``terminal(node, adjoint, variables)`` may finish
    a node by itself, returning the contributions of all that is below it.
    """
    wanted = {v.id for v in variables}
    adjoints: dict[int, list[Expression]] = {id(root): [seed]}
    collected: Gradients = {}
    for node in reversed(_ordered(root, wanted)):
        adjoint = plus(*adjoints.pop(id(node), []), zero=cp.Constant(np.zeros(node.shape)))
        if vanishes(adjoint):
            continue
        if isinstance(node, cp.Variable):
            collected.setdefault(node.id, []).append(adjoint)
            continue
        finished = terminal(node, adjoint, variables)
        if finished is not None:
            for leaf, terms in finished.items():
                collected.setdefault(leaf, []).extend(terms)
            continue
        for index, argument in enumerate(node.args):
            if depends(argument, wanted):
                adjoints.setdefault(id(argument), []).append(rule(node, index, adjoint))
    return collected


def depends(expression: Any, wanted: set[int]) -> bool:
    """Whether one of the variables with these ids occurs in the expression."""
    return any(v.id in wanted for v in expression.variables())


def _ordered(root: Any, wanted: set[int]) -> list[Any]:
    """The nodes over the wanted variables, arguments first, each once."""
    order: list[Any] = []
    seen: set[int] = set()

    def visit(node: Any) -> None:
        if id(node) in seen or not depends(node, wanted):
            return
        seen.add(id(node))
        if not isinstance(node, SampleAverage):
            for argument in node.args:
                visit(argument)
        order.append(node)

    visit(root)
    return order


def _mean_terms(node: Any, adjoint: Expression, variables: Variables) -> Gradients | None:
    if not isinstance(node, SampleAverage):
        return None
    return mean_of(node, adjoint, variables, lambda inner: gradient(inner, variables, adjoint))


def mean_of(
    node: SampleAverage,
    adjoint: Expression,
    variables: Variables,
    derivative: Callable[[Any], tuple[Expression, ...]],
) -> Gradients:
    """The gradient of a mean is the mean of the gradients.

    Raises ``DeclarationError`` if the mean does not enter affinely, so that a minibatch would bias the gradient.
    """
    if any(averages_of(adjoint)):
        raise DeclarationError(
            f"the objective is not affine in its mean {expression_text(node)}: a minibatch would bias it. Means and totals may "
            f"only be added, scaled, or put through affine atoms."
        )
    return {v.id: [averaged(node, part)] for v, part in zip(variables, derivative(node.per_sample))}


def averaged(node: SampleAverage, part: Expression) -> Expression:
    """The mean or total that the node takes, of another expression; the mean of what no sample changes is itself."""
    samples = [p for p in node.per_sample.parameters() if isinstance(p, Sample)]
    if any(isinstance(p, Sample) for p in part.parameters()):
        return type(node)(part)
    if not isinstance(node, total) or vanishes(part) or not samples:
        return part
    return total(part + 0 * cp.sum(samples[0]))


def pull(node: Any, index: int, adjoint: Expression) -> Expression:
    """The adjoint of ``node.args[index]``, given that of the node: by the atom's own rule, else by JAX."""
    row = row_of(node)
    pulled = row.derivative(node, index, adjoint) if row.derivative else None
    if pulled is not None:
        return pulled
    linear = isinstance(node, AffAtom) and not row.product
    return Pullback(node, index, adjoint, *(() if linear else node.args))
