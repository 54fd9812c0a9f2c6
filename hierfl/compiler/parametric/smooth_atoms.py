"""Smooth functions whose derivatives the parametric program takes as they are, in place of cones.

Each is a function of blocks of k scalars (k = 1: elementwise). It is strictly convex where it is finite, or so along all directions that
change it, or minus it is; an objective adds them up with weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.power import Power
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from jaxtyping import Float

Blocks = Float[np.ndarray, "n k"]


@dataclass(frozen=True, eq=False)
class SmoothAtom:
    """A value (n,), slopes (n, k) and curvatures (n, k, k) of blocks (n, k).

    ``domain`` are constraints that keep arguments where it is defined; ``barrier`` says that its slope is infinite where it ends.
    """

    name: str
    value: Callable[[Blocks], np.ndarray]
    slope: Callable[[Blocks], Blocks]
    curvature: Callable[[Blocks], np.ndarray]
    domain: Callable[[Expression], Sequence[Constraint]] = lambda argument: ()
    barrier: bool = False


class TakenOut:
    """An atom of a node: ``argument`` in blocks of ``block`` scalars, and the node as a linear function of the atom's values."""

    def __init__(self, atom: SmoothAtom, argument: Any, linear: Callable[[Any], Any], block: int = 1) -> None:
        self.atom, self.argument, self.linear, self.block = atom, argument, linear, block


def _elementwise(
    name: str, value: Any, slope: Any, curvature: Any, ends: bool = False, barrier: bool = False
) -> SmoothAtom:
    def domain(argument: Expression) -> Sequence[Constraint]:
        return [argument >= 0] if ends else ()

    return SmoothAtom(name, lambda v: value(v)[:, 0], slope, lambda v: curvature(v)[:, :, None], domain, barrier)


def _logistic(v: Blocks) -> Blocks:
    return np.logaddexp(0.0, v)


def _sigmoid(v: Blocks) -> Blocks:
    return np.exp(-np.logaddexp(0.0, -v))


def _entropy(v: Blocks) -> Blocks:
    return -np.where(v > 0, v * np.log(np.where(v > 0, v, 1.0)), np.where(v < 0, np.inf, 0.0))


def _softmax(v: Blocks) -> Blocks:
    up = np.exp(v - v.max(axis=1, keepdims=True))
    return up / up.sum(axis=1, keepdims=True)


def _log_sum_exp(v: Blocks) -> np.ndarray:
    top = v.max(axis=1)
    return np.asarray(top + np.log(np.exp(v - top[:, None]).sum(axis=1)))


def _softmax_slope(v: Blocks) -> np.ndarray:
    share = _softmax(v)
    return np.asarray(share[:, :, None] * np.eye(v.shape[1]) - share[:, :, None] * share[:, None, :])


SQUARE = _elementwise("square", lambda v: v * v, lambda v: 2.0 * v, lambda v: np.full_like(v, 2.0))
EXP = _elementwise("exp", np.exp, np.exp, np.exp)
LOGISTIC = _elementwise("logistic", _logistic, _sigmoid, lambda v: _sigmoid(v) * _sigmoid(-v))
ENTROPY = _elementwise("entr", _entropy, lambda v: -np.log(v) - 1.0, lambda v: -1.0 / v, ends=True, barrier=True)
LOG = _elementwise("log", np.log, lambda v: 1.0 / v, lambda v: -1.0 / (v * v), ends=True, barrier=True)
LOG_SUM_EXP = SmoothAtom("log_sum_exp", _log_sum_exp, _softmax, _softmax_slope)


def _power(p: float) -> SmoothAtom:
    """|v|^p for even p >= 2, v^p over v >= 0 for others; below 1 its slope is infinite at 0, or there is no value."""
    if p < 1:
        slope = lambda v: p * v ** (p - 1)  # noqa: E731
        return _elementwise(
            f"power {p:g}", lambda v: v**p, slope, lambda v: p * (p - 1) * v ** (p - 2), ends=True, barrier=True
        )
    even = p % 2 == 0

    def inside(v: Blocks) -> Blocks:
        return v if even else np.maximum(v, 0.0)

    return _elementwise(
        f"power {p:g}",
        lambda v: inside(v) ** p,
        lambda v: p * inside(v) ** (p - 1),
        lambda v: p * (p - 1) * inside(v) ** (p - 2),
        ends=not even,
    )


def smooth_atom_of(node: Any) -> TakenOut | None:
    """What is taken out of an objective for a node; None for what is no smooth atom of affine arguments."""
    if not node.args or not all(argument.is_affine() for argument in node.args):
        return None
    argument = node.args[0]
    if isinstance(node, cp.quad_over_lin):
        divisor = node.args[1]
        if node.shape != () or divisor.variables() or divisor.parameters():
            return None
        return TakenOut(SQUARE, argument, lambda values: cp.sum(values) / divisor)
    if isinstance(node, Power):
        p = float(node.p.value)
        if p in (0.0, 1.0) or 1.0 < p < 2.0:  # the last has an infinite curvature where it ends, and a cone
            return None
        return TakenOut(SQUARE if p == 2.0 else _power(p), argument, lambda values: values)
    if isinstance(node, cp.log_sum_exp):
        if node.shape != () or argument.size < 2:
            return None
        return TakenOut(LOG_SUM_EXP, cp.vec(argument, order="F"), lambda values: cp.sum(values), argument.size)
    atom = {cp.exp: EXP, cp.logistic: LOGISTIC, cp.entr: ENTROPY, cp.log: LOG}.get(type(node))
    return None if atom is None else TakenOut(atom, argument, lambda values: values)
