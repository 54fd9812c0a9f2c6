"""Where CVXPY's rows go: second-order cones one after another, semidefinite ones as scaled triangles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cvxpy.constraints import PSD, SOC, ExpCone, NonNeg, PowCone3D, Zero
from cvxpy.constraints.constraint import Constraint

from hierfl.compiler.programs.cones import (
    EXPONENTIAL,
    NONNEGATIVE,
    POWER,
    SECOND_ORDER,
    SEMIDEFINITE,
    ZERO,
    Cone,
    NoStandardFormError,
)


@dataclass(frozen=True)
class RowOrder:
    """Where CVXPY's rows go, and by what they are multiplied: second-order cones one after another, triangles of matrices."""

    rows: np.ndarray
    scale: np.ndarray
    cones: tuple[Cone, ...]
    owner: dict[int, np.ndarray]

    @classmethod
    def of(cls, constraints: Sequence[Constraint]) -> RowOrder:
        """Of constraints that come equations first, then inequalities, and the other cones."""
        rows, scale, cones, owner, start = [np.zeros(0, int)], [np.zeros(0)], list[Cone](), {}, 0
        for constraint in constraints:
            place, factor, some = _rows_of(constraint)
            rows.append(start + place)
            scale.append(factor)
            height = sum(cone.size for cone in some)
            owner[constraint.id] = np.arange(start, start + height)
            start += height
            for cone in some:
                if cone.kind in (ZERO, NONNEGATIVE) and cones and cones[-1].kind == cone.kind:
                    cones[-1] = Cone(cone.kind, cones[-1].size + cone.size)
                else:
                    cones.append(cone)
        return cls(np.concatenate(rows), np.concatenate(scale), tuple(c for c in cones if c.size), owner)

    @property
    def height(self) -> int:
        return sum(cone.size for cone in self.cones)


def _rows_of(constraint: Constraint) -> tuple[np.ndarray, np.ndarray, list[Cone]]:
    """(where the rows of a constraint go among its own, their factors, its cones)."""
    if isinstance(constraint, (Zero, NonNeg)):
        count = constraint.args[0].size
        return np.arange(count), np.ones(count), [Cone(ZERO if isinstance(constraint, Zero) else NONNEGATIVE, count)]
    if isinstance(constraint, SOC):
        bounds, vectors = constraint.args
        count, length = bounds.size, vectors.size // bounds.size
        first = np.arange(count) * (length + 1)
        inner = (first + 1)[:, None] + np.arange(length)
        return np.append(first, inner), np.ones(count * (length + 1)), [Cone(SECOND_ORDER, length + 1)] * count
    if isinstance(constraint, PSD) and len(constraint.args[0].shape) == 2:
        order = constraint.args[0].shape[0]
        row, column = np.indices((order, order)).reshape(2, -1, order="F")
        high, low = np.maximum(row, column), np.minimum(row, column)
        factor = np.where(row == column, 1.0, np.sqrt(0.5))
        size = order * (order + 1) // 2
        cone = Cone(NONNEGATIVE, 1) if order == 1 else Cone(SEMIDEFINITE, size, order)
        return high * (high + 1) // 2 + low, factor, [cone]
    if isinstance(constraint, (ExpCone, PowCone3D)):
        count = constraint.args[0].size
        places = 3 * np.arange(count) + np.arange(3)[:, None]
        shares = np.ravel(constraint.alpha.value) if isinstance(constraint, PowCone3D) else [None] * count
        kind = EXPONENTIAL if isinstance(constraint, ExpCone) else POWER
        return np.ravel(places), np.ones(3 * count), [Cone(kind, 3, share=share) for share in shares]
    raise NoStandardFormError(f"it needs the cone {type(constraint).__name__}")
