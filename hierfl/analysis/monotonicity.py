"""Strong monotonicity and Lipschitz continuity of a mapping F in y, from intervals that contain the entries of its Jacobian.

On a convex set F is strongly monotone with the least eigenvalue that the symmetric part of its Jacobian has there. In a game the Hessian of
what a player adds in its own variables alone, such as ``log_sum_exp(y)``, may be bounded as a whole: the quadratics of
``curvature_bounds`` take its place, since what is left out is positive semidefinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import cvxpy as cp
import numpy as np
from cvxpy.expressions.expression import Expression

from hierfl.analysis.curvature_bounds import End, curvature_bounds
from hierfl.analysis.enclosure import Known
from hierfl.analysis.lipschitz import JacobianRows, norm_of
from hierfl.atoms.algebra import addends, plus
from hierfl.atoms.intervals import EPS, Interval
from hierfl.language.calculus.derivative import averaged, depends, gradient
from hierfl.language.expectation import SampleAverage
from hierfl.language.function import asserted_convex
from hierfl.language.player import Nash, Player

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


def largest_norm(matrix: Interval, gap: Interval | None = None) -> float:
    """An upper bound on the norm of every matrix between the ends, plus one between 0 and the positive semidefinite ``gap``."""
    return norm_of(matrix) + (0.0 if gap is None else norm_of(gap))


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
    return [
        term
        for term in _terms(player.cost)
        if depends(term, own) and not depends(term, others) and not asserted_convex([term], player.variables)
    ]


def _sum(terms: Sequence[Expression]) -> Expression:
    return plus(*terms, zero=cp.Constant(0.0))
