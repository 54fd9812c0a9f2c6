"""Smooth increasing functions of what has kinks: exp(max(y, -2y)) is exp(t) with an upper bound t of the maximum.

CVXPY's rules of composition make every argument of a convex function affine, or convex where the function increases, or concave where it
decreases. With an upper bound t of each argument that has kinks, or of its negative, the function is smooth in (y, t), and the bounds are
what a standard form has rows and cones for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.analysis.enclosure import Enclosure, Known
from hierfl.analysis.hoist import copy_with, hoist
from hierfl.compiler.lower_level.on_host.domain_guard import guarded
from hierfl.compiler.lower_level.on_host.size_power import has_roots, with_size_powers
from hierfl.compiler.lower_level.smoothness import nonsmooth_atom, rough_atom


@dataclass(frozen=True)
class RaisedTerm:
    """``cost`` is smooth in y and in ``variables``, which ``limits`` keep above what they bound.

    ``interior`` says that it may grow without bound where it ends, ``roots`` that its second derivative may be infinite inside.
    """

    cost: Expression
    variables: tuple[cp.Variable, ...]
    limits: tuple[Constraint, ...]
    interior: bool
    roots: bool

    @classmethod
    def of(cls, term: Any, convex: bool, y: Sequence[cp.Variable], known: Known, on_y: Known) -> RaisedTerm | None:
        """That of a convex (else concave) term; None where it has kinks of its own, or none."""
        search = _Search(tuple(y), known, on_y)
        cost = search.smoothed(term, convex)
        if cost is None or not search.variables:
            return None
        ids = {v.id for v in (*y, *search.variables)}
        ends = [end for end in cost.domain if search.moves(end)]
        domain = [end for end in ends if search.is_affine(end.expr)]
        if len(domain) < len(ends):
            cost = guarded(cost, ids, Enclosure(on_y))
        interior = nonsmooth_atom([cost], ids, Enclosure(on_y)) is not None
        return cls(cost, tuple(search.variables), (*search.limits, *domain), interior, has_roots(cost))


@dataclass
class _Search:
    y: tuple[cp.Variable, ...]
    known: Known
    on_y: Known
    variables: list[cp.Variable] = field(default_factory=list)
    limits: list[Constraint] = field(default_factory=list)

    def smoothed(self, node: Any, convex: bool) -> Any | None:
        """The expression over y and upper (lower) bounds, which an optimum makes its own; None where it has kinks of its own."""
        if (smooth := self._if_smooth(node)) is not None:
            return smooth
        seen, parts = self._seen(node), {}
        for place, argument in enumerate(node.args):
            if not self.moves(argument) or self.is_affine(argument):
                continue
            upward = convex if seen.is_incr(place) else not convex
            if not (seen.is_incr(place) or seen.is_decr(place)) or not self._has_bound(argument, upward):
                return None
            before = len(self.variables), len(self.limits)
            part = self.smoothed(argument, upward)
            if part is None:  # nor are bounds within it of any use
                del self.variables[before[0] :], self.limits[before[1] :]
                part = self._bound(argument, upward)
            parts[id(argument)] = part
        if not parts:
            return None
        return self._if_smooth(copy_with(node, lambda argument: parts.get(id(argument), argument)))

    def _if_smooth(self, expression: Any) -> Any | None:
        """The expression, powers as what they are, where that is smooth inside its domain; else None."""
        smooth, defined = with_size_powers(expression, self.is_affine, Enclosure(self.on_y))
        if rough_atom([smooth], self._ids, Enclosure(self.on_y)) is not None:
            return None
        self.limits += defined
        return smooth

    def _bound(self, argument: Any, upward: bool) -> Expression:
        """An upper bound of the argument, or its negative of the argument's."""
        bound = cp.Variable(argument.shape)
        self.variables.append(bound)
        self.limits.append((argument if upward else -argument) <= bound)
        return bound if upward else -bound

    def _seen(self, expression: Any) -> Any:
        """The expression with everything but y and the bounds as parameters."""
        return hoist([expression], (*self.y, *self.variables), self.known).expressions[0]

    def _has_bound(self, expression: Any, upward: bool) -> bool:
        seen = self._seen(expression)
        return bool(seen.is_convex() if upward else seen.is_concave())

    def is_affine(self, expression: Any) -> bool:
        """Whether it is affine in y and the bounds."""
        return bool(self._seen(expression).is_affine())

    @property
    def _ids(self) -> set[int]:
        return {v.id for v in (*self.y, *self.variables)}

    def moves(self, expression: Any) -> bool:
        """Whether y or a bound is in it."""
        return any(v.id in self._ids for v in expression.variables())
