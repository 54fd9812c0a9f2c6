"""Curvature from the tree: two expressions, quadratic in y, whose Hessians bound that of a convex (concave) one.

Each atom over an affine map z of y is replaced by the quadratic that its second derivative allows: a square by itself,
``log_sum_exp(z)`` by 0 and ``|z|^2 / 4`` (its Hessian is at most I/2), ``logistic(z)`` by 0 and ``z^2 / 8``, ``huber(z)``
by 0 and ``z^2``, others by their second derivative on the range of z. Sums, means and nonnegative factors carry over. A
factor that moves with x is replaced by a parameter for its least or greatest value on X.

What remains is an ordinary expression with a constant Hessian, which compiles, averages over data and multiplies
vectors like any other, without a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.expressions.expression import Expression

from hierfl.analysis.enclosure import NOTHING_KNOWN, Known, enclose, exponent_of
from hierfl.analysis.hoist import copy_with, hoist
from hierfl.analysis.intervals import Interval
from hierfl.language.calculus.algebra import inverse, minus, plus, times, vanishes
from hierfl.language.expectation import SampleAverage, total
from hierfl.language.function import UserAtom
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample

_PRODUCTS = (MulExpression, multiply, DivExpression, cp.kron, cp.conv, cp.convolve)


@dataclass(frozen=True)
class End:
    """The least or greatest value that a factor takes on X."""

    factor: Expression
    greatest: bool

    def value(self, known: Known) -> np.ndarray:
        """That value, given bounds on x and on a party's data."""
        interval = enclose(self.factor, known)
        return interval.hi if self.greatest else interval.lo


@dataclass(frozen=True)
class CurvatureBounds:
    """``Hessian of lower <= Hessian of the expression <= Hessian of upper``, in the kept variables.

    Attributes
    ----------
    lower, upper
        Quadratic in the kept variables with Hessians that no upper variable moves; None where there is no bound.
    ends
        Parameters in them that stand for a factor's least or greatest value on X.
    notes
        Which atoms stand in the way of a bound, or were taken at the user's word.
    """

    lower: Expression | None
    upper: Expression | None
    ends: dict[cp.Parameter, End]
    notes: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether both bounds are the Hessian itself: the expression is quadratic, and x does not move its Hessian."""
        return self.lower is self.upper and not self.ends


def curvature_bounds(
    expression: Expression, keep: Sequence[cp.Variable], known: Known = NOTHING_KNOWN
) -> CurvatureBounds:
    """Quadratic bounds of an expression's Hessian in the kept variables.

    Parameters
    ----------
    expression
        A scalar expression; convex, concave, or a sum of terms of which each is either.
    keep
        The variables of the Hessian; all other variables move freely within ``known``.
    known
        Bounds by leaf id, also of samples, parameters and kept variables.
    """
    search = _Bounding(tuple(keep), known)
    lower, upper = search.bound(expression, upper=False), search.bound(expression, upper=True)
    return CurvatureBounds(lower, upper, search.ends, tuple(dict.fromkeys(search.notes)))


def is_quadratic(expression: Any) -> bool:
    """Whether an expression is quadratic in its variables; CVXPY counts piecewise ones such as ``huber`` as well."""

    def pieces(node: Any) -> bool:
        return bool(node.variables()) and (isinstance(node, cp.huber) or any(map(pieces, node.args)))

    return bool(expression.is_quadratic()) and not pieces(expression)


def moves_slopes(node: Any, kept: set[int]) -> bool:
    """Whether other variables enter the coefficients of the kept ones (and not only what is added to them)."""
    if not any(v.id in kept for v in node.variables()):
        return False
    others = [argument for argument in node.args if not any(v.id in kept for v in argument.variables())]
    mixes = isinstance(node, (*_PRODUCTS, cp.quad_over_lin, cp.QuadForm)) or not isinstance(node, AffAtom)
    if mixes and any(v.id not in kept for other in others for v in other.variables()):
        return True
    return any(moves_slopes(argument, kept) for argument in node.args)


def averaged(node: SampleAverage, inside: Expression) -> Expression:
    """The mean or total that the node takes, of another expression; the mean of what no sample changes is itself."""
    if any(isinstance(p, Sample) for p in inside.parameters()):
        return type(node)(inside)
    if not isinstance(node, total):
        return inside
    sample = next(p for p in node.per_sample.parameters() if isinstance(p, Sample))
    return total(inside + 0 * cp.sum(sample))


@dataclass
class _Bounding:
    keep: tuple[cp.Variable, ...]
    known: Known
    ends: dict[cp.Parameter, End] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _views: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def bound(self, node: Any, upper: bool) -> Expression | None:
        """A quadratic of the node's shape with a Hessian on that side of the node's, entry by entry."""
        if not self._has(node) or self._view(node).is_affine():
            return _zeros(node)
        if is_quadratic(self._view(node)) and not self._moved(node):
            return node
        for kinds, rule in _RULES:
            if isinstance(node, kinds):
                noted = len(self.notes)
                found: Expression | None = rule(self, node, upper)
                return self._known_side(node, upper, len(self.notes) > noted) if found is None else found
        if isinstance(node, AffAtom) and all(node.is_incr(k) for k in range(len(node.args))):
            return self._mapped(node, upper)
        second = _second_derivative(node, self.known) if len(node.args) == 1 else None
        if second is not None and self._view(node.args[0]).is_affine() and not self._moved(node.args[0]):
            end = second.hi if upper else second.lo
            if np.isfinite(end).all():
                return times(cp.Constant(0.5 * end), cp.square(node.args[0]))
        return self._known_side(node, upper)

    def _known_side(self, node: Any, upper: bool, explained: bool = False) -> Expression | None:
        """Zero on the side that convexity gives, nothing on the other."""
        view = self._view(node)
        if view.is_concave() if upper else view.is_convex():
            if isinstance(node, UserAtom):
                self.notes.append(f"{expression_text(node)} is convex as asserted by the user")
            return _zeros(node)
        if not explained:
            self.notes.append(f"no bound on the second derivative of {expression_text(node)}")
        return None

    def _view(self, node: Any) -> Any:
        """The node with all but the kept variables fixed, as CVXPY sees it."""
        if id(node) not in self._views:
            self._views[id(node)] = (node, hoist([node], self.keep, self.known).expressions[0])
        return self._views[id(node)][1]

    def _has(self, node: Any) -> bool:
        kept = {v.id for v in self.keep}
        return any(v.id in kept for v in node.variables())

    def _moved(self, node: Any) -> bool:
        return moves_slopes(node, {v.id for v in self.keep})

    def _mapped(self, node: Any, upper: bool) -> Expression | None:
        """An affine map with nonnegative coefficients, of the arguments' bounds."""
        parts = [self.bound(argument, upper) for argument in node.args]
        if any(part is None for part in parts):
            return None
        if all(vanishes(part) for part in parts):
            return _zeros(node)
        replaced = {id(old): new for old, new in zip(node.args, parts)}
        copied: Expression = copy_with(node, lambda argument: replaced[id(argument)])
        return copied

    def scaled(
        self, node: Any, factor: Any, part: Any, upper: bool, join: Callable[[Any, Any], Any]
    ) -> Expression | None:
        """``join(factor, part)`` for a factor without kept variables."""
        range_of = enclose(factor, self.known)
        if (range_of.hi <= 0).all():
            found = self.scaled(node, minus(factor), part, not upper, join)
            return None if found is None else minus(found)
        if not (range_of.lo >= 0).all():
            return None
        inside = self.bound(part, upper)
        if inside is None or vanishes(inside):
            return None if inside is None else _zeros(node)
        if factor.variables():
            view = self._view(part)
            if not (view.is_convex() or view.is_concave()):
                return None
            greatest = upper if view.is_convex() else not upper
            if not np.isfinite(range_of.hi if greatest else range_of.lo).all():
                return None
            parameter = cp.Parameter(factor.shape, name=f"{'max' if greatest else 'min'}({expression_text(factor)})")
            self.ends[parameter] = End(factor, greatest)
            factor = parameter
        joined: Expression = join(factor, inside)
        return joined


