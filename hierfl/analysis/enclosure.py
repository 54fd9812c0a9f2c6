"""Intervals through expressions: bounds on every value that an expression can take, given bounds on its leaves.

An atom that CVXPY knows to be monotone in an argument is evaluated at that argument's ends, one that depends on magnitudes
alone (norms, even powers) at the smallest and largest of these; products and quotients have rules of their own, each in
the row of its atom. What no rule covers is unbounded, up to the sign that CVXPY knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.constraints import PSD, Equality, Inequality, Zero
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf

from hierfl.atoms.algebra import nodes_of, sparse_factor
from hierfl.atoms.families.powers import exponent_of, is_odd
from hierfl.atoms.intervals import Interval, SparsePoint, bounded, matmul
from hierfl.atoms.ranges import broadcast, monotone, reshaped, value_at
from hierfl.atoms.table import row_of
from hierfl.language.calculus.derivative import Pullback
from hierfl.language.expectation import SampleAverage, total

Known = Mapping[int, Interval]
NOTHING_KNOWN: Known = {}

_MATRIX_LIMIT = 1_000_000
_WHERE_POSITIVE = (cp.eye_minus_inv, cp.one_minus_pos, cp.pf_eigenvalue)  # nonnegative by DGP, whose domains CVXPY does not tell


def enclose(expression: Any, known: Known = NOTHING_KNOWN) -> Interval:
    """An interval that contains the expression's values, of its shape; ``E`` is enclosed as its per-sample expression is.

    Leaves that are not ``known``, by id, are bounded by their attributes alone, never by a present ``.value``.
    """
    return Enclosure(known)(expression)


class Enclosure:
    """Enclosures of expressions that share subtrees, and whether each is defined at every point of the known bounds.

    CVXPY's sign of an atom holds on the atom's domain: ``power(x, 3)`` is nonnegative for it, since x >= 0 is implied. We
    evaluate it at every x, so that the sign of an atom is believed only where the bounds keep its arguments in the domain.
    Bounds say little of matrices: ``definite`` takes those for semidefinite that have to be, for levels, whose curvature is looked at.
    """

    def __init__(self, known: Known = NOTHING_KNOWN, definite: bool = False) -> None:
        self._known, self._definite = known, definite
        self._memo: dict[int, Interval] = {}
        self._open: set[int] = set()
        self._kept: list[Any] = []  # ids stay unique while the nodes live

    def __call__(self, node: Any) -> Interval:
        if id(node) not in self._memo:
            self._kept.append(node)
            with np.errstate(all="ignore"):
                self._memo[id(node)] = self._visit(node)
        return self._memo[id(node)]

    def defined(self, node: Any) -> bool:
        """Whether every atom of the expression is in its domain wherever the leaves are in their bounds."""
        self(node)
        return id(node) not in self._open

    def _visit(self, node: Any) -> Interval:
        if isinstance(node, Leaf):
            return leaf_interval(node, self._known)
        values = _atom(node, ranges_of_arguments(node, self))
        if any(id(a) in self._open for a in node.args) or not all(self.holds(c) for c in own_domain(node)):
            self._open.add(id(node))
            return values
        return values.meet(_declared_sign(node))

    def holds(self, constraint: Any) -> bool:
        """Whether a constraint of an atom's domain is implied by the bounds."""
        if isinstance(constraint, Inequality):
            low, high = constraint.args
            return bool((self(low).hi <= self(high).lo).all())
        if isinstance(constraint, PSD):
            return self._definite or bool(constraint.args[0].is_psd())
        return isinstance(constraint, (Equality, Zero))  # symmetry, which costs a sign nothing


def rules_hold(expression: Any, known: Known) -> bool:
    """Whether CVXPY's rules of curvature are about the function that hierfl evaluates.

    By an odd power they mean one of what is at least 0, and it is a polynomial here; other atoms have no value outside of their domains.
    """
    enclosure = Enclosure(known)
    powers = ((node, exponent_of(node)) for node in nodes_of(expression) if isinstance(node, Power | PowerApprox))
    odd = (node for node, exponent in powers if exponent is None or is_odd(exponent))
    return not any((enclosure(node.args[0]).lo < 0).any() for node in odd)


def ranges_of_arguments(node: Any, enclosed: Callable[[Any], Interval]) -> list[Interval]:
    """Those of an atom, a large sparse matrix in a product being itself."""
    factor = sparse_factor(node)
    if factor is None:
        return [enclosed(argument) for argument in node.args]
    place, matrix = factor
    return [SparsePoint(matrix, matrix) if k == place else enclosed(argument) for k, argument in enumerate(node.args)]


def own_domain(node: Any) -> list[Any]:
    """The constraints under which one atom is defined, its arguments' own left out."""
    return list(node._domain()) if isinstance(node, Atom) else []


