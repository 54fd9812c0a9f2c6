"""Curvature from the tree: two expressions, quadratic in y, whose Hessians bound that of a convex (concave) one.

Each atom over an affine map z of y is replaced by the quadratic that its second derivative allows: a square by itself,
``log_sum_exp(z)`` by 0 and ``|z|^2 / 4`` (its Hessian is at most I/2), ``logistic(z)`` by 0 and ``z^2 / 8``, ``huber(z)``
by 0 and ``z^2``, others by their second derivative on the range of z. Sums, means and nonnegative factors carry over. A
factor that moves with x is replaced by a parameter for its least or greatest value on X.

What remains is an ordinary expression with a constant Hessian, which compiles, averages over data and multiplies
vectors like any other, without a matrix.

A quadratic has an entrywise majorant, the same tree with every coefficient replaced by its absolute value: its Hessian N satisfies
``|H| <= N`` entry by entry, so that the spectral norm of H is at most the Perron root of N, and ``max_i (N v)_i / v_i`` bounds that
from above for every positive v (Collatz and Wielandt, 1942-1950).

Safe ends of the spectrum of such a Hessian, known through its products with vectors.
Below a size limit the matrix is formed and its computed eigenvalues are moved outward by a bound on the rounding; a
diagonal map is read off. Larger maps get an upper bound from a nonnegative majorant (Collatz and Wielandt). Nothing here
is an estimate: the lower end is never above, the upper end never below the true one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.expressions.expression import Expression

from hierfl.analysis.enclosure import NOTHING_KNOWN, Known, enclose, rules_hold, second_derivative
from hierfl.analysis.hoist import copy_with, hoist
from hierfl.atoms.algebra import depends, minus, nodes_of, times, vanishes, zeros
from hierfl.atoms.intervals import EPS, Interval
from hierfl.atoms.table import row_of
from hierfl.language.calculus.derivative import averaged
from hierfl.language.expectation import SampleAverage
from hierfl.language.function import UserAtom
from hierfl.language.printing.text import expression_text


def majorant(expression: Any, keep: Sequence[cp.Variable]) -> Expression | None:
    """The majorant of an expression that is quadratic in the kept variables; None for a tree without a rule.

    What does not involve the kept variables counts as 0.
    """
    kept = {v.id for v in keep}

    def has(node: Any) -> bool:
        return any(v.id in kept for v in node.variables())

    def visit(node: Any) -> Expression | None:
        if isinstance(node, cp.Variable) and node.id in kept:
            return node
        if not has(node):
            return zeros(node)
        if isinstance(node, SampleAverage):
            inside = visit(node.per_sample)
            return None if inside is None else averaged(node, inside)
        rule, parts = row_of(node).majorant, [visit(argument) for argument in node.args]
        if any(part is None for part in parts):
            return None
        if rule is not None:
            own = [part if has(argument) else None for part, argument in zip(parts, node.args)]
            return rule(node, own, lambda arguments: _over(node, arguments))
        if isinstance(node, AffAtom) and all(node.is_incr(k) for k in range(len(node.args))):
            return _over(node, parts)
        return None

    return visit(expression)


def _over(node: Any, arguments: Sequence[Any]) -> Expression:
    replaced = {id(old): new for old, new in zip(node.args, arguments)}
    return copy_with(node, lambda argument: replaced[id(argument)])


@dataclass(frozen=True)
class End:
    """The least or greatest value that a factor takes on X."""

    factor: Expression
    greatest: bool

    def value(self, known: Known) -> np.ndarray:
        interval = enclose(self.factor, known)
        return interval.hi if self.greatest else interval.lo


@dataclass(frozen=True)
class CurvatureBounds:
    """``Hessian of lower <= Hessian of the expression <= Hessian of upper``, in the kept variables.

    ``lower`` and ``upper`` are quadratic in these with Hessians that no upper variable moves, None where there is no bound; ``ends`` parameters in
    them that stand for a factor's least or greatest value on X; ``notes`` say which atoms stand in the way, or were taken at the user's word.
    """

    lower: Expression | None
    upper: Expression | None
    ends: dict[cp.Parameter, End]
    notes: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether both bounds are the Hessian itself: the expression is quadratic, and x does not move its Hessian."""
        return self.lower is self.upper and not self.ends


def curvature_bounds(expression: Expression, keep: Sequence[cp.Variable], known: Known = NOTHING_KNOWN) -> CurvatureBounds:
    """Quadratic bounds of a scalar expression's Hessian in the variables to ``keep``; all others move freely within what is ``known``, by leaf id.

    The expression is convex, concave, or a sum of terms of which each is either.
    """
    search = _Bounding(tuple(keep), known)
    lower, upper = search.bound(expression, upper=False), search.bound(expression, upper=True)
    return CurvatureBounds(lower, upper, search.ends, tuple(dict.fromkeys(search.notes)))


