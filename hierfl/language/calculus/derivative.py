"""Gradients of expressions as expressions: reverse accumulation over the CVXPY tree.

Sums, products, quadratics and the like have a rule in their row, so that the gradient of a quadratic is a tree that
CVXPY knows to be affine. Any other atom is differentiated by JAX when compiled: its rule is the atom ``Pullback``.

Each player's derivative in its own rows, for a thousand players declared as one expression.

Entry j of the cost is player j's objective, and row j of each variable is player j's own. The derivative that a game
needs is the diagonal of the Jacobian, found here in linear time: the cost is a row-by-row function of the variables and
of *aggregates* (the total quantity), so

    d cost_j / d y_j  =  (the row's own part)  +  sum over aggregates s of (d cost_j / d s) (d s / d y_j).

The sweep is the ordinary one, since the Jacobian of a row-by-row function is block diagonal; it stops at aggregates,
whose adjoint then has one row for each player.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NoReturn

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import MulExpression, multiply
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.sum import Sum
from cvxpy.expressions.expression import Expression

from hierfl.atoms.algebra import depends, expanded, plus, product, times, vanishes
from hierfl.atoms.families.rearrangements import keeps_first_axis
from hierfl.atoms.row import AtomRow, OnlyCompiled, Unknown
from hierfl.atoms.table import is_entrywise, row_of
from hierfl.errors import DeclarationError, NotConvexError
from hierfl.language.expectation import RowAggregate, SampleAverage, averages_of, total
from hierfl.language.function import BlackBox, user_atoms
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample


class JaxDerivative(Unknown, OnlyCompiled):
    """Base of the derivatives: of unknown sign and monotonicity, and beyond CVXPY's reach.

    Each holds another expression, so that what evaluates or bounds trees treats it as a node of its own kind.
    """

    atom_row: ClassVar[AtomRow] = AtomRow(shared=False, only_compiled=True)

    def is_atom_convex(self) -> bool:
        return False

    def is_atom_concave(self) -> bool:
        """As convex: only an affine derivative is known to be either."""
        return self.is_atom_convex()

    def copy(self, args: Any = None, id_objects: Any = None) -> Any:
        return type(self)(*self.get_data(), *(args or self.args))

    def _refuse(self) -> NoReturn:
        raise NotConvexError(f"the {self.name()} is computed by JAX: CVXPY can neither evaluate nor solve it.")


class Pullback(JaxDerivative):
    """The adjoint J'a of one atom's derivative J in its argument ``index``, ``adjoint`` a.

    ``values`` are the atom's arguments, at which it is differentiated; none for a linear atom, whose derivative needs no point.
    """

    def __init__(self, node: Any, index: int, adjoint: Any, *values: Any) -> None:
        self.node, self.index = node, index
        super().__init__(adjoint, *values)

    def shape_from_args(self) -> tuple[int, ...]:
        return tuple(self.node.args[self.index].shape)

    def is_atom_convex(self) -> bool:
        """Linear in the adjoint where the point is fixed."""
        return all(value.is_constant() for value in self.args[1:])

    def get_data(self) -> list[Any]:
        return [self.node, self.index]

    def name(self) -> str:
        return f"gradient of {expression_text(self.node)}"


class OwnGradient(JaxDerivative):
    """Each player's derivative in its own row, computed one player at a time: n evaluations of all the costs.

    Entry j of ``cost`` is the objective of player j, who owns row j of ``variable``; ``values`` are those of the cost's leaves, in the order of
    :func:`leaves_of`.
    """

    def __init__(self, cost: Any, variable: cp.Variable, *values: Any) -> None:
        self.cost, self.variable = cost, variable
        super().__init__(*values)

    def shape_from_args(self) -> tuple[int, ...]:
        return tuple(self.variable.shape)

    def get_data(self) -> list[Any]:
        return [self.cost, self.variable]

    def name(self) -> str:
        return f"each player's own gradient of {expression_text(self.cost)}"


def leaves_of(cost: Any) -> list[Any]:
    """The variables and parameters of an expression, each once."""
    return list({leaf.id: leaf for leaf in [*cost.variables(), *cost.parameters()]}.values())


Variables = Sequence[cp.Variable]
Expressions = tuple[Expression, ...]  # one for each of the variables
Gradients = dict[int, list[Expression]]
Pull = Callable[[Any, int, Expression], Expression]


def require_code_with_gradient(expression: Any, variables: Variables, what: str) -> None:
    """No user code over the variables is without a gradient. Raises ``DeclarationError``, naming the function."""
    wanted = {v.id for v in variables}
    for atom in user_atoms([expression]):
        if isinstance(atom, BlackBox) and depends(atom, wanted):
            said = f"{atom.name()} in {what} is a BlackBox, which has no gradient"
            raise DeclarationError(f"{said}: wrap a JAX function in hf.Function.")


def gradient(expression: Expression, variables: Variables, seed: Expression | None = None) -> Expressions:
    """The gradient of ``<seed, expression>`` in each of the variables, of its shape, all other leaves fixed; affine, in CVXPY's sense, for quadratics.

    The expression is a scalar, or of any shape with a ``seed`` of that. Raises ``DeclarationError`` for a mean that it is not affine in.
    """
    start = cp.Constant(np.ones(expression.shape)) if seed is None else seed
    collected = _sweep(expression, variables, start, pull, _mean_terms)
    return _collect(collected, variables)


def _collect(parts: Gradients, variables: Variables) -> Expressions:
    """The sums of the contributions to each variable's gradient; zero where there are none."""
    zeros = {v.id: cp.Constant(np.zeros(v.shape)) for v in variables}
    return tuple(plus(*parts.get(v.id, []), zero=zeros[v.id]) for v in variables)


