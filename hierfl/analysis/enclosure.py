"""Intervals through expressions: bounds on every value that an expression can take, given bounds on its leaves.

An atom that CVXPY knows to be monotone in an argument is evaluated at that argument's ends, one that depends on magnitudes
alone (norms, even powers) at the smallest and largest of these; products and quotients have rules of their own. What
no rule covers is unbounded, up to the sign that CVXPY knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.affine.concatenate import Concatenate
from cvxpy.atoms.affine.hstack import Hstack
from cvxpy.atoms.affine.index import index, special_index
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.reshape import reshape
from cvxpy.atoms.affine.transpose import transpose
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.vstack import Vstack
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.constraints import PSD, Equality, Inequality, Zero
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf

from hierfl.analysis.intervals import EPS, Interval, matmul
from hierfl.analysis.intervals import total as interval_sum
from hierfl.language.calculus.jax_derivative import Pullback
from hierfl.language.expectation import SampleAverage, total

Known = Mapping[int, Interval]
NOTHING_KNOWN: Known = {}

LAYOUT = (Promote, broadcast_to, Concatenate, Hstack, Vstack, index, special_index, reshape, transpose, Wrap)
EVEN_NORMS = (cp.abs, cp.norm1, cp.norm_inf, Pnorm, PnormApprox, cp.huber)
_Rule = Callable[[Any, list[Interval]], Interval]


def enclose(expression: Any, known: Known = NOTHING_KNOWN) -> Interval:
    """An interval that contains the expression's values, of its shape.

    Parameters
    ----------
    expression
        A CVXPY expression; ``E`` is enclosed as its per-sample expression is.
    known
        Bounds by leaf id; other leaves are bounded by their attributes alone, never by a present ``.value``.
    """
    return Enclosure(known)(expression)


class Enclosure:
    """Enclosures of expressions that share subtrees, and whether each is defined at every point of the known bounds.

    CVXPY's sign of an atom holds on the atom's domain: ``power(x, 3)`` is nonnegative for it, since x >= 0 is implied. We
    evaluate it at every x, so that the sign of an atom is believed only where the bounds keep its arguments in the domain.
    """

    def __init__(self, known: Known = NOTHING_KNOWN) -> None:
        self._known = known
        self._memo: dict[int, Interval] = {}
        self._open: set[int] = set()
        self._kept: list[Any] = []  # ids stay unique while the nodes live

    def __call__(self, node: Any) -> Interval:
        """An interval that contains the node's values."""
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
        found = _atom(node, [self(a) for a in node.args])
        if any(id(a) in self._open for a in node.args) or not all(self.holds(c) for c in own_domain(node)):
            self._open.add(id(node))
            return found
        return found.meet(_declared_sign(node))

    def holds(self, constraint: Any) -> bool:
        """Whether a constraint of an atom's domain is implied by the bounds."""
        if isinstance(constraint, Inequality):
            low, high = constraint.args
            return bool((self(low).hi <= self(high).lo).all())
        if isinstance(constraint, PSD):
            return any(part.is_psd() for part in (constraint.args[0], *constraint.args[0].args))
        return isinstance(constraint, (Equality, Zero))  # symmetry, which costs a sign nothing


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
    found = known.get(leaf.id, Interval.free(leaf.shape)).meet(_declared_sign(leaf))
    bounds = leaf.attributes.get("bounds")
    if bounds is not None:
        low, high = (
            np.full(leaf.shape, end) if isinstance(bound, Expression) else np.broadcast_to(bound, leaf.shape)
            for bound, end in zip(bounds, (-np.inf, np.inf))
        )
        found = found.meet(Interval(np.asarray(low, dtype=float), np.asarray(high, dtype=float)))
    return found


def _declared_sign(node: Any) -> Interval:
    low = 0.0 if node.is_nonneg() else -np.inf
    high = 0.0 if node.is_nonpos() else np.inf
    return Interval(np.full(node.shape, low), np.full(node.shape, high))


def _atom(node: Any, arguments: list[Interval]) -> Interval:
    for kinds, rule in _RULES:
        if isinstance(node, kinds):
            return rule(node, arguments)
    return _monotone(node, arguments)


