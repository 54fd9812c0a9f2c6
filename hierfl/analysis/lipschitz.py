"""Lipschitz constants on the declared sets: bounds on gradients and on mixed second derivatives, by intervals.

A differentiable function on a convex set is Lipschitz with the largest norm of its gradient there. The gradients are
expressions (``hierfl.language.calculus.derivative``), so that intervals through them bound every value on the boxes that
contain X and Y(x). Infinity says that no bound follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.expressions.expression import Expression

from hierfl.analysis.curvature_bounds import End
from hierfl.analysis.enclosure import Enclosure, Known, enclose
from hierfl.analysis.hoist import copy_with
from hierfl.atoms.algebra import addends
from hierfl.atoms.intervals import EPS, Interval
from hierfl.language.calculus.derivative import depends, gradient
from hierfl.language.expectation import SampleAverage, averages_of, total

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
    def of(
        cls, mapping: Sequence[Expression], variables: Sequence[cp.Variable], ends: dict[cp.Parameter, End] | None = None
    ) -> JacobianRows:
        """Differentiate each entry of the mapping."""
        rows = [
            gradient(part, variables, cp.Constant(_unit(part.shape, place)))
            for part in mapping
            for place in np.ndindex(part.shape)
        ]
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
    parts = [enclose(part, known) for part in gradient(expression, variables)]
    return _together(parts)


def mixed_bound(
    mapping: Sequence[Expression], outer: Sequence[cp.Variable], known: Known, variables: Sequence[cp.Variable] = ()
) -> float:
    """An upper bound on the spectral norm of the mapping's Jacobian in ``outer``; infinity where none follows.

    Parameters
    ----------
    mapping
        Expressions; if ``variables`` are given, one scalar whose gradient in them is the mapping.
    outer
        The variables of the Jacobian's columns.
    known
        Bounds by leaf id.
    variables
        The variables of the inner gradient.
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
    return [p for p in part.parameters() if _with(part, p, cp.Variable(p.shape)).is_affine()]


def _with(tree: Any, old: Any, new: Any) -> Any:
    """The tree with one leaf for another."""
    if tree is old:
        return new
    return copy_with(tree, lambda argument: _with(argument, old, new)) if tree.args else tree


def _unit(shape: tuple[int, ...], place: tuple[int, ...]) -> np.ndarray:
    unit = np.zeros(shape)
    unit[place] = 1.0
    return unit


def _together(parts: Sequence[Interval]) -> float:
    return float(np.linalg.norm([part.norm for part in parts])) * (1.0 + 8 * EPS)
