"""Bounds of variables that follow from their attributes and from constraints, by interval propagation.

Forward and backward through each constraint's tree (HC4-revise; Benhamou, Goualard, Granvilliers and Puget, 1999): a
node's interval is narrowed by the constraint, then each argument by what its node and its siblings leave. Repeated until
nothing moves. The bounds hold at every point that satisfies the constraints, rounding included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.trace import Trace
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.constraints import PSD, SOC, Equality, Inequality, NonNeg, NonPos, Zero
from cvxpy.expressions.leaf import Leaf

from hierfl.analysis.enclosure import NOTHING_KNOWN, Known, enclose_node, leaf_interval
from hierfl.atoms.families.powers import exponent_of
from hierfl.atoms.intervals import EPS, Interval
from hierfl.atoms.table import row_of

_SWEEPS = 10
_PRODUCT_LIMIT = 1_000_000
_Rule = Callable[[Any, Interval, list[Interval]], list[Interval | None]]


def bounds_of(
    constraints: Sequence[Any], variables: Sequence[cp.Variable], known: Known = NOTHING_KNOWN
) -> dict[int, Interval]:
    """Bounds of the variables, by id, at all points that satisfy the constraints and the variables' attributes.

    Parameters
    ----------
    constraints
        CVXPY constraints; those of a kind without a rule narrow nothing.
    variables
        The variables to bound.
    known
        Bounds of other leaves, by id; parameters without an entry are bounded by their attributes only.

    Notes
    -----
    For constraints that no point satisfies every bound is true; those found before the contradiction are returned.
    """
    narrowed = {**known, **{v.id: leaf_interval(v, known) for v in variables}}
    for _ in range(_SWEEPS):
        before = {v.id: narrowed[v.id] for v in variables}
        for constraint in constraints:
            attempt = _Narrowing(narrowed)
            attempt.apply(constraint)
            if any(interval.is_empty for interval in attempt.known.values()):
                continue
            narrowed = attempt.known
        if not any(_moved(before[v.id], narrowed[v.id]) for v in variables):
            break
    return {v.id: narrowed[v.id] for v in variables}


def _moved(old: Interval, new: Interval) -> bool:
    def change(a: np.ndarray, b: np.ndarray) -> bool:
        finite = np.isfinite(a)
        shrunk = np.abs(a[finite] - b[finite]) > 1e-3 * (1 + np.abs(a[finite]))
        return bool(shrunk.any() or (np.isfinite(b) & ~finite).any())

    return change(old.lo, new.lo) or change(old.hi, new.hi)


class _Narrowing:
    """One pass over one constraint."""

    def __init__(self, known: Known) -> None:
        self.known = dict(known)
        self._forward: dict[int, Interval] = {}

    def apply(self, constraint: Any) -> None:
        """Narrow the leaves under a constraint."""
        with np.errstate(all="ignore"):
            if isinstance(constraint, (Inequality, Equality)):
                left, right = (self.value(argument) for argument in constraint.args)
                self.narrow(constraint.args[0], _fold(right, constraint.args[0].shape, above=True))
                self.narrow(constraint.args[1], _fold(left, constraint.args[1].shape, above=False))
                if isinstance(constraint, Equality):
                    self.narrow(constraint.args[0], _fold(right, constraint.args[0].shape, above=False))
                    self.narrow(constraint.args[1], _fold(left, constraint.args[1].shape, above=True))
            elif isinstance(constraint, (NonNeg, NonPos, Zero)):
                shape = constraint.args[0].shape
                low = np.full(shape, -np.inf if isinstance(constraint, NonPos) else 0.0)
                high = np.full(shape, np.inf if isinstance(constraint, NonNeg) else 0.0)
                self.narrow(constraint.args[0], Interval(low, high))
            elif isinstance(constraint, SOC):
                self._cone(constraint)
            elif isinstance(constraint, PSD):
                self._semidefinite(constraint.args[0])

    def value(self, node: Any) -> Interval:
        """The forward enclosure, under the present bounds."""
        if id(node) not in self._forward:
            if isinstance(node, Leaf):
                self._forward[id(node)] = leaf_interval(node, self.known)
            else:
                self._forward[id(node)] = enclose_node(node, [self.value(a) for a in node.args])
        return self._forward[id(node)]

    def narrow(self, node: Any, target: Interval) -> None:
        """The node's values are known to lie in ``target``."""
        if not node.variables():
            return
        found = self.value(node).meet(target)
        if isinstance(node, cp.Variable):
            self.known[node.id] = leaf_interval(node, self.known).meet(found)
            return
        rule = _layout if row_of(node).layout else next((r for kinds, r in _RULES if isinstance(node, kinds)), None)
        if rule is None:
            return
        arguments = [self.value(a) for a in node.args]
        for argument, narrower in zip(node.args, rule(node, found, arguments)):
            if narrower is not None:
                self.narrow(argument, narrower)

    def _cone(self, constraint: Any) -> None:
        radius, vector = constraint.args
        high = np.maximum(self.value(radius).hi, 0.0)
        axis = constraint.axis if vector.ndim > 1 else 0
        spread = np.broadcast_to(np.expand_dims(np.atleast_1d(high), axis) if vector.ndim > 1 else high, vector.shape)
        self.narrow(vector, Interval(-spread, spread))
        self.narrow(radius, Interval(np.zeros(radius.shape), np.full(radius.shape, np.inf)))

    def _semidefinite(self, matrix: Any) -> None:
        """Nonnegative diagonal, and ``|a_ij| <= sqrt(a_ii a_jj)``."""
        diagonal = np.maximum(np.diag(self.value(matrix).hi), 0.0)
        size = np.sqrt(np.outer(diagonal, diagonal)) * (1 + 8 * EPS)
        size = np.where(np.isnan(size), np.inf, size)
        low = np.where(np.eye(len(diagonal), dtype=bool), 0.0, -size)
        self.narrow(matrix, Interval(low, size))


