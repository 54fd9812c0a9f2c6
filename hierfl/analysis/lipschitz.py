"""Lipschitz constants on the declared sets: bounds on gradients and on mixed second derivatives, by intervals.

A differentiable function on a convex set is Lipschitz with the largest norm of its gradient there. The gradients are
expressions (``hierfl.language.calculus.derivative``), so that intervals through them bound every value on the boxes that
contain X and Y(x). Infinity says that no bound follows.

Strong monotonicity of a mapping F in y in the same way, from intervals that contain the entries of its Jacobian.
On a convex set F is strongly monotone with the least eigenvalue that the symmetric part of its Jacobian has there. In a game the Hessian of
what a player adds in its own variables alone, such as ``log_sum_exp(y)``, may be bounded as a whole: the quadratics of
``curvature_bounds`` take its place, since what is left out is positive semidefinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.expressions.expression import Expression

from hierfl.analysis.curvature_bounds import End, curvature_bounds
from hierfl.analysis.enclosure import Enclosure, Known, enclose
from hierfl.analysis.hoist import copy_with, instantiate
from hierfl.atoms.algebra import addends, depends, plus
from hierfl.atoms.intervals import EPS, Interval
from hierfl.language.calculus.derivative import averaged, gradient
from hierfl.language.expectation import SampleAverage, averages_of, total
from hierfl.language.function import asserted_convex
from hierfl.language.player import Nash, Player

ROW_LIMIT = 128  # of a Jacobian that is bounded row by row
ENTRY_LIMIT = 4_000_000  # of one that is formed


def one_sample(expression: Any, count: Callable[[total], int]) -> Any:
    """The expression as one sample sees it: ``E`` without its mean, ``total`` times the number of samples ``count(node)``."""
    if isinstance(expression, total):
        return count(expression) * expression.per_sample
    if isinstance(expression, SampleAverage):
        return expression.per_sample
    if not any(True for _ in averages_of(expression)):
        return expression
    return copy_with(expression, lambda argument: one_sample(argument, count))


@dataclass(frozen=True)
class JacobianRows:
    """The Jacobian of a mapping in some variables, row by row as expressions.

    ``ends`` are parameters in it that stand for a factor's least or greatest value.
    """

    rows: tuple[tuple[Expression, ...], ...]
    ends: dict[cp.Parameter, End]

    @classmethod
    def of(cls, mapping: Sequence[Expression], variables: Sequence[cp.Variable], ends: dict[cp.Parameter, End] | None = None) -> JacobianRows:
        rows = [gradient(part, variables, cp.Constant(_unit(part.shape, place))) for part in mapping for place in np.ndindex(part.shape)]
        return cls(tuple(rows), ends or {})

    def enclosed(self, known: Known) -> Interval:
        """A matrix of intervals that contains the Jacobian wherever the leaves are in their bounds."""
        values = {p.id: Interval.of(end.value(known)) for p, end in self.ends.items()}
        enclosure = Enclosure({**known, **values})
        rows = [[enclosure(part) for part in row] for row in self.rows]
        low, high = (
            np.stack([np.concatenate([np.ravel(getattr(part, end)) for part in row]) for row in rows])
            for end in ("lo", "hi")
        )
        return Interval(low, high)


def gradient_bound(expression: Expression, variables: Sequence[cp.Variable], known: Known) -> float:
    """An upper bound on the norm of the gradient in these variables over ``known``; infinity where none follows."""
    wanted = {v.id for v in variables}
    if not depends(expression, wanted):
        return 0.0
    sizes = [enclose(part, known).magnitude.ravel() for part in gradient(expression, variables)]
    return math.hypot(*np.concatenate(sizes)) * (1.0 + 8 * EPS)  # whose squares may overflow, or vanish


def mixed_bound(mapping: Sequence[Expression], outer: Sequence[cp.Variable], known: Known, variables: Sequence[cp.Variable] = ()) -> float:
    """An upper bound on the spectral norm of the mapping's Jacobian in ``outer``; infinity where none follows.

    The mapping are expressions; if ``variables`` are given, it is one scalar's gradient in these.
    """
    wanted = {v.id for v in outer}
    if variables:
        inner = {v.id for v in variables}
        terms = [t for e in mapping for t in addends(e) if depends(t, wanted) and depends(t, inner)]
        if not terms:
            return 0.0
        mapping = gradient(sum(terms[1:], start=terms[0]), variables)
    mapping = [part for part in mapping if depends(part, wanted)]
    if not mapping:
        return 0.0
    if sum(part.size for part in mapping) > ROW_LIMIT:
        moved = [[t for t in addends(part) if depends(t, wanted)] for part in mapping]
        kept = [sum(terms[1:], start=terms[0]) for terms in moved]
        return _affine_bound(kept, outer, known) if all(part.is_affine() for part in kept) else np.inf
    return norm_of(JacobianRows.of(mapping, outer).enclosed(known))


def norm_of(matrix: Interval) -> float:
    """An upper bound on the spectral norm of every matrix between the ends; infinity where they are not finite."""
    if not matrix.is_bounded:
        return float("inf")
    middle = 0.5 * (matrix.lo + matrix.hi)
    spread = np.maximum(matrix.hi - middle, middle - matrix.lo)
    slack = 1.0 + 32 * sum(matrix.shape) * EPS
    signed = np.linalg.norm(middle, 2) + np.linalg.norm(spread, 2)
    return float(min(signed, np.linalg.norm(matrix.magnitude, 2)) * slack)


def _affine_bound(mapping: Sequence[Expression], outer: Sequence[cp.Variable], known: Known) -> float:
    """The same where the mapping is affine in all variables: its Jacobian's columns are the mapping's moves from 0.

    The norm is the spectral one, or Frobenius's, which is no less, where the Jacobian is too large to be formed.
    """
    still = [leaf for part in mapping for leaf in (*part.variables(), *_additive(part))]
    zero = {leaf.id: Interval.of(np.zeros(leaf.shape)) for leaf in still}
    rows, count = sum(part.size for part in mapping), sum(v.size for v in outer)
    formed: list[np.ndarray] | None = [] if rows * count <= ENTRY_LIMIT else None
    spread, squares = 0.0, 0.0
    base = [enclose(part, {**known, **zero}) for part in mapping]
    for variable in outer:
        for place in np.ndindex(variable.shape):
            unit = Interval.of(_unit(variable.shape, place))
            ends = [enclose(part, {**known, **zero, variable.id: unit}) for part in mapping]
            low = np.concatenate([np.ravel(e.lo - b.hi + np.zeros(p.shape)) for e, b, p in zip(ends, base, mapping)])
            high = np.concatenate([np.ravel(e.hi - b.lo + np.zeros(p.shape)) for e, b, p in zip(ends, base, mapping)])
            middle, half = 0.5 * (low + high), 0.5 * (high - low)
            spread, squares = spread + float(half @ half), squares + float(middle @ middle)
            if formed is not None:
                formed.append(middle)
    if not np.isfinite(squares + spread):
        return float("inf")
    norm = np.sqrt(squares) if formed is None else np.linalg.norm(np.stack(formed), 2)
    return float(norm + np.sqrt(spread)) * (1.0 + 32 * (rows + count) * EPS)


def _additive(part: Expression) -> list[cp.Parameter]:
    """The parameters that multiply no variable: the part is affine in them as well, jointly."""
    return [p for p in part.parameters() if instantiate([part], {p: cp.Variable(p.shape)})[0].is_affine()]


def _unit(shape: tuple[int, ...], place: tuple[int, ...]) -> np.ndarray:
    unit = np.zeros(shape)
    unit[place] = 1.0
    return unit


Variables = Sequence[cp.Variable]
SIGNS_LIMIT = 9  # entries of y up to which all signs are tried


@dataclass(frozen=True)
class BoundingJacobians:
    """Jacobians of mappings G and D: F's symmetric part is no less than G's, and F's Jacobian is G's plus a part between 0 and D's.

    ``gap`` is None where there is no such D.
    """

    lower: JacobianRows
    gap: JacobianRows | None


def bounding_jacobians(level: Nash, known: Known) -> BoundingJacobians | None:
    """Those of a game whose players' own terms are replaced by quadratics; None where none is.

    ``known`` bounds the leaves for all who play the game.
    """
    mapping: list[Expression] = []
    gaps: list[Expression] | None = []
    ends: dict[cp.Parameter, End] = {}
    replaced = False
    for player in level.players:
        own = [] if player.count is not None else _own_terms(player, level.variables)
        bounds = curvature_bounds(_sum(own), player.variables, known) if own else None
        if bounds is None or bounds.lower is None or bounds.exact:
            mapping += player.mapping
            gaps = None if gaps is None else [*gaps, *(cp.Constant(np.zeros(v.shape)) for v in player.variables)]
            continue
        rest = [term for term in _terms(player.cost) if not any(term is other for other in own)]
        replaced = True
        ends |= bounds.ends
        mapping += gradient(_sum([*rest, bounds.lower]), player.variables)
        if gaps is None or bounds.upper is None:
            gaps = None
        else:
            gaps += gradient(bounds.upper - bounds.lower, player.variables)
    if not replaced:
        return None
    gap = None if gaps is None else JacobianRows.of(gaps, level.variables, ends)
    return BoundingJacobians(JacobianRows.of(mapping, level.variables, ends), gap)


def least_eigenvalue(matrix: Interval) -> float:
    """A lower bound on the eigenvalues of the symmetric part of every matrix between the ends; -inf where there is none.

    That part S lies within R of a matrix C, so that v'Sv >= v'Cv - |v|'R|v| = v'(C - DRD)v with D the signs of v. For few entries
    all D are tried, which is attained (Hertz, 1992); else R counts by its norm, or all entries off the diagonal by magnitude.
    """
    low, high = 0.5 * (matrix.lo + matrix.lo.T), 0.5 * (matrix.hi + matrix.hi.T)
    high = np.where(np.eye(len(low), dtype=bool), low, high)  # the least diagonal is the worst
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return -np.inf
    centre = 0.5 * (low + high)
    radius = np.maximum(high - centre, centre - low)
    slack = (64 + 8 * len(low)) * EPS * float(np.linalg.norm(np.maximum(np.abs(low), np.abs(high))))
    if len(low) <= SIGNS_LIMIT:
        signs = np.array(list(product((1.0,), *[(1.0, -1.0)] * (len(low) - 1))))
        return _least(centre - radius * signs[:, :, None] * signs[:, None, :]) - slack
    diagonal = np.diag(np.diag(low))
    coupling = np.maximum(np.abs(low), np.abs(high)) - np.abs(diagonal)
    return max(_least(centre) - float(np.linalg.norm(radius, 2)), _least(diagonal - coupling)) - slack


def _least(matrices: np.ndarray) -> float:
    """The least eigenvalue of all these symmetric matrices."""
    return float(np.min(np.linalg.eigvalsh(matrices)))


def _terms(cost: Expression) -> list[Expression]:
    """The terms of a sum, also of one inside a mean."""
    terms: list[Expression] = []
    for term in addends(cost):
        inside = addends(term.per_sample) if isinstance(term, SampleAverage) else [term]
        terms += [averaged(term, part) for part in inside] if len(inside) > 1 else [term]
    return terms


def _own_terms(player: Player, variables: Variables) -> list[Expression]:
    """The terms of a player's cost in which no other player's variables occur, and whose convexity nobody asserts."""
    own = {v.id for v in player.variables}
    others = {v.id for v in variables} - own
    alone = (term for term in _terms(player.cost) if depends(term, own) and not depends(term, others))
    return [term for term in alone if not asserted_convex([term], player.variables)]


def _sum(terms: Sequence[Expression]) -> Expression:
    return plus(*terms, zero=cp.Constant(0.0))
