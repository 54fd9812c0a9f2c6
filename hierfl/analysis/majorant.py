"""Entrywise majorants of quadratics: the same tree with every coefficient replaced by its absolute value.

The Hessian N of the majorant satisfies ``|H| <= N`` entry by entry, so that the spectral norm of H is at most the Perron
root of N, and ``max_i (N v)_i / v_i`` bounds that from above for every positive v (Collatz and Wielandt, 1942-1950).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.expressions.expression import Expression

from hierfl.analysis.curvature_bounds import averaged
from hierfl.analysis.hoist import copy_with
from hierfl.atoms.algebra import zeros
from hierfl.atoms.table import row_of
from hierfl.language.expectation import SampleAverage


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
    """The atom over other arguments."""
    replaced = {id(old): new for old, new in zip(node.args, arguments)}
    copied: Expression = copy_with(node, lambda argument: replaced[id(argument)])
    return copied
