"""Hoisting: everything that is free of the kept variables becomes a parameter.

With x fixed and y free, every maximal subtree without y is a constant of the lower level. Replacing it by a fresh
``cp.Parameter`` that inherits its known sign makes CVXPY's ``is_dcp`` mean convexity in y, and makes more trees DPP.
The user's trees are never touched: kept variables become twins.

Signs follow from attributes and from bounds on x that the declared constraints imply (``hierfl.analysis.variable_bounds``). The
latter hold on X, where the default ``queries="projected"`` evaluates; a solver with ``queries="raw"`` asks up to the
smoothing radius outside X, where a lower level that is convex only because of them may not be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import cvxpy as cp
import numpy as np
import numpy.typing as npt
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf

from hierfl.analysis.enclosure import NOTHING_KNOWN, Enclosure, Known
from hierfl.atoms.row import NoAnswerError
from hierfl.atoms.table import row_of
from hierfl.errors import UnsupportedAtomError
from hierfl.language.expectation import SampleAverage
from hierfl.language.printing.text import expression_text

Tree: TypeAlias = Expression | Constraint
Rebuild: TypeAlias = Callable[[Tree], Tree]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Hoisted:
    """Rebuilt expressions (or constraints) over twins and fresh parameters.

    ``parameters`` maps each fresh parameter to the user's subtree that it stands for; ``twins`` maps kept variables.
    Averages are replaced by their per-sample expression: a mean keeps curvature and degree.
    """

    expressions: tuple[Tree, ...]
    parameters: dict[cp.Parameter, Expression]
    twins: dict[cp.Variable, cp.Variable]

    def text(self, part: Tree) -> str:
        """A rebuilt subtree as the user wrote it."""
        return expression_text(instantiate([part], self.parameters)[0])


def hoist(parts: Sequence[Tree], keep: Sequence[cp.Variable], known: Known = NOTHING_KNOWN) -> Hoisted:
    """Hoist expressions or constraints over the variables to ``keep``; shared subtrees stay shared.

    Hoisted subtrees get the sign that follows from what is ``known`` of other leaves by id, as from ``bounds_of``.
    """
    kept = {v.id for v in keep}
    twins = {v: cp.Variable(v.shape, name=v.name(), **leaf_attributes(v)) for v in keep}
    by_id = {v.id: twin for v, twin in twins.items()}
    parameters: dict[cp.Parameter, Expression] = {}

    def hoisted(node: Tree, rebuild: Rebuild) -> Tree:
        if isinstance(node, cp.Variable) and node.id in kept:
            return by_id[node.id]
        if not any(v.id in kept for v in node.variables()):
            if isinstance(node, cp.Constant) or not (node.variables() or node.parameters()):
                return node
            if isinstance(node, Constraint):
                return copy_with(node, rebuild)
            parameter = _stand_in(node, known)
            parameters[parameter] = node
            return parameter
        if isinstance(node, SampleAverage):
            return rebuild(node.per_sample)
        return copy_with(node, rebuild)

    return Hoisted(tuple(map(memoised(hoisted), parts)), parameters, twins)


def instantiate(parts: Sequence[Tree], values: Mapping[Leaf, Expression | npt.ArrayLike]) -> list[Tree]:
    """The expressions or constraints with these leaves replaced by constants, or by other expressions.

    Values of leaves that are in none of the parts are not looked at: they may be held elsewhere.
    """
    used = {leaf.id for part in parts for leaf in [*part.variables(), *part.parameters()]}
    constants = {
        leaf.id: value if isinstance(value, Expression) else cp.Constant(np.asarray(value))
        for leaf, value in values.items()
        if leaf.id in used
    }

    def instantiated(node: Tree, rebuild: Rebuild) -> Tree:
        if isinstance(node, Leaf):
            return constants.get(getattr(node, "id", None), node)
        if not any(leaf.id in constants for leaf in [*node.variables(), *node.parameters()]):
            return node
        return copy_with(node, rebuild)

    return list(map(memoised(instantiated), parts))


def memoised(rule: Callable[[Tree, Callable[[Tree], Value]], Value]) -> Callable[[Tree], Value]:
    """The rule, of a node and what makes the same of its arguments, applied to each subtree once: what is shared stays shared."""
    memo: dict[int, Value] = {}

    def visit(node: Tree) -> Value:
        if id(node) not in memo:
            memo[id(node)] = rule(node, visit)
        return memo[id(node)]

    return visit


def copy_with(node: Tree, rebuild: Rebuild) -> Tree:
    """A copy of an atom or constraint over rebuilt arguments, all settings kept.

    Raises ``UnsupportedAtomError`` for a perspective of which some variables are fixed: its function would no longer be
    scaled as a whole.
    """
    copy = row_of(node).copy
    if copy is None:
        return node.copy([rebuild(a) for a in node.args])
    try:
        return copy(node, rebuild)
    except NoAnswerError as reason:
        raise UnsupportedAtomError(str(reason).format(atom=expression_text(node))) from None


def _stand_in(node: Expression, known: Known) -> cp.Parameter:
    """A parameter with the sign, definiteness and shape that are known of a subtree."""
    enclosure = Enclosure(known, definite=True)
    if isinstance(node, Leaf):
        attributes = leaf_attributes(node)
    else:
        attributes = _properties(node) if enclosure.defined(node) else {}
    if known and not any(name in attributes for name in _SIGNED):
        bounds = enclosure(node)
        sign = "nonneg" if (bounds.lo >= 0).all() else "nonpos" if (bounds.hi <= 0).all() else None
        attributes = attributes if sign is None else {sign: True}
    name = node.name() if isinstance(node, Leaf) else expression_text(node)
    return cp.Parameter(node.shape, name=name, **attributes)


_SIGNED = ("nonneg", "nonpos", "pos", "neg", "PSD", "NSD", "diag", "symmetric")


def _properties(node: Expression) -> dict[str, Any]:
    """What CVXPY knows of a subtree: definiteness or sign."""
    square = len(node.shape) == 2 and node.shape[0] == node.shape[1] and node.shape[0] > 1
    if square and (node.is_psd() or node.is_nsd()):
        return {"PSD" if node.is_psd() else "NSD": True}
    if node.is_nonneg():
        return {"nonneg": True}
    return {"nonpos": True} if node.is_nonpos() else {}


def leaf_attributes(leaf: Leaf) -> dict[str, Any]:
    """What a twin or stand-in inherits, whole numbers aside; bounds that are expressions are left to ``attribute_constraints``."""
    return {
        name: value
        for name, value in leaf.attributes.items()
        if value is not None
        and value is not False
        and name not in ("boolean", "integer")
        and not (name == "bounds" and any(isinstance(bound, Expression) for bound in value))
    }
