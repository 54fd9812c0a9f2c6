"""Gradients of expressions as expressions: reverse accumulation over the CVXPY tree.

Sums, products, quadratics and the like have a rule of their own, so that the gradient of a quadratic is a tree that
CVXPY knows to be affine. Any other atom is differentiated by JAX when compiled: its rule is the atom ``Pullback``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.reshape import reshape
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.transpose import transpose
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.expressions.expression import Expression

from hierfl.errors import DeclarationError
from hierfl.language.averages import averages_of
from hierfl.language.calculus.algebra import expanded, inverse, minus, plus, product, times, vanishes
from hierfl.language.calculus.jax_derivative import Pullback
from hierfl.language.expectation import SampleAverage, total
from hierfl.language.function import BlackBox
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample

Variables = Sequence[cp.Variable]
Gradients = dict[int, list[Expression]]
Pull = Callable[[Any, int, Expression], Expression]

_PRODUCTS = (MulExpression, multiply, DivExpression, cp.kron, cp.conv, cp.convolve)
_KINKED = (
    *(
        cp.abs,
        cp.maximum,
        cp.minimum,
        cp.max,
        cp.min,
        cp.norm1,
        cp.norm_inf,
        cp.atoms.Pnorm,
        cp.sum_largest,
        cp.dotsort,
    ),
    *(cp.lambda_max, cp.lambda_sum_largest, cp.sigma_max, cp.normNuc, cp.ceil, cp.floor, cp.sign, cp.cummax),
)


def require_differentiable(expression: Any, variables: Variables, what: str) -> None:
    """Check that no atom over the variables has kinks or no gradient.

    Raises
    ------
    DeclarationError
        Naming the atom.
    """
    if not depends(expression, {v.id for v in variables}):
        return
    if isinstance(expression, _KINKED):
        text = expression_text(expression)
        raise DeclarationError(
            f"{text} in {what} is not differentiable everywhere, and a game is solved through its players' gradients: smooth it "
            f"(cp.huber, cp.logistic, cp.log_sum_exp, a square), or give the player a further variable t and the constraint {text} <= t."
        )
    if isinstance(expression, BlackBox):
        raise DeclarationError(
            f"{expression.name()} in {what} is a BlackBox, which has no gradient: wrap a JAX function in hf.Function."
        )
    for argument in expression.args:
        require_differentiable(argument, variables, what)


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
    found: Gradients = {}
    for node in reversed(_ordered(root, wanted)):
        adjoint = plus(*adjoints.pop(id(node), []), zero=cp.Constant(np.zeros(node.shape)))
        if vanishes(adjoint):
            continue
        if isinstance(node, cp.Variable):
            found.setdefault(node.id, []).append(adjoint)
            continue
        finished = terminal(node, adjoint, variables)
        if finished is not None:
            for leaf, terms in finished.items():
                found.setdefault(leaf, []).extend(terms)
            continue
        for index, argument in enumerate(node.args):
            if depends(argument, wanted):
                adjoints.setdefault(id(argument), []).append(rule(node, index, adjoint))
    return found


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

    Raises
    ------
    DeclarationError
        If the mean does not enter affinely, so that a minibatch would bias the gradient.
    """
    if any(averages_of(adjoint)):
        raise DeclarationError(
            f"the objective is not affine in its mean {expression_text(node)}: a minibatch would bias it. Means and totals may "
            f"only be added, scaled, or put through affine atoms."
        )
    return {v.id: [_averaged(node, part)] for v, part in zip(variables, derivative(node.per_sample))}


def _averaged(node: SampleAverage, part: Expression) -> Expression:
    samples = [p for p in node.per_sample.parameters() if isinstance(p, Sample)]
    if any(isinstance(p, Sample) for p in part.parameters()):
        return type(node)(part)
    if not isinstance(node, total) or vanishes(part) or not samples:
        return part  # the mean of what no sample changes
    return total(part + 0 * cp.sum(samples[0]))


# Rules: how an adjoint passes from an atom to its argument

_RULES: dict[type, Pull] = {}


def _rule(*atoms: type) -> Callable[[Pull], Pull]:
    def register(function: Pull) -> Pull:
        _RULES.update(dict.fromkeys(atoms, function))
        return function

    return register


def pull(node: Any, index: int, adjoint: Expression) -> Expression:
    """The adjoint of ``node.args[index]``, given that of the node."""
    return _RULES[type(node)](node, index, adjoint) if type(node) in _RULES else _by_jax(node, index, adjoint)


