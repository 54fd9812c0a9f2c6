"""Whether an expression is continuously differentiable, although atoms of it have kinks: ``square(pos(y))`` and ``norm(hstack([y, 1]))`` are.

Each atom with kinks says what values it has there, 0 in case of ``pos``, and each atom where it is flat, a square at 0. By the chain
rule kinks of e are no kinks of phi(e) where phi is flat, with a continuous derivative, at all values that e has at its kinks: the
gradient of e is bounded (e is Lipschitz continuous), and is multiplied by what tends to 0. The values at kinks are followed through the
tree as intervals, entry by entry; kinks that an enclosure of an atom's values rules out are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.expressions.leaf import Leaf

from hierfl.analysis.enclosure import Enclosure, enclose_node
from hierfl.atoms.intervals import Interval
from hierfl.atoms.ranges import value_at
from hierfl.atoms.table import is_entrywise, row_of


def kinked_atom(expression: Any, variables: Sequence[cp.Variable], enclosure: Enclosure) -> Any | None:
    """The first atom whose kinks leave the expression without a continuous gradient in the variables; None where it has one."""
    kinks = _Kinks({v.id for v in variables}, enclosure)
    return kinks.source(expression) if kinks(expression) is not None else None


class _Kinks:
    """The values that expressions may have at their kinks, entry by entry: an interval, of lo > hi in entries without kinks."""

    def __init__(self, own: set[int], enclosure: Enclosure) -> None:
        self.own, self.enclosure = own, enclosure
        self.memo: dict[int, Interval | None] = {}

    def __call__(self, node: Any) -> Interval | None:
        """The values at kinks; None where there are none."""
        if isinstance(node, Leaf) or not any(v.id in self.own for v in node.variables()):
            return None
        if id(node) not in self.memo:
            with np.errstate(all="ignore"):
                self.memo[id(node)] = self._visit(node)
        return self.memo[id(node)]

    def source(self, node: Any) -> Any:
        """The atom whose kinks an expression has."""
        return next((self.source(argument) for argument in node.args if self(argument) is not None), node)

    def _visit(self, node: Any) -> Interval | None:
        row, arguments = row_of(node), [self.enclosure(argument) for argument in node.args]
        found = [self._own_kinks(node, arguments)] if row.kinked else []
        for place, argument in enumerate(node.args):
            values = self(argument)
            if values is None:
                continue
            flat = row.flat(node, place, values, arguments) if row.flat else np.zeros(values.shape, bool)
            left = Interval(np.where(flat, np.inf, values.lo), np.where(flat, -np.inf, values.hi))
            if (left.lo <= left.hi).any():
                found.append(self._carried(node, place, left, arguments))
        if not found:
            return None
        joined = Interval(np.min([one.lo for one in found], axis=0), np.max([one.hi for one in found], axis=0))
        return joined if (joined.lo <= joined.hi).any() else None

    def _own_kinks(self, node: Any, arguments: list[Interval]) -> Interval:
        rule = row_of(node).kink_values
        values = Interval.free(node.shape) if rule is None else rule(node, arguments)
        return _without_empty(values.meet(self.enclosure(node)))

    def _carried(self, node: Any, place: int, values: Interval, arguments: list[Interval]) -> Interval:
        """The values of an atom where one argument has these values at its kinks, and none in its other entries."""
        if row_of(node).layout:
            none = [(np.full(a.shape, np.inf), np.full(a.shape, -np.inf)) for a in arguments]
            none[place] = values.lo, values.hi
            low, high = (value_at(node, [ends[side] for ends in none]) for side in (0, 1))
            return Interval(low, high)
        alike = values.shape == node.shape or values.lo.size == 1
        if not is_entrywise(node) or not alike or not self._is_lipschitz(node):
            return Interval.free(node.shape)
        kinked = values.lo <= values.hi
        there = Interval(
            np.where(kinked, values.lo, arguments[place].lo), np.where(kinked, values.hi, arguments[place].hi)
        )
        reached = enclose_node(node, [there if k == place else one for k, one in enumerate(arguments)])
        here = np.broadcast_to(kinked, node.shape)
        return _without_empty(Interval(np.where(here, reached.lo, np.inf), np.where(here, reached.hi, -np.inf)))

    def _is_lipschitz(self, node: Any) -> bool:
        """Whether an atom keeps Lipschitz continuous what is, as a square root does not where it ends."""
        row = row_of(node)
        if row.smooth is None:
            return row.kink_values is not None or isinstance(node, AffAtom)
        return row.smooth(node, [any(v.id in self.own for v in a.variables()) for a in node.args], self.enclosure)


def _without_empty(values: Interval) -> Interval:
    """With one sign of emptiness."""
    none = ~(values.lo <= values.hi)
    return Interval(np.where(none, np.inf, values.lo), np.where(none, -np.inf, values.hi))
