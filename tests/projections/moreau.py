"""What characterises the projection on a closed convex cone: Moreau's decomposition."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from tests.projections.reference import check_projection

Violation = Callable[[np.ndarray], float]


def check_cone(
    project: Callable[[np.ndarray], jax.Array],
    violation: Violation,
    polar_violation: Violation,
    points: np.ndarray,
    tolerance: float = 1e-10,
) -> None:
    """z = p + v with p in the cone, v in its polar, p orthogonal to v; and what holds for every projection.

    Violations are distances, or multiples of them by at most about 1. All is relative to the size of z, not to 1 + ||z||.
    """
    projected = check_projection(project, violation, points, tolerance)
    for z, p in zip(np.asarray(points, dtype=float), projected.astype(float)):
        size = np.linalg.norm(z)
        assert violation(p) <= tolerance * size
        assert polar_violation(z - p) <= tolerance * size
        assert abs(np.vdot(p, z - p)) <= tolerance * size * size