def is_quadratic(expression: Any) -> bool:
    """Whether an expression is quadratic in its variables; CVXPY counts piecewise ones such as ``huber`` as well."""
    if not expression.is_quadratic() or _degree(expression) > 2:
        return False
    rules = ((node, row_of(node).switches) for node in nodes_of(expression) if node.variables())
    return not any(make is not None and make(node) for node, make in rules)


def _degree(node: Any) -> int:
    """The degree of a polynomial that CVXPY calls quadratic: it takes products of squares for such as well."""
    if not node.variables():
        return 0
    degrees = [_degree(argument) for argument in node.args]
    if row_of(node).product:
        return sum(degrees)
    return max(degrees, default=1) * (1 if isinstance(node, AffAtom) or not node.args else 2)


def moves_slopes(node: Any, kept: set[int]) -> bool:
    """Whether other variables enter the coefficients of the kept ones (and not only what is added to them)."""
    mixing = (part for part in nodes_of(node) if part.args and depends(part, kept) and (row_of(part).product or not isinstance(part, AffAtom)))
    return any(argument.variables() and not depends(argument, kept) for part in mixing for argument in part.args)


@dataclass
class _Bounding:
    keep: tuple[cp.Variable, ...]
    known: Known
    ends: dict[cp.Parameter, End] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _views: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def bound(self, node: Any, upper: bool) -> Expression | None:
        """A quadratic of the node's shape with a Hessian on that side of the node's, entry by entry."""
        if not self.has_kept(node) or self.is_affine(node):
            return zeros(node)
        if is_quadratic(self._view(node)) and not self.is_moved(node):
            return node
        if isinstance(node, SampleAverage):
            return self._averaged(node, upper)
        noted = len(self.notes)
        rule = row_of(node).curvature
        if rule is not None:
            bound = rule(self, node, upper)
        elif isinstance(node, AffAtom) and all(node.is_incr(k) for k in range(len(node.args))):
            return self._mapped(node, upper)
        else:
            bound = self.by_second_derivative(node, upper)
        return self._known_side(node, upper, len(self.notes) > noted) if bound is None else bound

    def by_second_derivative(self, node: Any, upper: bool) -> Expression | None:
        """Half the second derivative's end times the square, for an elementwise atom over an affine map of fixed slopes."""
        if len(node.args) != 1 or not self.is_affine(node.args[0]) or self.is_moved(node.args[0]):
            return None
        second = second_derivative(node, enclose(node.args[0], self.known))
        end = None if second is None else second.hi if upper else second.lo
        if end is None or not np.isfinite(end).all():
            return None
        return times(cp.Constant(0.5 * end), cp.square(node.args[0]))

    def _averaged(self, node: SampleAverage, upper: bool) -> Expression | None:
        noted = len(self.notes)
        inside = self.bound(node.per_sample, upper)
        if inside is None:
            return self._known_side(node, upper, len(self.notes) > noted)
        return zeros(node) if vanishes(inside) else averaged(node, inside)

    def _known_side(self, node: Any, upper: bool, explained: bool = False) -> Expression | None:
        """Zero on the side that convexity gives, nothing on the other."""
        view = self._view(node)
        if (view.is_concave() if upper else view.is_convex()) and rules_hold(node, self.known):
            if isinstance(node, UserAtom):
                self.notes.append(f"{expression_text(node)} is convex as asserted by the user")
            return zeros(node)
        if not explained:
            self.notes.append(f"no bound on the second derivative of {expression_text(node)}")
        return None

    def _view(self, node: Any) -> Any:
        """The node with all but the kept variables fixed, as CVXPY sees it."""
        if id(node) not in self._views:
            self._views[id(node)] = (node, hoist([node], self.keep, self.known).expressions[0])
        return self._views[id(node)][1]

    def range_of(self, node: Any) -> Interval:
        return enclose(node, self.known)

    def is_affine(self, node: Any) -> bool:
        return bool(self._view(node).is_affine())

    def has_kept(self, node: Any) -> bool:
        kept = {v.id for v in self.keep}
        return any(v.id in kept for v in node.variables())

    def is_moved(self, node: Any) -> bool:
        return moves_slopes(node, {v.id for v in self.keep})

    def _mapped(self, node: Any, upper: bool) -> Expression | None:
        """An affine map with nonnegative coefficients, of the arguments' bounds."""
        parts = [self.bound(argument, upper) for argument in node.args]
        if any(part is None for part in parts):
            return None
        return zeros(node) if all(vanishes(part) for part in parts) else _over(node, parts)

    def scaled(self, node: Any, factor: Any, part: Any, upper: bool, join: Callable[[Any, Any], Any]) -> Expression | None:
        """``join(factor, part)`` for a factor without kept variables."""
        range_of = enclose(factor, self.known)
        if not (range_of.lo >= 0).all():
            opposite = self.scaled(node, minus(factor), part, not upper, join) if (range_of.hi <= 0).all() else None
            return None if opposite is None else minus(opposite)
        inside = self.bound(part, upper)
        if inside is None or vanishes(inside):
            return None if inside is None else zeros(node)
        if factor.variables():
            view = self._view(part)
            if not (view.is_convex() or view.is_concave()) or not rules_hold(part, self.known):
                return None
            greatest = upper if view.is_convex() else not upper
            if not np.isfinite(range_of.hi if greatest else range_of.lo).all():
                return None
            parameter = cp.Parameter(factor.shape, name=f"{'max' if greatest else 'min'}({expression_text(factor)})")
            self.ends[parameter] = End(factor, greatest)
            factor = parameter
        return join(factor, inside)


