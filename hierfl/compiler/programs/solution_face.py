"""The face of K in which the slacks of all solutions are: those of K that are orthogonal to the multipliers of one.

Rows of inequalities with a multiplier hold for all. A second-order cone with a multiplier inside leaves the slack 0, one on the boundary
leaves it a ray; a semidefinite one leaves matrices on the null space of the multiplier (Bonnans and Shapiro, 2000, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.programs.cones import (
    NONNEGATIVE,
    OF_THREE,
    SECOND_ORDER,
    SEMIDEFINITE,
    ZERO,
    Cone,
    blocks,
    triangle,
)
from hierfl.compiler.programs.cones_of_three import rays_left

FAINT = 1e-9  # of the largest multiplier, and of the forces, below which a cone's counts as none
NEAR = 1e-7  # of a multiplier, up to which it is on the boundary of its cone

Rows = Float[np.ndarray, " rows"]
Map = Float[np.ndarray, "k rows"]


@dataclass(frozen=True, eq=False)
class SolutionFace:
    """Slacks e with ``tight`` e = 0, ``loose`` e >= 0, and each of ``curved``'s maps of e in its cone."""

    tight: Map
    loose: Map
    curved: tuple[tuple[Cone, Map], ...]

    @classmethod
    def of(cls, cones: Sequence[Cone], z: Rows, strong: Bool[np.ndarray, " rows"], force: float) -> SolutionFace:
        """The face for multipliers z, beside forces of some size; ``strong`` says which rows of equations and inequalities hold for all."""
        every = np.eye(len(z))
        tight, loose = [np.zeros((0, len(z)))], [np.zeros((0, len(z)))]
        curved: list[tuple[Cone, Map]] = []
        largest = max(float(np.abs(z).max(initial=0.0)), force)
        for cone, rows in blocks(cones):
            own, held = every[rows], strong[rows]
            if cone.kind in (ZERO, NONNEGATIVE):
                tight.append(own[held])
                loose.append(own[~held])
            elif np.linalg.norm(z[rows]) <= FAINT * largest:
                curved.append((cone, own))
            elif cone.kind == SECOND_ORDER:
                ray = _ray(z[rows])
                across = np.eye(cone.size) if ray is None else np.eye(cone.size) - np.outer(ray, ray)
                tight.append(across @ own)
                if ray is not None:
                    loose.append(ray[None] @ own)
            elif cone.kind in OF_THREE:
                rays = np.reshape(rays_left(cone.share, z[rows]), (-1, 3))
                loose.append(np.linalg.pinv(rays.T) @ own)
                tight.append(np.linalg.svd(rays)[2][len(rays) :] @ own)
            else:
                assert cone.kind == SEMIDEFINITE
                zero, rest = _on_null_space(z[rows], cone.order)
                tight.append(zero @ own)
                if len(rest):
                    order = round((np.sqrt(8 * len(rest) + 1) - 1) / 2)
                    curved.append((Cone(SEMIDEFINITE, len(rest), order), rest @ own))
        return cls(np.vstack(tight), np.vstack(loose), tuple(curved))


def _ray(z: Rows) -> Rows | None:
    """The unit vector along which slacks may be that are orthogonal to z; None where z is inside the cone."""
    if z[0] - np.linalg.norm(z[1:]) > NEAR * z[0]:
        return None
    ray = np.append(np.linalg.norm(z[1:]), -z[1:])
    return ray / np.linalg.norm(ray)


def _on_null_space(z: Rows, order: int) -> tuple[Map, Map]:
    """(the map of a triangle to what has to vanish, the map to the triangle of the matrix on the null space of z)."""
    values, vectors = np.linalg.eigh((triangle(order).T @ z).reshape(order, order))
    pulled = values > NEAR * values.max()
    held, free = vectors[:, pulled], vectors[:, ~pulled]
    matrices = triangle(order).T.reshape(order, order, -1, order="F")  # of each entry of the triangle
    zero = np.einsum("ai,abk,bj->ijk", held, matrices, vectors).reshape(-1, matrices.shape[-1])
    inner = np.einsum("ai,abk,bj->ijk", free, matrices, free).reshape(free.shape[1] ** 2, matrices.shape[-1], order="F")
    return zero, triangle(free.shape[1]) @ inner if free.shape[1] else np.zeros((0, matrices.shape[-1]))