def _sweep(
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
    if isinstance(node, RowAggregate):
        said = f"{expression_text(node)} is of all rows at once, and its gradient no expression, as a mapping has to be"
        raise DeclarationError(f"{said}: it may stand in hf.Minimize, hf.ArgMin and hf.ArgMax.")
    if not isinstance(node, SampleAverage):
        return None
    return _mean_of(node, adjoint, variables, lambda inner: gradient(inner, variables, adjoint))


def _mean_of(
    node: SampleAverage, adjoint: Expression, variables: Variables, derivative: Callable[[Any], Expressions]
) -> Gradients:
    """The gradient of a mean is the mean of the gradients, where it enters affinely; else a ``DeclarationError``."""
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
        shape = node.args[index].shape  # other than of the adjoint where CVXPY takes 3 / y for a number, and y has the shape (1,)
        return pulled if pulled.shape == shape else cp.reshape(pulled, shape, order="C")
    linear = isinstance(node, AffAtom) and not row.product
    return Pullback(node, index, adjoint, *(() if linear else node.args))


DENSE_PLAYERS = 200
"""Up to so many players, a cost outside the table is differentiated player by player."""


class _NotSeparableError(Exception):
    """The cost leaves the table at this node."""

    def __init__(self, node: Any) -> None:
        self.node = node


@dataclass(frozen=True)
class _Mixed:
    """Rows multiplied by a matrix W before they reach the players: player j sees ``sum_i W[j, i] row_i``."""

    matrix: Expression
    adjoint: Expression


def own_gradient(cost: Expression, variables: Variables) -> Expressions:
    """Row j of the results is the derivative of ``cost[j]``, the objective of player j, in row j of each variable, which that player owns.

    They are linear in n to evaluate, unless they contain an ``OwnGradient``. Raises ``DeclarationError`` as :func:`gradient`; and for more than
    ``DENSE_PLAYERS`` players if the players are coupled by an atom outside the table, which it names.
    """
    try:
        return _own(cost, variables, cp.Constant(np.ones(cost.shape)), None)
    except _NotSeparableError as coupling:
        if cost.shape[0] > DENSE_PLAYERS or any(True for _ in averages_of(cost)):
            raise DeclarationError(
                f"the objectives of {cost.shape[0]} players are coupled through {expression_text(coupling.node)}, in which hierfl cannot "
                f"tell a player's own share from the others' (and differentiating player by player is kept for at most "
                f"{DENSE_PLAYERS} players without hf.E). Couple them through sums: cp.sum(y), W @ y, Y @ cp.sum(Y, axis=0)."
            ) from None
        return tuple(OwnGradient(cost, v, *leaves_of(cost)) for v in variables)


def separable_gradient(cost: Expression, variables: Variables) -> Expressions | None:
    """As :func:`own_gradient`, None where that takes more than linear time."""
    try:
        return _own(cost, variables, cp.Constant(np.ones(cost.shape)), None)
    except _NotSeparableError:
        return None


def _own(cost: Expression, variables: Variables, seed: Expression, mixed: _Mixed | None) -> Expressions:
    """The row-by-row sweep; with ``mixed`` the cost's rows pass through a matrix first."""
    wanted = {v.id for v in variables}
    aggregates: Gradients = {}

    def add(parts: Expressions) -> None:
        for variable, part in zip(variables, parts):
            aggregates.setdefault(variable.id, []).append(part)

    def terminal(node: Any, adjoint: Expression, _: Variables) -> Gradients | None:
        if isinstance(node, SampleAverage):
            if mixed is not None:
                raise _NotSeparableError(node)
            return _mean_of(node, adjoint, variables, lambda inner: _own(inner, variables, adjoint, None))
        if isinstance(node, (Promote, broadcast_to)) and not keeps_first_axis(node):
            add(_shared(node.args[0], adjoint, variables, mixed))
            return {}
        if not _is_matrix_product(node):
            return None
        left, right = node.args
        if not depends(right, wanted):
            if left.ndim == 2:
                return None  # Y @ M is row by row
            add(_mixing(left, right.T, adjoint, variables, mixed))
        elif not depends(left, wanted):
            add(_mixing(right, left, adjoint, variables, mixed))
        elif left.ndim == 2 and right.ndim == 1:  # Y @ p with the prices p an aggregate
            spread = expanded(adjoint, 1, left.shape)
            add(_shared(right, times(spread, left), variables, mixed))
            prices = cp.broadcast_to(right, left.shape)
            add(_own(left, variables, times(spread, prices), mixed))
        else:
            raise _NotSeparableError(node)
        return {}

    rule = partial(_row_pull, entrywise_alone=mixed is not None and cost.ndim != 1)
    own = _collect(_sweep(cost, variables, seed, rule, terminal), variables)
    if mixed is not None:
        diagonal = times(mixed.adjoint, _rows(_diagonal(mixed.matrix), mixed.adjoint.shape))
        own = tuple(p if vanishes(p) else times(_rows(diagonal, v.shape), p) for v, p in zip(variables, own))
    for variable, part in zip(variables, own):
        aggregates.setdefault(variable.id, []).insert(0, part)
    return _collect(aggregates, variables)


def _shared(aggregate: Expression, adjoint: Expression, variables: Variables, mixed: _Mixed | None) -> Expressions:
    """Contributions through an aggregate, whose adjoint has one row for each player."""
    if aggregate.size == 1:
        if mixed is not None:
            adjoint = adjoint if adjoint.ndim == mixed.adjoint.ndim else _summed(adjoint)
            adjoint = times(mixed.adjoint, product(mixed.matrix, adjoint))
        share = _summed(adjoint)
        parts = gradient(aggregate, variables)
        return tuple(times(_rows(share, v.shape), part) for v, part in zip(variables, parts))
    if mixed is not None or aggregate.ndim != 1 or adjoint.ndim != 2:
        raise _NotSeparableError(aggregate)
    return _prices(aggregate, adjoint, variables)


def _prices(aggregate: Any, adjoint: Expression, variables: Variables) -> Expressions:
    """Contributions through an aggregate of shape (k,), a price for each column, say; its adjoint is (n, k)."""
    if isinstance(aggregate, Promote):
        return _shared(aggregate.args[0], adjoint, variables, None)
    if is_entrywise(aggregate):
        parts: Gradients = {}
        for place, argument in enumerate(aggregate.args):
            if not depends(argument, {v.id for v in variables}):
                continue
            if argument.shape != aggregate.shape:
                raise _NotSeparableError(aggregate)
            slope = pull(aggregate, place, cp.Constant(np.ones(aggregate.shape)))
            prices = _prices(argument, times(adjoint, cp.broadcast_to(slope, adjoint.shape)), variables)
            for variable, part in zip(variables, prices):
                parts.setdefault(variable.id, []).append(part)
        return _collect(parts, variables)
    summed = gradient(cp.sum(aggregate), variables)
    for variable, part in zip(variables, summed):
        if not vanishes(part) and not (variable.shape == adjoint.shape and _sums_columns(aggregate, variable)):
            raise _NotSeparableError(aggregate)
    return tuple(part if vanishes(part) else times(adjoint, part) for part in summed)


def _mixing(
    rows: Expression, matrix: Expression, adjoint: Expression, variables: Variables, mixed: _Mixed | None
) -> Expressions:
    """Contributions through ``matrix @ rows``, with a square matrix."""
    if mixed is not None or matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise _NotSeparableError(rows)
    return _own(rows, variables, cp.Constant(np.ones(rows.shape)), _Mixed(matrix, adjoint))


def _row_pull(node: Any, place: int, adjoint: Expression, entrywise_alone: bool = False) -> Expression:
    keeps_rows = None if entrywise_alone else row_of(node).keeps_rows
    entrywise = is_entrywise(node) and node.args[place].shape == node.shape
    if entrywise or (keeps_rows is not None and keeps_rows(node)):
        return pull(node, place, adjoint)
    raise _NotSeparableError(node)


def _is_matrix_product(node: Any) -> bool:
    return isinstance(node, MulExpression) and not isinstance(node, multiply)  # which CVXPY derives from it


def _sums_columns(aggregate: Any, variable: cp.Variable) -> bool:
    """Whether it is a (weighted) sum of the rows of a function of the entries."""
    if isinstance(aggregate, Sum):
        return aggregate.axis in (0, (0,)) and _entry_by_entry(aggregate.args[0], variable)
    if not _is_matrix_product(aggregate):
        return False
    weights, rows = aggregate.args
    return not depends(weights, {variable.id}) and weights.ndim == 1 and _entry_by_entry(rows, variable)


def _entry_by_entry(node: Any, variable: cp.Variable) -> bool:
    if isinstance(node, cp.Variable) or not depends(node, {variable.id}):
        return True
    return is_entrywise(node) and all(
        not depends(a, {variable.id}) or (a.shape == node.shape and _entry_by_entry(a, variable)) for a in node.args
    )


def _rows(expression: Expression, shape: tuple[int, ...]) -> Expression:
    """A number for each row, as an array of that shape."""
    if expression.shape == shape:
        return expression
    return expanded(expression, tuple(range(1, len(shape))), shape)


def _summed(expression: Expression) -> Expression:
    return expression if expression.ndim == 1 else cp.sum(expression, axis=tuple(range(1, expression.ndim)))


def _diagonal(matrix: Expression) -> Expression:
    if isinstance(matrix, cp.Constant):
        value = matrix.value
        return cp.Constant(value.diagonal() if sp.issparse(value) else np.diagonal(value))
    return cp.diag(matrix)