def _monotone(node: Any, arguments: list[Interval]) -> Interval:
    """Each argument at the end where the atom is least (greatest); only for atoms monotone in all of them."""
    low, high = [], []
    for place, argument in enumerate(arguments):
        if node.is_incr(place):
            low.append(argument.lo)
            high.append(argument.hi)
        elif node.is_decr(place):
            low.append(argument.hi)
            high.append(argument.lo)
        else:
            return Interval.free(node.shape)
    found = _bounded(_value(node, low), _value(node, high))
    if isinstance(node, LAYOUT):
        return found
    count = sum(argument.lo.size for argument in arguments)
    if isinstance(node, (AffAtom, cp.log_sum_exp)):  # sums of mixed signs lose what their parts' sizes say
        sizes = [argument.magnitude for argument in arguments]
        if isinstance(node, cp.log_sum_exp):
            slack = np.asarray(1.0 + max(float(np.max(s)) for s in sizes))
        else:
            slack = _value(node, sizes) if all(node.is_incr(k) for k in range(len(sizes))) else np.asarray(np.inf)
        exact = (found.lo == 0) & (_value(node, [np.abs(a) for a in low]) == 0)
        extra = 4 * (count + 2) * EPS * np.where(np.isfinite(slack), slack, 0.0)
        return Interval(np.where(exact, found.lo, found.lo - extra), found.hi + extra)
    return found.widened(4 * (count + 8) * EPS)


def _value(node: Any, values: list[np.ndarray]) -> np.ndarray:
    """The atom at these arguments, dense; NaN where it is not defined."""
    result = node.numeric([np.asarray(value, dtype=float) for value in values])
    dense = np.asarray(result.toarray() if hasattr(result, "toarray") else result, dtype=float)
    return dense.reshape(node.shape)


def _bounded(low: np.ndarray, high: np.ndarray) -> Interval:
    return Interval(np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high))


def _add(node: Any, arguments: list[Interval]) -> Interval:
    return interval_sum([_spread(argument, node.shape) for argument in arguments])


def _spread(interval: Interval, shape: tuple[int, ...]) -> Interval:
    return Interval(np.broadcast_to(interval.lo, shape), np.broadcast_to(interval.hi, shape))


def _negate(node: Any, arguments: list[Interval]) -> Interval:
    return -arguments[0]


def _multiply(node: Any, arguments: list[Interval]) -> Interval:
    if node.args[0] is node.args[1]:
        return _even(arguments[0], lambda size: size * size)
    return _spread(arguments[0] * arguments[1], node.shape)


def _divide(node: Any, arguments: list[Interval]) -> Interval:
    return _spread(arguments[0] * arguments[1].inverse(), node.shape)


def _matmul(node: Any, arguments: list[Interval]) -> Interval:
    left, right = arguments
    if left.lo.ndim == 0 or right.lo.ndim == 0:
        return _spread(left * right, node.shape)
    found = matmul(left, right)
    return Interval(found.lo.reshape(node.shape), found.hi.reshape(node.shape))


