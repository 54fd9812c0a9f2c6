"""Hoisting: everything that is free of the kept variables becomes a parameter.

With x fixed and y free, every maximal subtree without y is a constant of the lower level. Replacing it by a fresh
``cp.Parameter`` that inherits its known sign makes CVXPY's ``is_dcp`` mean convexity in y, and makes more trees DPP.
The user's trees are never touched: kept variables become twins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.expressions.leaf import Leaf

from hierfl.language.expectation import SampleAverage
from hierfl.language.text import expression_text


@dataclass(frozen=True)
class Hoisted:
    """Rebuilt expressions (or constraints) over twins and fresh parameters.

    ``parameters`` maps each fresh parameter to the user's subtree that it stands for; ``twins`` maps kept variables.
    Averages are replaced by their per-sample expression: a mean keeps curvature and degree.
    """

    expressions: tuple[Any, ...]
    parameters: dict[cp.Parameter, Any]
    twins: dict[cp.Variable, cp.Variable]


def hoist(parts: Sequence[Any], keep: Sequence[cp.Variable]) -> Hoisted:
    """Hoist expressions or constraints; shared subtrees stay shared."""
    kept = {v.id for v in keep}
    twins = {v: cp.Variable(v.shape, name=v.name(), **_attributes(v)) for v in keep}
    by_id = {v.id: twin for v, twin in twins.items()}
    parameters: dict[cp.Parameter, Any] = {}
    memo: dict[int, Any] = {}

    def rebuild(node: Any) -> Any:
        if id(node) not in memo:
            memo[id(node)] = _rebuild(node)
        return memo[id(node)]

    def _rebuild(node: Any) -> Any:
        if isinstance(node, cp.Variable) and node.id in kept:
            return by_id[node.id]
        if not any(v.id in kept for v in node.variables()):
            if isinstance(node, cp.Constant) or not (node.variables() or node.parameters()):
                return node
            if isinstance(node, cp.constraints.constraint.Constraint):
                return copy_with(node, [rebuild(a) for a in node.args])
            parameter = _stand_in(node)
            parameters[parameter] = node
            return parameter
        if isinstance(node, SampleAverage):
            return rebuild(node.per_sample)
        return copy_with(node, [rebuild(a) for a in node.args])

    return Hoisted(tuple(rebuild(part) for part in parts), parameters, twins)


def instantiate(parts: Sequence[Any], values: Mapping[Any, Any]) -> list[Any]:
    """The expressions or constraints with these leaves replaced by constants."""
    constants = {leaf.id: cp.Constant(np.asarray(value)) for leaf, value in values.items()}
    memo: dict[int, Any] = {}

    def rebuild(node: Any) -> Any:
        if id(node) not in memo:
            memo[id(node)] = _rebuild(node)
        return memo[id(node)]

    def _rebuild(node: Any) -> Any:
        if isinstance(node, Leaf):
            return constants.get(getattr(node, "id", None), node)
        if not any(leaf.id in constants for leaf in [*node.variables(), *node.parameters()]):
            return node
        return copy_with(node, [rebuild(a) for a in node.args])

    return [rebuild(part) for part in parts]


def copy_with(node: Any, args: list[Any]) -> Any:
    """A copy of an atom or constraint over other arguments, all settings kept."""
    if isinstance(node, (cp.norm1, cp.norm_inf)):  # their copy drops keepdims
        return type(node)(args[0], axis=node.axis, keepdims=node.keepdims)
    return node.copy(args)


def _stand_in(node: Any) -> cp.Parameter:
    if isinstance(node, Leaf):
        return cp.Parameter(node.shape, name=node.name(), **_attributes(node))
    attributes: dict[str, bool] = {}
    if (
        len(node.shape) == 2
        and node.shape[0] == node.shape[1]
        and node.shape[0] > 1
        and (node.is_psd() or node.is_nsd())
    ):
        attributes["PSD" if node.is_psd() else "NSD"] = True
    elif node.is_nonneg():
        attributes["nonneg"] = True
    elif node.is_nonpos():
        attributes["nonpos"] = True
    return cp.Parameter(node.shape, name=expression_text(node), **attributes)


def _attributes(leaf: Leaf) -> dict[str, Any]:
    return {name: value for name, value in leaf.attributes.items() if value is not None and value is not False}
