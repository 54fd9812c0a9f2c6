"""Entrywise majorants of quadratics: the same tree with every coefficient replaced by its absolute value.

The Hessian N of the majorant satisfies ``|H| <= N`` entry by entry, so that the spectral norm of H is at most the Perron
root of N, and ``max_i (N v)_i / v_i`` bounds that from above for every positive v (Collatz and Wielandt, 1942-1950).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.expressions.expression import Expression

from hierfl.analysis.curvature_bounds import averaged
from hierfl.analysis.hoist import copy_with
from hierfl.language.calculus.algebra import plus
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
            return cp.Constant(np.zeros(node.shape))
        if isinstance(node, NegExpression):
            return visit(node.args[0])
        if isinstance(node, AddExpression):
            parts = [visit(argument) for argument in node.args]
            if any(part is None for part in parts):
                return None
            return plus(*(p for p in parts if p is not None), zero=cp.Constant(np.zeros(node.shape)))
        if isinstance(node, SampleAverage):
            inside = visit(node.per_sample)
            return None if inside is None else averaged(node, inside)
        if isinstance(node, cp.QuadForm):
            vector = visit(node.args[0])
            return None if vector is None or has(node.args[1]) else vector @ (cp.abs(node.args[1]) @ vector)
        if isinstance(node, (MulExpression, multiply, DivExpression, cp.quad_over_lin)):
            parts = [visit(argument) if has(argument) else cp.abs(argument) for argument in node.args]
        elif isinstance(node, AffAtom) and all(node.is_incr(k) for k in range(len(node.args))):
            parts = [visit(argument) for argument in node.args]
        elif isinstance(node, (Power, PowerApprox)) and node.is_quadratic():
            parts = [visit(node.args[0])]
        else:
            return None
        if any(part is None for part in parts):
            return None
        replaced = {id(old): new for old, new in zip(node.args, parts)}
        copied: Expression = copy_with(node, lambda argument: replaced[id(argument)])
        return copied

    return visit(expression)