def _even(argument: Interval, function: Callable[[np.ndarray], np.ndarray], exact: bool = False) -> Interval:
    """A function of magnitudes that grows with each of them."""
    found = _bounded(function(argument.mignitude), function(argument.magnitude))
    return found if exact else found.widened(4 * (8 + argument.lo.size // max(found.lo.size, 1)) * EPS)


def _norm(node: Any, arguments: list[Interval]) -> Interval:
    if isinstance(node, (Pnorm, PnormApprox)) and float(node.p) < 1:
        return _monotone(node, arguments)
    return _even(arguments[0], lambda size: _value(node, [size]), isinstance(node, (cp.abs, cp.norm_inf)))


def _quad_over_lin(node: Any, arguments: list[Interval]) -> Interval:
    above, below = arguments
    high_below = np.maximum(below.hi, 0.0)
    low_below = np.maximum(below.lo, 0.0)
    low, high = _value(node, [above.mignitude, high_below]), _value(node, [above.magnitude, low_below])
    return _bounded(low, np.where((low_below > 0) & np.isfinite(high), high, np.inf)).widened(
        4 * (above.lo.size + 8) * EPS
    )


def _power(node: Any, arguments: list[Interval]) -> Interval:
    (base,) = arguments
    exponent = exponent_of(node)
    if exponent is None:
        return Interval.free(node.shape)
    if exponent == 0:
        return Interval.of(np.ones(node.shape))
    if exponent == 1:
        return base
    if exponent > 0 and exponent % 2 == 0:
        return _even(base, lambda size: size**exponent)
    if exponent % 2 == 1 and exponent > 0 and (base.lo < 0).any():  # an odd power; CVXPY's domain is the positive part
        return _bounded(base.lo**exponent, base.hi**exponent).widened(32 * EPS)
    return _power_of(base, exponent)


def exponent_of(node: Any) -> float | None:
    """The exponent of a power, if it is a number."""
    exponent = getattr(node.p, "value", node.p)
    return None if exponent is None or isinstance(node.p, cp.Parameter) else float(np.asarray(exponent))


def _quad_form(node: Any, arguments: list[Interval]) -> Interval:
    vector, matrix = arguments
    flat = Interval(vector.lo.ravel(), vector.hi.ravel())
    found = matmul(flat, matmul(matrix, flat))
    return Interval(found.lo.reshape(node.shape), found.hi.reshape(node.shape))


def _average(node: Any, arguments: list[Interval]) -> Interval:
    """A mean lies in the range of what it averages; a total of nonnegative numbers is nonnegative."""
    (inside,) = arguments
    if not isinstance(node, total):
        return inside
    return Interval(np.where(inside.lo >= 0, 0.0, -np.inf), np.where(inside.hi <= 0, 0.0, np.inf))


def _pullback(node: Any, arguments: list[Interval]) -> Interval:
    """Gradients (Clarke's, at kinks) of atoms whose slopes are bounded whatever the point is, and of powers."""
    adjoint, atom = arguments[0], node.node
    if isinstance(atom, (Power, PowerApprox)):
        exponent = exponent_of(atom)
        if exponent is None:
            return Interval.free(node.shape)
        slope = _power_of(arguments[1], exponent - 1) * Interval.of(exponent)
        return _spread(adjoint * slope, node.shape)
    if isinstance(atom, AffAtom) and len(node.args) == 1:
        return _transposed_map(atom, node.index, adjoint)
    norm = isinstance(atom, (Pnorm, PnormApprox)) and float(atom.p) >= 1
    for applies, low in ((isinstance(atom, _RISING), 0.0), (norm or isinstance(atom, _UNIT_SLOPES), -1.0)):
        if applies:
            if adjoint.lo.size > 1 and adjoint.shape != node.shape:
                adjoint = Interval(*(np.full(node.shape, end) for end in (adjoint.lo.min(), adjoint.hi.max())))
            return _spread(adjoint * Interval(np.asarray(low), np.asarray(1.0)), node.shape)
    return Interval.free(node.shape)


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
        columns.append(_value(atom, values).ravel())
    found = matmul(Interval.of(np.stack(columns)), Interval(adjoint.lo.ravel(), adjoint.hi.ravel()))
    return Interval(found.lo.reshape(shape), found.hi.reshape(shape))


_MATRIX_LIMIT = 1_000_000
_RISING = (cp.logistic, cp.log_sum_exp, cp.maximum, cp.minimum, cp.max, cp.min)
_UNIT_SLOPES = (cp.abs, cp.norm1, cp.norm_inf)


def _power_of(base: Interval, exponent: float) -> Interval:
    """``base ** exponent`` where the base is nonnegative; unbounded where it may be negative."""
    if (base.lo < 0).any():
        return Interval.free(base.shape)
    ends = base.lo**exponent, base.hi**exponent
    low, high = ends if exponent > 0 else ends[::-1]
    return _bounded(low, high).widened(32 * EPS)


_RULES: tuple[tuple[Any, _Rule], ...] = (
    (AddExpression, _add),
    (NegExpression, _negate),
    (multiply, _multiply),
    (DivExpression, _divide),
    (MulExpression, _matmul),
    ((Power, PowerApprox), _power),
    (cp.quad_over_lin, _quad_over_lin),
    (cp.QuadForm, _quad_form),
    (EVEN_NORMS, _norm),
    (SampleAverage, _average),
    (Pullback, _pullback),
)