def _fold(bound: Interval, shape: tuple[int, ...], above: bool) -> Interval:
    """What one side of an inequality says about the other, whose shape may have been broadcast."""
    ends = np.asarray(bound.hi if above else bound.lo)
    whole = np.broadcast_to(ends, np.broadcast_shapes(ends.shape, shape))
    missing = whole.ndim - len(shape)
    axes = tuple(k for k in range(whole.ndim) if k < missing or (shape[k - missing] == 1 and whole.shape[k] != 1))
    folded = (np.min if above else np.max)(whole, axis=axes).reshape(shape) if axes else whole
    return Interval(np.full(shape, -np.inf), folded) if above else Interval(folded, np.full(shape, np.inf))


# Rules: what a node's interval and its arguments' say about each argument; None for nothing


def _add(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    found: list[Interval | None] = []
    for place, argument in enumerate(arguments):
        if argument.shape != node.shape:
            found.append(None)
            continue
        rest = target
        for other in (a for k, a in enumerate(arguments) if k != place):
            rest = rest - other
        found.append(rest)
    return found


def _negate(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    return [-target]


def _multiply(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    return [
        target * other.inverse() if own.shape == node.shape else None
        for own, other in ((arguments[0], arguments[1]), (arguments[1], arguments[0]))
    ]


def _divide(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    return [target * arguments[1] if arguments[0].shape == node.shape else None, None]


def _matmul(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    left, right = arguments
    if left.lo.ndim not in (1, 2) or right.lo.ndim not in (1, 2):
        return [None, None]
    if left.is_point and left.is_bounded:
        rows = target if left.lo.ndim == 2 else Interval(target.lo[None], target.hi[None])
        return [None, _rows(np.atleast_2d(left.lo), rows, right)]
    if right.is_point and right.is_bounded:
        matrix = np.atleast_2d(right.lo.T)
        across = Interval(left.lo.T, left.hi.T)
        rows = target if right.lo.ndim == 1 and left.lo.ndim == 2 else Interval(target.lo.T, target.hi.T)
        rows = Interval(rows.lo[None], rows.hi[None]) if right.lo.ndim == 1 else rows
        narrower = _rows(matrix, rows, across)
        return [None if narrower is None else Interval(narrower.lo.T, narrower.hi.T), None]
    return [None, None]


def _rows(matrix: np.ndarray, target: Interval, unknown: Interval) -> Interval | None:
    """Bounds on z from ``matrix @ z`` in ``target``: what each row leaves to each entry."""
    if matrix.size * (unknown.lo.size // matrix.shape[1]) > _PRODUCT_LIMIT:
        return None
    vector = unknown.lo.ndim == 1
    lo, hi = (end[:, None] if vector else end for end in (unknown.lo, unknown.hi))
    goal = [end.reshape(matrix.shape[0], lo.shape[1])[:, None, :] for end in (target.lo, target.hi)]
    coefficients = Interval.of(matrix[:, :, None])
    terms = coefficients * Interval(lo[None], hi[None])
    left = (Interval(goal[0], goal[1]) - _others(terms, 1)) * coefficients.inverse()
    used = matrix[:, :, None] != 0
    low = np.where(used, left.lo, -np.inf).max(axis=0)
    high = np.where(used, left.hi, np.inf).min(axis=0)
    return Interval(low[:, 0], high[:, 0]) if vector else Interval(low, high)


def _others(terms: Interval, axis: int) -> Interval:
    """Sums over the axis that leave out each entry in turn."""
    return Interval(_without_own(terms.lo, axis, -1.0), _without_own(terms.hi, axis, 1.0))


def _without_own(ends: np.ndarray, axis: int, outward: float) -> np.ndarray:
    """Sums of the entries before and after each one: without cancellation, so that zeros stay exact."""
    terms = np.moveaxis(ends, axis, 0)
    zero = np.zeros_like(terms[:1])

    def exclusive(parts: np.ndarray) -> np.ndarray:
        before = np.concatenate([zero, np.cumsum(parts, axis=0)[:-1]])
        after = np.concatenate([np.cumsum(parts[::-1], axis=0)[::-1][1:], zero])
        return np.asarray(before + after)

    sizes = exclusive(np.abs(terms))
    slack = np.where(np.isfinite(sizes), 4 * (len(terms) + 2) * EPS * sizes, 0.0)
    return np.moveaxis(exclusive(terms) + outward * slack, 0, axis)


def _sum(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    (argument,) = arguments
    if argument.lo.ndim == 0:
        return [target]
    if node.axis is None:
        flat = Interval(argument.lo.ravel(), argument.hi.ravel())
        narrower = Interval(target.lo.reshape(-1), target.hi.reshape(-1)) - _others(flat, 0)
        return [Interval(narrower.lo.reshape(argument.shape), narrower.hi.reshape(argument.shape))]
    if not isinstance(node.axis, (int, np.integer)):
        return [None]
    spread = _over(node, target)
    return [spread - _others(argument, int(node.axis))]


def _trace(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    (argument,) = arguments
    diagonal = Interval(np.diag(argument.lo), np.diag(argument.hi))
    narrower = Interval(target.lo.reshape(-1), target.hi.reshape(-1)) - _others(diagonal, 0)
    low, high = np.full(argument.shape, -np.inf), np.full(argument.shape, np.inf)
    np.fill_diagonal(low, narrower.lo)
    np.fill_diagonal(high, narrower.hi)
    return [Interval(low, high)]


def _over(node: Any, target: Interval) -> Interval:
    """A reduction's interval, laid over the axis that it reduced."""
    shape = node.args[0].shape

    def lay(ends: np.ndarray) -> np.ndarray:
        if node.axis is None:
            return np.broadcast_to(ends.reshape(-1)[0], shape)
        expanded = ends if getattr(node, "keepdims", False) else np.expand_dims(ends, node.axis)
        return np.broadcast_to(expanded, shape)

    return Interval(lay(target.lo), lay(target.hi))


def _layout(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """Atoms that copy entries: numbered entries show where each one went."""
    places, start = [], 0
    for argument in node.args:
        places.append(start + np.arange(argument.size, dtype=float).reshape(argument.shape))
        start += argument.size
    origin = np.asarray(node.numeric(places)).reshape(node.shape).astype(int).ravel()
    low, high = np.full(start, -np.inf), np.full(start, np.inf)
    np.maximum.at(low, origin, target.lo.ravel())
    np.minimum.at(high, origin, target.hi.ravel())
    ends = np.cumsum([argument.size for argument in node.args])[:-1]
    return [
        Interval(a.reshape(argument.shape), b.reshape(argument.shape))
        for argument, a, b in zip(node.args, np.split(low, ends), np.split(high, ends))
    ]


def _within(size: np.ndarray) -> Interval:
    size = np.maximum(size, 0.0)
    return Interval(-size, size)


def _root(value: np.ndarray, exponent: float) -> np.ndarray:
    """A root, rounded up unless it is exact."""
    value = np.maximum(value, 0.0)
    root = np.sqrt(value) if exponent == 2 else value ** (1 / exponent)
    return np.where(root**exponent == value, root, root * (1 + 16 * EPS))


def _absolute(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    return [_within(target.hi)]


def _norm(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """No entry is larger than the norm."""
    if isinstance(node, (Pnorm, PnormApprox)) and float(node.p) < 1:
        return [None]
    return [_within(_over(node, target).hi)]


def _power(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    exponent = exponent_of(node)
    if exponent is None or exponent <= 0 or exponent % 2:
        return [None]
    return [_within(_root(target.hi, exponent))]


def _quad_over_lin(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    product = target * Interval(np.zeros(()), arguments[1].hi.reshape(()))
    return [_within(_root(_over(node, product).hi, 2.0)), None]


def _extreme(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """Below a maximum (or a log-sum-exp) is every entry; above a minimum too."""
    if isinstance(node, (cp.max, cp.min, cp.log_sum_exp)):
        target = _over(node, target)
    free = np.full(target.shape, np.inf)
    narrower = Interval(target.lo, free) if isinstance(node, (cp.min, cp.minimum)) else Interval(-free, target.hi)
    return [narrower if argument.shape == narrower.shape else None for argument in arguments]


def _exponential(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    return [Interval(np.log(np.maximum(target.lo, 0.0)), np.log(np.maximum(target.hi, 0.0))).widened(16 * EPS)]


def _logarithm(node: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    return [Interval(np.exp(target.lo), np.exp(target.hi)).widened(16 * EPS)]


_RULES: tuple[tuple[Any, _Rule], ...] = (
    (AddExpression, _add),
    (NegExpression, _negate),
    (multiply, _multiply),
    (DivExpression, _divide),
    (MulExpression, _matmul),
    (Sum, _sum),
    (Trace, _trace),
    (cp.abs, _absolute),
    ((cp.norm1, cp.norm_inf, Pnorm, PnormApprox), _norm),
    ((Power, PowerApprox), _power),
    (cp.quad_over_lin, _quad_over_lin),
    ((cp.max, cp.min, cp.maximum, cp.minimum, cp.log_sum_exp), _extreme),
    (cp.exp, _exponential),
    (cp.log, _logarithm),
)