def _zeros(node: Any) -> Expression:
    return cp.Constant(np.zeros(node.shape))


def _add(search: _Bounding, node: Any, upper: bool) -> Expression | None:
    parts = [search.bound(argument, upper) for argument in node.args]
    if any(part is None for part in parts):
        return None
    return plus(*(part for part in parts if part is not None), zero=_zeros(node))


def _negate(search: _Bounding, node: Any, upper: bool) -> Expression | None:
    found = search.bound(node.args[0], not upper)
    return None if found is None else minus(found)


def _multiply(search: _Bounding, node: Any, upper: bool) -> Expression | None:
    left, right = node.args
    if search._has(left) and search._has(right):
        return None
    factor, part = (right, left) if search._has(left) else (left, right)
    return search.scaled(node, factor, part, upper, cp.multiply)


def _divide(search: _Bounding, node: Any, upper: bool) -> Expression | None:
    above, below = node.args
    return None if search._has(below) else search.scaled(node, inverse(below), above, upper, cp.multiply)


def _matmul(search: _Bounding, node: Any, upper: bool) -> Expression | None:
    left, right = node.args
    if search._has(left) and search._has(right):
        return None
    if search._has(left):
        return search.scaled(node, right, left, upper, lambda factor, part: part @ factor)
    return search.scaled(node, left, right, upper, lambda factor, part: factor @ part)


def _average(search: _Bounding, node: Any, upper: bool) -> Expression | None:
    inside = search.bound(node.per_sample, upper)
    if inside is None or vanishes(inside):
        return None if inside is None else _zeros(node)
    return averaged(node, inside)