DENSE_LIMIT = 1200
_PERRON_STEPS = 40

Products = Callable[[np.ndarray], np.ndarray]  # (k, size) vectors -> (k, size) products


class Edge(NamedTuple):
    """One end of a spectrum, and by which rule."""

    value: float
    rule: str


def smallest(products: Products, size: int, terms: int = 1) -> Edge | None:
    """A lower bound on the smallest eigenvalue; None where the map is large and not diagonal.

    ``products`` applies the map, of dimension ``size``, to the rows of an array; ``terms`` (rows of data) are added up in one, for the rounding.
    """
    diagonal = _diagonal(products, size)
    if diagonal is not None:
        return Edge(_down(float(diagonal.min()), diagonal, size, terms), "diagonal Hessian")
    if size > DENSE_LIMIT:
        return None
    values = np.linalg.eigvalsh(_matrix(products, size))
    return Edge(_down(float(values[0]), values, size, terms), "smallest eigenvalue, less its rounding")


def largest(products: Products, size: int, terms: int = 1, dominating: Products | None = None) -> Edge | None:
    """An upper bound on the largest eigenvalue (for symmetric maps); arguments as for :func:`smallest`.

    ``dominating`` are the products of a map whose matrix is an entrywise bound on the absolute values of this one's.
    """
    diagonal = _diagonal(products, size)
    if diagonal is not None:
        return Edge(-_down(-float(diagonal.max()), diagonal, size, terms), "diagonal Hessian")
    if size <= DENSE_LIMIT:
        values = np.linalg.eigvalsh(_matrix(products, size))
        return Edge(-_down(-float(values[-1]), values, size, terms), "largest eigenvalue, plus its rounding")
    return None if dominating is None else Edge(perron(dominating, size, terms), "Perron root of an entrywise bound")


def perron(products: Products, size: int, terms: int = 1) -> float:
    """An upper bound on the spectral radius of a nonnegative matrix: the least ``max_i (N v)_i / v_i`` of a power method."""
    vector, best = np.ones(size), np.inf
    for _ in range(_PERRON_STEPS):
        image = np.maximum(products(vector[None])[0], 0.0)
        if not image.any():
            return 0.0
        bound = float(np.max(image / vector))
        if bound > 0.999 * best:
            best = min(best, bound)
            break
        best = bound
        vector = np.maximum(image / image.max(), 1e-12)
    return best * (1.0 + (64 + 4 * (size + terms)) * EPS)


def _matrix(products: Products, size: int) -> np.ndarray:
    matrix = products(np.eye(size))
    return 0.5 * (matrix + matrix.T)


def _diagonal(products: Products, size: int) -> np.ndarray | None:
    """The diagonal of a map that random products show to be diagonal (others pass with probability zero)."""
    probes = np.concatenate([np.ones((1, size)), np.random.default_rng(0).standard_normal((2, size))])
    images = products(probes)
    if not np.isfinite(images).all():
        return None
    negligible = 64 * EPS * np.abs(images[0])  # beside the diagonal entries of their own row, not the largest of all
    return images[0] if (np.abs(images[1:] - images[0] * probes[1:]) <= negligible).all() else None


def _down(value: float, values: np.ndarray, size: int, terms: int) -> float:
    """A computed eigenvalue less a bound on its rounding."""
    return value - (64 + 8 * size + 4 * np.sqrt(terms)) * EPS * float(np.abs(values).max(initial=0.0))
