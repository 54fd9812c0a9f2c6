"""Nearest points of exponential and power cones: by Moreau's conditions, which no other point meets, and differences."""

from __future__ import annotations

import numpy as np
import pytest

from hierfl.compiler.programs.cones import EXPONENTIAL, POWER, Cone, nearest_of_three

CONES = {"exponential": Cone(EXPONENTIAL, 3), **{f"power {share}": Cone(POWER, 3, share=share) for share in (0.2, 0.5, 0.9)}}
SIGNS = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, 8).T


def holds(cone: Cone, v: np.ndarray, within: float, dual: bool = False) -> bool:
    """Whether a point is in the cone, or in its dual, once it is moved by so much to what is inside of both."""
    x, y, z = v + within * (np.array([1.0, 1.0, 0.0]) if cone.share is not None else np.array([-1.0, 1.0, 1.0]))
    if cone.share is not None:
        first, second = (x / cone.share, y / (1 - cone.share)) if dual else (x, y)
        return min(first, second) >= 0 and bool(first**cone.share * second ** (1 - cone.share) >= abs(z))
    if dual:
        return bool(-x * np.exp(y / x - 1) <= z) if x < 0 else bool(x == 0 and min(y, z) >= 0)
    return bool(y * np.exp(x / y) <= z) if y > 0 else bool(y == 0 and x <= 0 <= z)


@pytest.mark.parametrize("name", CONES)
def test_moreaus_conditions_and_the_derivative(name: str) -> None:
    cone, rng = CONES[name], np.random.default_rng(4)
    for v in [*(sign * scale for sign in SIGNS for scale in 10 ** rng.uniform(-1.5, 1.0, (12, 3)))]:
        point, slope = nearest_of_three(cone, v)
        apart, size = point - v, 1 + np.linalg.norm(v)
        assert holds(cone, point, 1e-9 * size) and holds(cone, apart, 1e-9 * size, dual=True)
        assert abs(point @ apart) <= 1e-9 * size**2
        moves = [(nearest_of_three(cone, v + step)[0] - nearest_of_three(cone, v - step)[0]) / 2e-6 for step in 1e-6 * np.eye(3)]
        np.testing.assert_allclose(slope, np.transpose(moves), atol=2e-4)
