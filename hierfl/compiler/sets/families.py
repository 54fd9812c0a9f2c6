"""The families of sets C that memberships ``d * v in C`` are projected on, v in orthonormal coordinates.

A constraint ``A y + b in C`` whose rows are orthogonal reads ``d * v in C`` with ``v = W y + b / d``, W W' = I and the row
norms d: translations and rotations of y are in v, diagonal scalings in d. Each family says which scalings it can take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.projections import (
    ball,
    ellipsoid,
    group_ball,
    l1_ball,
    norm_cone,
    paraboloid,
    psd,
    rotated_cone,
    second_order_cone,
    spectral,
)


class Family(Protocol):
    """A family of closed convex sets C_r of vectors (k,); cones ignore the radius r."""

    @property
    def name(self) -> str:
        """In messages and ``CompiledSet.kind``."""

    @property
    def cost(self) -> str:
        """Cost of one projection."""

    def admits(self, scales: np.ndarray) -> bool:
        """Whether row norms d (k,) can be treated."""

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """Projection on {v : d * v in C_radius}; ``uniform`` says that all d are equal."""

    def spend(self, radius: Array, lost: Array) -> tuple[Array, Array]:
        """(the radius that is left beside a fixed part ``lost`` of the vector, how much is lacking: positive if empty)."""


def is_uniform(scales: np.ndarray) -> bool:
    """All equal, up to rounding."""
    return scales.size == 0 or bool(np.ptp(scales) <= 1e-12 * np.max(scales))


class _Whole:
    """Families whose vectors have no fixed part."""

    def spend(self, radius: Array, lost: Array) -> tuple[Array, Array]:
        """Never asked for: the compiler keeps such constraints away."""
        raise NotImplementedError(f"{type(self).__name__} with rows that y does not reach")


class _Norm(_Whole):
    """Balls and cones whose rows must share one scale."""

    def admits(self, scales: np.ndarray) -> bool:
        """Equal scales only."""
        return is_uniform(scales)


class _Cone(_Whole):
    """Cones {(u, t)} whose u rows must share one scale; the last row is t."""

    def admits(self, scales: np.ndarray) -> bool:
        """Equal scales in u, positive in t."""
        return is_uniform(scales[:-1]) and bool(scales[-1] > 0)


@dataclass(frozen=True)
class L2Ball:
    """||d * v||_2 <= r: a ball, or an ellipsoid."""

    name: str = "ball"
    cost: str = "O(n)"

    def admits(self, scales: np.ndarray) -> bool:
        """Any."""
        return True

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """Scaling, or a root search for the multiplier."""
        if uniform:
            return ball.project(v, jnp.zeros_like(v), _divided(radius, d[0]))
        return ellipsoid.project(v, jnp.zeros_like(v), d, radius)

    def spend(self, radius: Array, lost: Array) -> tuple[Array, Array]:
        """Pythagoras."""
        square = jnp.sum(lost * lost)
        left = radius * jnp.abs(radius) - square
        return safe_sqrt(left), safe_sqrt(square) - radius


@dataclass(frozen=True)
class L1Ball:
    """||d * v||_1 <= r."""

    name: str = "l1 ball"
    cost: str = "O(n log n)"

    def admits(self, scales: np.ndarray) -> bool:
        """Any: the weighted ball."""
        return True

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """Soft thresholding at the multiplier."""
        return l1_ball.project(v, jnp.zeros_like(v), d, radius)

    def spend(self, radius: Array, lost: Array) -> tuple[Array, Array]:
        """The difference."""
        left = radius - jnp.sum(jnp.abs(lost))
        return jnp.maximum(left, 0.0), -left


@dataclass(frozen=True, eq=False)
class GroupBall(_Whole):
    """sum_g ||d * v_g||_2 <= r for the groups of ``partition`` (k,)."""

    partition: np.ndarray
    name: str = "group ball"
    cost: str = "O(n log n)"

    def admits(self, scales: np.ndarray) -> bool:
        """Equal scales within each group."""
        return all(is_uniform(scales[self.partition == group]) for group in np.unique(self.partition))

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """Group soft thresholding at the multiplier."""
        _, first = np.unique(self.partition, return_index=True)
        return group_ball.project(v, self.partition, jnp.zeros_like(v), d[first], radius)


@dataclass(frozen=True)
class SpectralBall(_Norm):
    """Largest singular value at most r; v is a matrix of ``shape`` in Fortran order."""

    shape: tuple[int, int]
    name: str = "spectral ball"
    cost: str = "O(n^1.5): a singular value decomposition"

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """Clip the singular values."""
        return _matrix_to_vector(
            spectral.project_spectral_ball(v.reshape(self.shape, order="F"), _divided(radius, d[0]))
        )


@dataclass(frozen=True)
class NuclearBall(_Norm):
    """Sum of the singular values at most r; v is a matrix of ``shape`` in Fortran order."""

    shape: tuple[int, int]
    name: str = "nuclear ball"
    cost: str = "O(n^1.5): a singular value decomposition"

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """Project the singular values on an l1 ball."""
        return _matrix_to_vector(
            spectral.project_nuclear_ball(v.reshape(self.shape, order="F"), _divided(radius, d[0]))
        )


@dataclass(frozen=True)
class PsdCone(_Norm):
    """Positive semidefinite matrices of this order; v holds svec coordinates (lower triangle, off-diagonal times sqrt 2)."""

    order: int
    name: str = "PSD cone"
    cost: str = "O(n^1.5): an eigenvalue decomposition"

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """Clip the eigenvalues."""
        rows, columns, scales = _triangle(self.order)
        half = v / jnp.asarray(scales, v.dtype)
        matrix = jnp.zeros((self.order, self.order), v.dtype).at[rows, columns].set(half).at[columns, rows].set(half)
        return psd.project(matrix)[rows, columns] * jnp.asarray(scales, v.dtype)


def svec_map(order: int) -> np.ndarray:
    """The matrix (order (order + 1) / 2, order^2) from a raveled matrix to the svec coordinates of its symmetric part."""
    rows, columns, scales = _triangle(order)
    picked = np.zeros((len(rows), order * order))
    place = np.arange(len(rows))
    picked[place, rows + order * columns] += 0.5 * scales
    picked[place, columns + order * rows] += 0.5 * scales
    return picked


def _triangle(order: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = np.tril_indices(order)
    return rows, columns, np.where(rows == columns, 1.0, np.sqrt(2.0))


@dataclass(frozen=True)
class SecondOrderCone(_Cone):
    """||d u||_2 <= d_t t, v = (u, t)."""

    name: str = "second-order cone"
    cost: str = "O(n)"

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """Closed form."""
        u, t = second_order_cone.project(v[:-1], v[-1], d[-1] / d[0])
        return jnp.append(u, t)


@dataclass(frozen=True)
class L1Cone(_Cone):
    """||d u||_1 <= d_t t, v = (u, t)."""

    name: str = "l1 cone"
    cost: str = "O(n log n)"

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """By sorting."""
        u, t = norm_cone.project_l1(v[:-1], v[-1], d[-1] / d[0])
        return jnp.append(u, t)


@dataclass(frozen=True)
class LinfCone(_Cone):
    """max |d u| <= d_t t, v = (u, t)."""

    name: str = "max-norm cone"
    cost: str = "O(n log n)"

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """By sorting."""
        u, t = norm_cone.project_linf(v[:-1], v[-1], d[-1] / d[0])
        return jnp.append(u, t)


@dataclass(frozen=True)
class RotatedCone(_Whole):
    """||d u||^2 <= (d_s s)(d_t t), s, t >= 0, v = (u, s, t)."""

    name: str = "rotated cone"
    cost: str = "O(n)"

    def admits(self, scales: np.ndarray) -> bool:
        """Equal scales in u, positive in s and t."""
        return is_uniform(scales[:-2]) and bool(scales[-2:].min() > 0)

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """Closed form for the standard cone, else a root search."""
        u, s, t = rotated_cone.project(v[:-2], v[-2], v[-1], d[-2] * d[-1] / d[0] ** 2)
        return jnp.concatenate([u, jnp.stack([s, t])])


@dataclass(frozen=True)
class Paraboloid(_Cone):
    """||d u||^2 <= d_t t, v = (u, t)."""

    name: str = "paraboloid"
    cost: str = "O(n)"

    def project(self, v: Array, d: Array, radius: Array, uniform: bool) -> Array:
        """A root search for the multiplier."""
        u, t = paraboloid.project(v[:-1], v[-1], d[-1] / d[0] ** 2)
        return jnp.append(u, t)


def _divided(radius: Array, scale: Array) -> Array:
    """radius / scale; a vanishing scale leaves everything free."""
    return jnp.where(scale > 0, radius / jnp.where(scale > 0, scale, 1.0), jnp.inf)


def _matrix_to_vector(matrix: Array) -> Array:
    return jnp.ravel(matrix, order="F")


def safe_sqrt(square: Array) -> Array:
    """sqrt(max(square, 0)) with derivative 0, not NaN, where it is not positive."""
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
