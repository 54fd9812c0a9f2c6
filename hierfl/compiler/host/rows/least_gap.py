"""Monotone affine variational inequalities as convex quadratic programs (Cottle, Pang and Stone, 1992, section 3.1).

    minimise  z' (A u + b)   subject to   H u + g = A' z,  the first rows of A u + b zero, the others and their z nonnegative.

On the feasible set the cost is u' H u + g' u + b' z, convex where H is monotone. Its minimum is 0, at the solutions of the inequality;
where nothing is feasible, it has none. No matrix is inverted, so that H may be singular, or skew.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from hierfl.compiler.host.standard_form import NONNEGATIVE, ZERO, Cone

RANK = 1e-10  # relative, below which a singular value counts as zero
FLAT = 1e-12  # relative, below which a curvature counts as zero
PULL = 1e-9  # of g, along directions without an end
FAR = 1e8  # of its units, from which u may be a point on the way to infinity

Matrix = Float[np.ndarray, "rows width"]
Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]


@dataclass(frozen=True, eq=False)
class LeastGap:
    """The program, for rows of length 1 of which the first are equations; u moves from a point of these along them.

    The equations and the directions that neither H nor a row sees are taken out first: with them the rows of the program would depend
    on each other, and its solutions have no vertex.
    """

    h: Float[np.ndarray, "width width"]
    g: Vector
    a: Matrix
    b: Rows
    equations: int

    @cached_property
    def point(self) -> Vector:
        """The shortest u that the equations hold at."""
        equal = slice(self.equations)
        return np.linalg.lstsq(self.a[equal], -self.b[equal], rcond=RANK)[0]

    @cached_property
    def directions(self) -> Float[np.ndarray, "width k"]:
        """A basis of those that keep the equations."""
        return _split(self.a[: self.equations])[1]

    @cached_property
    def curved(self) -> Float[np.ndarray, "k k"]:
        """H along these directions."""
        return self._along(self.directions)

    def _along(self, basis: Float[np.ndarray, "width k"]) -> Float[np.ndarray, "k k"]:
        """H along a basis, with zeros for rounding, which is all that there is of a skew H along a line."""
        h = basis.T @ self.h @ basis
        return np.where(np.abs(h) > FLAT * np.abs(self.h).max(initial=0.0), h, 0.0)

    @cached_property
    def is_monotone(self) -> bool:
        """Whether H is, along these directions, positive semidefinite up to rounding."""
        least = np.linalg.eigvalsh(0.5 * (self.curved + self.curved.T)).min(initial=0.0)
        return bool(least >= -RANK * np.abs(self.h).max(initial=0.0))

    @cached_property
    def has_pull(self) -> bool:
        """Whether F pulls along a line that is in Y and along which F is constant: there is no solution then."""
        force = self.directions.T @ (self.h @ self.point + self.g)
        size = np.abs(self.h) @ np.abs(self.point) + np.abs(self.g)
        return bool(np.abs(self._seen[1].T @ force).max(initial=0.0) > PULL * size.max(initial=0.0))

    @cached_property
    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Bases, among the directions, of those that H or a row sees, and of the others; monotone maps do not pull H u along the latter."""
        h = self.curved / (np.abs(self.h).max(initial=0.0) or 1.0)
        return _split(np.vstack([h, self.a[self.equations :] @ self.directions]))

    @cached_property
    def _basis(self) -> Float[np.ndarray, "width k"]:
        return self.directions @ self._seen[0]

    @cached_property
    def _units(self) -> tuple[float, float]:
        """(of multipliers, of u), in which H, g, and b are about 1."""
        unit = max(1.0, float(np.abs(self.b).max(initial=0.0)))
        return max(float(np.abs(self.h).max(initial=0.0)) * unit, float(np.abs(self.g).max(initial=0.0))) or 1.0, unit

    def is_far(self, u: Vector) -> bool:
        """Whether u is so large that relative errors say little: where a map pulls u to infinity, they fall to nothing on the way."""
        weight, unit = self._units
        return bool(
            np.abs(u).max(initial=0.0) > FAR * weight / (float(np.abs(self.h).max(initial=0.0)) or weight / unit)
        )

    @cached_property
    def program(self) -> tuple[np.ndarray, Vector, Matrix, Rows, list[Cone]]:
        """H, g, A, b and the cones of the quadratic program, in these units."""
        (weight, unit), basis, rows = self._units, self._basis, self.a[self.equations :]
        h, g = self._along(basis) * (unit / weight), basis.T @ (self.h @ self.point + self.g) / weight
        a = np.where(np.abs(rows @ basis) > FLAT, rows @ basis, 0.0)
        b = (rows @ self.point + self.b[self.equations :]) / unit
        width, count = len(g), len(b)
        cost = np.zeros((width + count, width + count))
        cost[:width, :width] = _without_rounding(h + h.T)
        constraints = np.block([[h, -a.T], [a, np.zeros((count, count))], [np.zeros((count, width)), np.eye(count)]])
        cones = [Cone(ZERO, width), Cone(NONNEGATIVE, 2 * count)]
        return cost, np.concatenate([g, b]), constraints, np.concatenate([g, b, np.zeros(count)]), cones

    def pair(self, solution: Vector) -> tuple[Vector, Rows]:
        """(u, z) from the program's solution."""
        (weight, unit), width, equal = self._units, self._basis.shape[1], self.a[: self.equations]
        u, z = self.point + self._basis @ solution[:width] * unit, solution[width:] * weight
        left = self.h @ u + self.g - self.a[self.equations :].T @ z
        return u, np.concatenate([np.linalg.lstsq(equal.T, left, rcond=RANK)[0], z])


def _split(matrix: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Bases of what a matrix with entries of about 1 sees, and of its kernel; where it sees everything, the directions as they are."""
    width = matrix.shape[1]
    _, values, right = np.linalg.svd(matrix)
    rank = int(np.sum(values > RANK * max(1.0, values.max(initial=0.0))))
    return (np.eye(width), np.zeros((width, 0))) if rank == width else (right[:rank].T, right[rank:].T)


def _without_rounding(h: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """A symmetric matrix with nothing of it that is only rounding, or negative."""
    values, vectors = np.linalg.eigh(h)
    floor = FLAT * np.abs(h).max(initial=0.0)
    if (values > floor).all():
        return h
    rest = (vectors * np.where(values > floor, values, 0.0)) @ vectors.T
    flat = np.diagonal(rest) <= floor
    rest[flat], rest[:, flat] = 0.0, 0.0
    return rest
