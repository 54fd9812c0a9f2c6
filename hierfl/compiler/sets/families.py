"""The families of sets C that one convex term describes: how each is recognised, and its projection in orthonormal coordinates.

A constraint ``A y + b in C`` whose rows are orthogonal reads ``d * v in C`` with ``v = W y + b / d``, W W' = I and the row
norms d: translations and rotations of y are in v, diagonal scalings in d. Each family says which scalings it can take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.expression import Expression
from jaxtyping import Array, Float, Int

from hierfl.analysis.bounded_terms import BoundedTerm, LargestEigenvalue, Norm, Semidefinite
from hierfl.compiler.programs.cones import triangle
from hierfl.projections import ball, box_with_hyperplane, l1_ball, psd, second_order_cone


class Family:
    """A family of closed convex sets C_r of vectors (k,); cones ignore the radius r."""

    name: ClassVar[str]  # in messages and ``CompiledSet.kind``
    cost: ClassVar[str]  # of one projection

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """The membership that a bounded term is, None where it is in another family."""
        raise NotImplementedError(f"{cls.__name__} is a Family without recognise: a classmethod of the term that gives a Membership, or None.")

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        """Whether row norms d > 0 can be treated: if they are one number, unless a family can do more."""
        return is_uniform(scales)

    def project(self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""]) -> Float[Array, " k"]:
        """Projection on {v : d * v in C_radius}."""
        raise NotImplementedError(f"{type(self).__name__} is a Family without project(v, d, radius), in jax.numpy.")


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


class NormBall(Family):
    """Balls of the norm of an ``order``, along an axis or not: it, or its square, is below a bound that is free of y."""

    order: ClassVar[float]

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        norm = term.function
        if not (isinstance(norm, Norm) and norm.order == cls.order) or term.bound.variables():
            return None
        groups = _rows_along(norm.argument.shape, norm.axis)
        return Membership(cls(), norm.argument, groups, radius=term.bound, squared=norm.squared, scale=term.scale)


class L2Ball(NormBall):
    """Euclidean balls, ||v||_2 <= r."""

    order: ClassVar[float] = 2
    name: ClassVar[str] = "ball"
    cost: ClassVar[str] = "O(n)"

    def project(self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""]) -> Float[Array, " k"]:
        return ball.project(v, radius / d[0])


class L1Ball(NormBall):
    """Balls of the l1 norm, with weights or without, sum |d_j v_j| <= r."""

    order: ClassVar[float] = 1
    name: ClassVar[str] = "l1 ball"
    cost: ClassVar[str] = box_with_hyperplane.COST

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        return True

    def project(self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""]) -> Float[Array, " k"]:
        return l1_ball.project(v, d, radius)


@dataclass(frozen=True)
class PsdCone(Family):
    """The cone of positive semidefinite matrices of an ``order``; v holds the lower triangle, off-diagonal times sqrt 2 (svec)."""

    order: int
    name: ClassVar[str] = "PSD cone"
    cost: ClassVar[str] = "O(n^1.5): an eigenvalue decomposition"

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """A semidefinite matrix, or a largest eigenvalue below a bound: bound * I - scale * X is semidefinite."""
        function = term.function
        if isinstance(function, Semidefinite):
            matrix = function.argument
        elif isinstance(function, LargestEigenvalue) and function.argument.is_symmetric():  # CVXPY makes others symmetric
            matrix = term.bound * np.eye(function.argument.shape[0]) - term.scaled(function.argument)
        else:
            return None
        order = int(matrix.shape[0])
        coordinates = sp.csr_array(triangle(order))
        return Membership(cls(order), matrix, np.arange(coordinates.shape[0])[None], coordinates=coordinates)

    def project(self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""]) -> Float[Array, " k"]:
        rows, columns = np.tril_indices(self.order)
        scales = np.where(rows == columns, 1.0, np.sqrt(2.0))  # that keep the Frobenius norm
        half = v / jnp.asarray(scales, v.dtype)
        matrix = jnp.zeros((self.order, self.order), v.dtype).at[rows, columns].set(half).at[columns, rows].set(half)
        return psd.project(matrix)[rows, columns] * jnp.asarray(scales, v.dtype)


class SecondOrderCone(Family):
    """Second-order cones {(u, t) : ||d u||_2 <= d_t t}, v = (u, t)."""

    name: ClassVar[str] = "second-order cone"
    cost: ClassVar[str] = "O(n)"

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """One Euclidean norm below a number that moves with y."""
        norm = term.function
        if not (isinstance(norm, Norm) and norm.order == 2 and norm.axis is None) or norm.squared:
            return None
        if not term.bound.variables() or term.bound.size > 1:
            return None
        above = cp.reshape(term.bound, (1,), order="F")
        argument = cp.hstack([cp.vec(term.scaled(norm.argument), order="F"), above])
        return Membership(cls(), argument, np.arange(argument.size)[None])

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        return is_uniform(scales[:-1])

    def project(self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""]) -> Float[Array, " k"]:
        u, t = second_order_cone.project(v[:-1], v[-1], d[-1] / d[0])
        return jnp.append(u, t)


FAMILIES: tuple[type[Family], ...] = (L2Ball, L1Ball, PsdCone, SecondOrderCone)


def membership(term: BoundedTerm) -> Membership | None:
    """The term as a membership in the first family that recognises it."""
    for family in FAMILIES:
        piece = family.recognise(term)
        if piece is None:
            continue
        if not (isinstance(piece, Membership) and isinstance(piece.family, Family) and hasattr(piece.family, "name") and np.ndim(piece.groups) == 2):
            own = f"Membership(Mine(), argument, groups of shape (G, k), ...), or None, and {family.__name__} a name"
            raise TypeError(f"{family.__name__}.recognise gives {piece!r}: it gives {own}.")
        return piece
    return None


def is_uniform(scales: Float[np.ndarray, " k"]) -> bool:
    """Whether all are equal, up to rounding."""
    return scales.size == 0 or bool(np.ptp(scales) <= 1e-12 * np.max(scales))


def _rows_along(shape: tuple[int, ...], axis: int | None) -> Int[np.ndarray, "groups k"]:
    """Groups of a reduction of an array over ``axis``: rows in Fortran order, (number of results, reduced size)."""
    places = np.arange(int(np.prod(shape, dtype=int))).reshape(shape, order="F")
    if axis is None:
        return places.ravel(order="F")[None]
    return np.moveaxis(places, axis, -1).reshape(-1, shape[axis], order="F")