def _by_jax(node: Any, index: int, adjoint: Expression) -> Expression:
    linear = isinstance(node, AffAtom) and not isinstance(node, _PRODUCTS)
    return Pullback(node, index, adjoint, *(() if linear else node.args))


@_rule(AddExpression, Wrap)
def _add(node: Any, index: int, adjoint: Expression) -> Expression:
    return adjoint


@_rule(NegExpression)
def _negate(node: Any, index: int, adjoint: Expression) -> Expression:
    return minus(adjoint)


@_rule(multiply)
def _multiply(node: Any, index: int, adjoint: Expression) -> Expression:
    return times(adjoint, node.args[1 - index])


@_rule(DivExpression)
def _divide(node: Any, index: int, adjoint: Expression) -> Expression:
    above, below = node.args
    if index == 0:
        return times(adjoint, inverse(below))
    return minus(times(times(adjoint, above), inverse(cp.square(below))))


@_rule(MulExpression)
def _matmul(node: Any, index: int, adjoint: Expression) -> Expression:
    left, right = node.args
    if not (1 <= left.ndim <= 2 and 1 <= right.ndim <= 2):
        return _by_jax(node, index, adjoint)
    if left.ndim == right.ndim == 1:
        return times(expanded(adjoint, (), left.shape), node.args[1 - index])
    if index == 0:
        return product(right, adjoint) if left.ndim == 1 else _outer(adjoint, right, right.ndim)
    return product(left.T, adjoint) if right.ndim == 1 or left.ndim == 2 else _outer(left, adjoint, left.ndim)


def _outer(left: Expression, right: Expression, dimensions: int) -> Expression:
    """``left @ right'`` of matrices, or the outer product of two vectors."""
    return product(left, right.T) if dimensions == 2 else cp.outer(left, right)


@_rule(Promote, broadcast_to)
def _broadcast(node: Any, index: int, adjoint: Expression) -> Expression:
    argument = node.args[index]
    missing = node.ndim - argument.ndim
    axes = [k for k in range(node.ndim) if k < missing or (argument.shape[k - missing] == 1 and node.shape[k] != 1)]
    summed = cp.sum(adjoint, axis=None if argument.ndim == 0 else tuple(axes))
    return summed if summed.shape == argument.shape else cp.reshape(summed, argument.shape, order="C")


@_rule(Sum)
def _sum(node: Any, index: int, adjoint: Expression) -> Expression:
    return expanded(adjoint, node.axis, node.args[0].shape)


@_rule(cp.quad_over_lin)
def _quad_over_lin(node: Any, index: int, adjoint: Expression) -> Expression:
    above, below = node.args
    if index == 1:
        return _by_jax(node, index, adjoint)
    return times(expanded(times(2, times(adjoint, inverse(below))), node.axis, above.shape), above)


@_rule(cp.QuadForm)
def _quad_form(node: Any, index: int, adjoint: Expression) -> Expression:
    vector, matrix = node.args
    if index == 1:
        return _by_jax(node, index, adjoint)
    return times(expanded(times(2, adjoint), None, vector.shape), product(matrix, vector))


@_rule(Power, PowerApprox)
def _power(node: Any, index: int, adjoint: Expression) -> Expression:
    (base,) = node.args
    exponent = float(node.p.value) if isinstance(node.p, cp.Constant) else 0.0
    if exponent == 1:
        return adjoint
    if exponent < 2 or not exponent.is_integer():
        return _by_jax(node, index, adjoint)
    return times(times(exponent, adjoint), base if exponent == 2 else cp.power(base, int(exponent) - 1))


@_rule(cp.exp)
def _exp(node: Any, index: int, adjoint: Expression) -> Expression:
    return times(adjoint, node)


@_rule(cp.log)
def _log(node: Any, index: int, adjoint: Expression) -> Expression:
    return times(adjoint, inverse(node.args[0]))


@_rule(cp.huber)
def _huber(node: Any, index: int, adjoint: Expression) -> Expression:
    return times(times(2, adjoint), cp.maximum(cp.minimum(node.args[0], node.M), -node.M))


@_rule(reshape)
def _reshape(node: Any, index: int, adjoint: Expression) -> Expression:
    return cp.reshape(adjoint, node.args[0].shape, order=node.order)


@_rule(transpose)
def _transpose(node: Any, index: int, adjoint: Expression) -> Expression:
    axes = node.axes if node.axes is not None else tuple(reversed(range(node.ndim)))
    return cp.transpose(adjoint, tuple(int(place) for place in np.argsort(axes)))
