"""Projections on exponential and power cones: what is nearest is told by Moreau's theorem, their derivatives by differences."""

from __future__ import annotations

import numpy as np
import pytest

from hierfl.compiler.programs.cones import (
    EXPONENTIAL,
    POWER,
    Cone,
    dual_slope,
    nearest_of_three,
    project_dual,
)

CONES = {
    "exponential": Cone(EXPONENTIAL, 3),
    "power, a half": Cone(POWER, 3, share=0.5),
    "power, a tenth": Cone(POWER, 3, share=0.1),
}


def missed(cone: Cone, v: np.ndarray) -> float:
    """By how much a point with y > 0 is outside, along z."""
    x, y, z = v
    return y * np.exp(x / y) - z if cone.share is None else abs(z) - x**cone.share * y ** (1 - cone.share)


@pytest.mark.parametrize("name", CONES)
def test_the_nearest_point_is_in_the_cone_and_what_is_left_in_its_polar(name: str) -> None:
    cone, rng = CONES[name], np.random.default_rng(0)
    for _ in range(300):
        v = rng.standard_normal(3) * 10.0 ** rng.integers(-2, 3)
        size = float(np.linalg.norm(v))
        near, _ = nearest_of_three(cone, v)
        assert abs(near @ (v - near)) <= 1e-13 * size**2
        if near[1] > 1e-3 * size and (cone.share is None or near[0] > 1e-3 * size):
            assert missed(cone, near) <= 1e-11 * size
        for _ in range(20):  # no other point of the cone is nearer
            x, y = rng.normal(), rng.exponential()
            other = np.array([x, y, y * np.exp(x / y)])
            if cone.share is not None:
                other = np.array([abs(x), y, rng.choice([-1, 1]) * abs(x) ** cone.share * y ** (1 - cone.share)])
            assert (v - near) @ other <= 1e-12 * size * (np.linalg.norm(other))


@pytest.mark.parametrize("name", CONES)
def test_derivatives_are_those_of_differences(name: str) -> None:
    cones, rng = [CONES[name]], np.random.default_rng(1)
    for _ in range(200):
        v = rng.standard_normal(3)
        slopes = [
            (project_dual(cones, v + 1e-6 * way) - project_dual(cones, v - 1e-6 * way)) / 2e-6 for way in np.eye(3)
        ]
        said = dual_slope(cones, v)
        if np.abs(dual_slope(cones, v + 1e-5) - said).max() < 1e-2:  # no kink nearby
            np.testing.assert_allclose(np.transpose(slopes), said, atol=1e-5)
        np.testing.assert_allclose(said, said.T, atol=1e-9)