def _square(search: _Bounding, node: Any, upper: bool) -> Expression | None:
    """A square whose argument's slope moves with x: ``(c w + d)^2`` curves as ``c^2 w^2``."""
    if exponent_of(node) != 2:
        second = _second_derivative(node, search.known)
        plain = search._view(node.args[0]).is_affine() and not search._moved(node.args[0])
        end = None if second is None or not plain else second.hi if upper else second.lo
        if end is None or not np.isfinite(end).all():
            return None
        return times(cp.Constant(0.5 * end), cp.square(node.args[0]))
    found = _factored(search, node.args[0])
    return None if found is None else search.bound(cp.multiply(cp.square(found[0]), cp.square(found[1])), upper)


def _quad_over_lin(search: _Bounding, node: Any, upper: bool) -> Expression | None:
    above, below = node.args
    if search._has(below) or node.axis is not None:
        return None
    if not search._moved(above):
        return search.bound(cp.multiply(inverse(below), cp.sum_squares(above)), upper)
    found = _factored(search, above)
    if found is None:
        return None
    squares = cp.sum(cp.multiply(cp.square(found[0]), cp.square(found[1])))
    return search.bound(squares if vanishes(below - 1) else cp.multiply(inverse(below), squares), upper)


def _factored(search: _Bounding, node: Any) -> tuple[Any, Any] | None:
    """(c, w) where the part with kept variables is c * w and w's slopes are fixed."""
    if isinstance(node, AddExpression):
        held = [argument for argument in node.args if search._has(argument)]
        return _factored(search, held[0]) if len(held) == 1 and held[0].shape == node.shape else None
    if isinstance(node, NegExpression):
        return _factored(search, node.args[0])
    if isinstance(node, (multiply, DivExpression)):
        left, right = node.args
        if isinstance(node, DivExpression) and not search._has(right):
            return inverse(right), left
        if isinstance(node, multiply) and not (search._has(left) and search._has(right)):
            return (right, left) if search._has(left) else (left, right)
    return None


def _log_sum_exp(search: _Bounding, node: Any, upper: bool) -> Expression | None:
    (argument,) = node.args
    if not upper or not search._view(argument).is_affine() or search._moved(argument):
        return None
    return 0.25 * cp.sum(cp.square(argument), axis=node.axis, keepdims=node.keepdims)


_RULES: tuple[tuple[Any, Callable[[_Bounding, Any, bool], Expression | None]], ...] = (
    (AddExpression, _add),
    (NegExpression, _negate),
    (multiply, _multiply),
    (DivExpression, _divide),
    (MulExpression, _matmul),
    (SampleAverage, _average),
    ((Power, PowerApprox), _square),
    (cp.quad_over_lin, _quad_over_lin),
    (cp.log_sum_exp, _log_sum_exp),
)


def _second_derivative(node: Any, known: Known) -> Interval | None:
    """The range of an elementwise atom's second derivative; None for atoms without a rule."""
    for kinds, rule in _SECOND.items():
        if isinstance(node, kinds):
            with np.errstate(all="ignore"):
                found = rule(node, enclose(node.args[0], known))
            return Interval(np.nan_to_num(found.lo, nan=-np.inf), np.nan_to_num(found.hi, nan=np.inf)).widened(1e-14)
    return None


def _of_exp(node: Any, z: Interval) -> Interval:
    return Interval(np.exp(z.lo), np.exp(z.hi))


def _of_logistic(node: Any, z: Interval) -> Interval:
    def slope(t: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(-t) / (1 + np.exp(-t)) ** 2)

    return Interval(slope(np.minimum(z.magnitude, 700.0)) * (z.magnitude < 700), slope(z.mignitude))


def _of_huber(node: Any, z: Interval) -> Interval:
    inside = z.magnitude <= enclose(node.M, NOTHING_KNOWN).lo
    return Interval(np.where(inside, 2.0, 0.0), np.full(z.shape, 2.0))


def _of_log(node: Any, z: Interval) -> Interval:
    low = np.maximum(z.lo, 0.0)
    return Interval(-1 / low**2, -1 / z.hi**2)


def _of_entropy(node: Any, z: Interval) -> Interval:
    return Interval(-1 / np.maximum(z.lo, 0.0), -1 / z.hi)


def _of_power(node: Any, z: Interval) -> Interval:
    exponent = exponent_of(node)
    if exponent is None:
        return Interval.free(z.shape)
    even = exponent % 2 == 0 and exponent > 0
    sizes = (z.mignitude, z.magnitude) if even else (np.maximum(z.lo, 0.0), np.maximum(z.hi, 0.0))
    ends = [exponent * (exponent - 1) * size ** (exponent - 2) for size in sizes]
    return Interval(np.minimum(*ends), np.maximum(*ends))


_SECOND: dict[Any, Callable[[Any, Interval], Interval]] = {
    cp.exp: _of_exp,
    cp.logistic: _of_logistic,
    cp.huber: _of_huber,
    cp.log: _of_log,
    cp.entr: _of_entropy,
    (Power, PowerApprox): _of_power,
}
