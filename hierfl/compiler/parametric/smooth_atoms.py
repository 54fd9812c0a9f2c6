"""Scalar functions whose derivatives the parametric program takes as they are, in place of cones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class SmoothAtom:
    """s, s' and s'' of one scalar, elementwise; ``domain`` says where s ends, ``barrier`` that its slope is infinite there."""

    name: str
    value: Function
    slope: Function
    curvature: Function
    domain: Callable[[Expression], Sequence[Constraint]] = lambda argument: ()
    barrier: bool = False

    @property
    def is_square(self) -> bool:
        """Whether it is v^2, whose curvature is that of a quadratic program."""
        return self is SQUARE


SQUARE = SmoothAtom("square", lambda v: v * v, lambda v: 2.0 * v, lambda v: np.full_like(v, 2.0))


def smooth_atom_of(node: Any) -> tuple[SmoothAtom, Any, Callable[[Any], Any]] | None:
    """(the atom, its argument, the node as a linear function of the atom's values); None for what is none, or not of affine arguments."""
    if isinstance(node, cp.quad_over_lin):
        argument, divisor = node.args
        if divisor.is_constant() and not divisor.parameters() and argument.is_affine() and node.shape == ():
            return SQUARE, argument, lambda values: cp.sum(values) / divisor
        return None
    power = getattr(node, "p_used", None) if type(node).__name__ in ("Power", "PowerApprox", "power") else None
    if power is not None and node.args[0].is_affine() and float(node.p.value) == 2.0:
        return SQUARE, node.args[0], lambda values: values
    return None
