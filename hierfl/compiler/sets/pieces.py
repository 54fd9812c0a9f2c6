"""What a convex constraint consists of, still as CVXPY expressions: affine rows and memberships ``A y + b in C``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from hierfl.compiler.sets.families import Family


@dataclass(frozen=True)
class AffineRows:
    """``expression <= 0`` (or ``== 0``), affine in y, element by element."""

    expression: Any
    equality: bool


@dataclass(frozen=True, eq=False)
class Membership:
    """``scale * (A y + b) in C`` for each group of rows of the affine ``argument``, raveled in Fortran order.

    ``groups`` (G, k) lists the rows of each set. The ``radius`` (G,) and the ``scale`` are free of y; None for a cone,
    and for scale 1. ``squared`` says that the radius bounds the square of the norm (and the scale multiplies the
    square). ``coordinates`` maps the raveled argument to the coordinates of the family first (svec for symmetric
    matrices).
    """

    family: Family
    argument: Any
    groups: np.ndarray
    radius: Any = None
    squared: bool = False
    scale: Any = None
    coordinates: sp.csr_array | None = None


@dataclass(frozen=True)
class Other:
    """A convex constraint without a closed form; ``reason`` says what it is."""

    reason: str


Piece = AffineRows | Membership | Other


def all_rows(expression: Any) -> np.ndarray:
    """One group of all rows of an expression: (1, size)."""
    return np.arange(int(expression.size))[None]


def rows_along(shape: tuple[int, ...], axis: int | None) -> np.ndarray:
    """Groups of a reduction of an array over ``axis``: rows in Fortran order, (number of results, reduced size)."""
    places = np.arange(int(np.prod(shape, dtype=int))).reshape(shape, order="F")
    if axis is None:
        return places.ravel(order="F")[None]
    return np.moveaxis(places, axis, -1).reshape(-1, shape[axis], order="F")
