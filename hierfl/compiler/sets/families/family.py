"""What every family of sets C offers: how it is recognised, and its projection in orthonormal coordinates.

A constraint ``A y + b in C`` whose rows are orthogonal reads ``d * v in C`` with ``v = W y + b / d``, W W' = I and the row
norms d: translations and rotations of y are in v, diagonal scalings in d. Each family says which scalings it can take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.expression import Expression
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.bounded_terms import BoundedTerm


class Family:
    """A family of closed convex sets C_r of vectors (k,); cones ignore the radius r."""

    name: ClassVar[str]  # in messages and ``CompiledSet.kind``
    cost: ClassVar[str]  # of one projection
    is_euclidean_ball: ClassVar[bool] = False
    has_spend: ClassVar[bool] = False  # whether a part of the vector that y does not reach can be treated

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """The membership that a bounded term is, None where it is in another family."""
        raise NotImplementedError

    def kind(self, uniform: bool) -> str:
        """The family's name; ``uniform`` says that all d are equal."""
        return self.name

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        """Whether row norms d can be treated."""
        raise NotImplementedError

    def project(
        self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""], uniform: bool
    ) -> Float[Array, " k"]:
        """Projection on {v : d * v in C_radius}; ``uniform`` says that all d are equal."""
        raise NotImplementedError

    def spend(self, radius: Float[Array, ""], lost: Float[Array, " lost"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """(the radius that is left beside a fixed part ``lost`` of the vector, how much is lacking: positive if empty).

        The compiler asks families with ``has_spend`` only.
        """
        raise NotImplementedError(f"{type(self).__name__} with rows that y does not reach")


@dataclass(frozen=True, eq=False)
class Membership:
    """``scale * (A y + b) in C`` for each group of rows of the affine ``argument``, raveled in Fortran order.

    ``groups`` (G, k) lists the rows of each set. The ``radius`` (G,) and the ``scale`` are free of y; None for a cone,
    and for scale 1. ``squared`` says that the radius bounds the square of the norm (and the scale multiplies the
    square). ``coordinates`` maps the raveled argument to the coordinates of the family first (svec for symmetric
    matrices).
    """

    family: Family
    argument: Expression
    groups: Int[np.ndarray, "groups k"]
    radius: Expression | None = None
    squared: bool = False
    scale: Expression | None = None
    coordinates: sp.csr_array | None = None


def stacked(cone: Family, vector: Expression, *scalars: Expression) -> Membership:
    """The membership of (u, t) or (u, s, t) in a cone, as one argument."""
    argument = cp.hstack([cp.vec(vector, order="F"), *(cp.reshape(s, (1,), order="F") for s in scalars)])
    return Membership(cone, argument, all_rows(argument))


def all_rows(expression: Expression) -> Int[np.ndarray, "1 k"]:
    """One group of all rows of an expression."""
    return np.arange(int(expression.size))[None]


def rows_along(shape: tuple[int, ...], axis: int | None) -> Int[np.ndarray, "groups k"]:
    """Groups of a reduction of an array over ``axis``: rows in Fortran order, (number of results, reduced size)."""
    places = np.arange(int(np.prod(shape, dtype=int))).reshape(shape, order="F")
    if axis is None:
        return places.ravel(order="F")[None]
    return np.moveaxis(places, axis, -1).reshape(-1, shape[axis], order="F")
