"""Which player each entry of an expression belongs to, for players declared as the rows of a variable.

Layout atoms (index, reshape, stack, transpose, broadcast) are evaluated on arrays of players instead of numbers; whatever
combines entries of two players has no owner: in a constraint it couples them.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.binary_operators import MulExpression

from hierfl.atoms.table import is_entrywise, row_of
from hierfl.language.calculus.derivative import Variables, depends

NOBODY, SEVERAL = -1.0, -2.0


def couples(constraint: Any, variables: Variables) -> bool:
    """Whether some scalar condition of a constraint involves the rows of two players."""
    return any(bool((owners(part, variables) == SEVERAL).any()) for part in _conditions(constraint))


def owners(node: Any, variables: Variables) -> np.ndarray:
    """The player (row number) that each entry depends on; ``NOBODY`` for none, ``SEVERAL`` for more than one."""
    if isinstance(node, cp.Variable) and any(v.id == node.id for v in variables):
        rows = np.arange(node.shape[0], dtype=float)
        return np.broadcast_to(rows.reshape(-1, *(1,) * (node.ndim - 1)), node.shape)
    if not depends(node, {v.id for v in variables}):
        return np.full(node.shape, NOBODY)
    parts = [owners(argument, variables) for argument in node.args]
    if row_of(node).layout:
        return np.asarray(node.numeric(parts), dtype=float).reshape(node.shape)
    if is_entrywise(node):
        return _joined(np.stack([np.broadcast_to(part, node.shape) for part in parts]), 0)
    if isinstance(node, MulExpression) and all(1 <= part.ndim <= 2 for part in parts):
        return _of_product(parts[0], parts[1], node.shape)
    axis = getattr(node, "axis", None)
    if axis is not None and all((part == NOBODY).all() for part in parts[1:]):
        reduced = _over_axes(parts[0], axis)
        if reduced.size == node.size:  # a sum, norm or extreme along an axis
            return reduced.reshape(node.shape)
    return np.full(node.shape, _joined(np.concatenate([part.ravel() for part in parts]), 0))


def _conditions(constraint: Any) -> list[Any]:
    """Expressions whose entries are scalar conditions; a cone's condition is one for all its entries."""
    if isinstance(constraint, (cp.constraints.Inequality, cp.constraints.Equality)):
        return [constraint.args[0] - constraint.args[1]]
    if isinstance(constraint, (cp.constraints.Zero, cp.constraints.NonNeg, cp.constraints.NonPos)):
        return [constraint.args[0]]
    return [cp.sum(cp.hstack([cp.sum(argument) for argument in constraint.args]))]


def _joined(parts: np.ndarray, axis: int) -> np.ndarray:
    """The common owner along an axis."""
    highest = parts.max(axis=axis)
    lowest = np.where(parts == NOBODY, np.inf, parts).min(axis=axis)
    joined = np.where((lowest == np.inf) | (lowest == highest), highest, SEVERAL)
    return np.where((parts == SEVERAL).any(axis=axis), SEVERAL, joined)


def _over_axes(part: np.ndarray, axis: Any) -> np.ndarray:
    gone = sorted({int(k) % part.ndim for k in (axis if isinstance(axis, (tuple, list)) else (axis,))})
    kept = [k for k in range(part.ndim) if k not in gone]
    moved = np.transpose(part, [*gone, *kept])
    return _joined(moved.reshape(-1, *(part.shape[k] for k in kept)), 0)


def _of_product(left: np.ndarray, right: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Entry (i, l) of a product joins row i of the left factor and column l of the right."""
    rows = _joined(np.atleast_2d(left), 1)[:, None]
    columns = _joined(right if right.ndim == 2 else right[:, None], 0)[None, :]
    whole = np.stack([np.broadcast_to(part, (rows.size, columns.size)) for part in (rows, columns)])
    return _joined(whole, 0).reshape(shape)