def enclose_node(node: Any, arguments: list[Interval]) -> Interval:
    """One atom, given its arguments."""
    with np.errstate(all="ignore"):
        return _atom(node, arguments).meet(_declared_sign(node))


def leaf_interval(leaf: Any, known: Known) -> Interval:
    """What is known of a leaf: a constant's value, the given bounds, and its attributes."""
    if isinstance(leaf, cp.Constant):
        value = leaf.value
        dense = np.asarray(value.toarray() if hasattr(value, "toarray") else value, dtype=float)
        return Interval.of(dense.reshape(leaf.shape))
    values = known.get(leaf.id, Interval.free(leaf.shape)).meet(_declared_sign(leaf))
    bounds = leaf.attributes.get("bounds")
    if bounds is not None:
        low, high = (
            np.full(leaf.shape, end) if isinstance(bound, Expression) else np.broadcast_to(bound, leaf.shape)
            for bound, end in zip(bounds, (-np.inf, np.inf))
        )
        values = values.meet(Interval(np.asarray(low, dtype=float), np.asarray(high, dtype=float)))
    return values


def _declared_sign(node: Any) -> Interval:
    low = 0.0 if node.is_nonneg() and not isinstance(node, _WHERE_POSITIVE) else -np.inf
    high = 0.0 if node.is_nonpos() else np.inf
    return Interval(np.full(node.shape, low), np.full(node.shape, high))


def _atom(node: Any, arguments: list[Interval]) -> Interval:
    if isinstance(node, SampleAverage):
        return _average(node, arguments)
    if isinstance(node, Pullback):
        return _pullback(node, arguments)
    rule = row_of(node).range or monotone
    return rule(node, arguments)


def _average(node: Any, arguments: list[Interval]) -> Interval:
    """A mean lies in the range of what it averages; a total of nonnegative numbers is nonnegative."""
    (inside,) = arguments
    if not isinstance(node, total):
        return inside
    return Interval(np.where(inside.lo >= 0, 0.0, -np.inf), np.where(inside.hi <= 0, 0.0, np.inf))


def _pullback(node: Pullback, arguments: list[Interval]) -> Interval:
    """Gradients (Clarke's, at kinks) of linear atoms, and of atoms whose slopes have bounds."""
    adjoint, atom = arguments[0], node.node
    if isinstance(atom, Pullback):
        return _second_pullback(node, atom, arguments)
    if isinstance(atom, AffAtom) and len(node.args) == 1:
        return _transposed_map(atom, node.index, adjoint)
    slopes = row_of(atom).slopes
    slope = None if slopes is None else slopes(atom, arguments[1:])
    if slope is None:
        return Interval.free(node.shape)
    if adjoint.lo.size > 1 and adjoint.shape != node.shape:
        uses = max(1, adjoint.lo.size // node.size)  # of an entry that is broadcast, which add up
        adjoint = Interval(*(np.full(node.shape, uses * end) for end in (adjoint.lo.min(), adjoint.hi.max())))
    return broadcast(adjoint * slope, node.shape)


def _second_pullback(node: Pullback, inner: Pullback, arguments: list[Interval]) -> Interval:
    """The gradient of ``adjoint * slope(z)`` for an elementwise atom, in the adjoint or in z."""
    if len(inner.args) != 2 or row_of(inner.node).second_derivative is None:
        return Interval.free(node.shape)
    outer, adjoint, point = arguments
    if node.index == 0:
        slopes = row_of(inner.node).slopes
        slope = None if slopes is None else slopes(inner.node, [point])
        return Interval.free(node.shape) if slope is None else broadcast(outer * slope, node.shape)
    second = second_derivative(inner.node, point)
    return Interval.free(node.shape) if second is None else broadcast(outer * (adjoint * second), node.shape)


def second_derivative(node: Any, point: Interval) -> Interval | None:
    """The range of an elementwise atom's second derivative, given its argument's; None for atoms without a rule."""
    row = row_of(node)
    if row.second_derivative is None:
        return None
    settings = [enclose(getattr(node, name)) for name in row.settings]
    with np.errstate(all="ignore"):
        second = row.second_derivative(node, point, *settings)
    return bounded(second.lo, second.hi).widened(1e-14)


def _transposed_map(atom: Any, place: int, adjoint: Interval) -> Interval:
    """The transpose of a linear atom, from its values at unit vectors."""
    shape = atom.args[place].shape
    size = int(np.prod(shape, dtype=int))
    if size * adjoint.lo.size > _MATRIX_LIMIT:
        return Interval.free(shape)
    rest = [np.zeros(argument.shape) for argument in atom.args]
    columns = []
    for unit in np.eye(size):
        values = [unit.reshape(shape) if k == place else other for k, other in enumerate(rest)]
        columns.append(value_at(atom, values).ravel())
    product = matmul(Interval.of(np.stack(columns)), Interval(adjoint.lo.ravel(), adjoint.hi.ravel()))
    return reshaped(product, shape)
