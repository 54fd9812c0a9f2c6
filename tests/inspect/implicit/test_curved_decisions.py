"""X as an intersection of curved sets: points inside are points of X, to the last digit, and others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.errors import SettingError

SETS: dict[str, Callable[[Any], list[Any]]] = {
    "ball and exponential": lambda x: [cp.sum_squares(x) <= 1, cp.exp(x[0]) <= x[1] + 2],
    "two balls": lambda x: [cp.sum_squares(x) <= 1, cp.sum_squares(x - np.array([0.8, 0.0])) <= 1],
    "parabola and box": lambda x: [cp.square(x[0]) + 2 * x[1] <= 1, x >= -1, x <= 0.9],
    "lens and row": lambda x: [cp.norm(x) <= 1, cp.norm(x - 0.5) <= 1, x[0] + x[1] >= 0.1],
}


@pytest.mark.parametrize("name", SETS)
def test_points_on_either_side_of_the_boundary(name: str) -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    rows = SETS[name](x)
    below = hf.ArgMin(y, cp.sum_squares(y - x), [y <= 0.5])
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=below, constraints=rows)
    rng, inside, outside = np.random.default_rng(0), 0, 0
    centre = np.array([0.3, 0.1])
    for _ in range(60):
        direction = rng.standard_normal(2)
        direction /= np.linalg.norm(direction)
        low, high = 0.0, 9.0
        for _ in range(60):  # the boundary, by bisection on CVXPY's own evaluation
            middle = 0.5 * (low + high)
            x.value = centre + middle * direction
            low, high = (middle, high) if max(float(np.max(r.violation())) for r in rows) == 0.0 else (low, middle)
        for short in (1e-3, 1e-6, 1e-10):
            point = centre + (low - short) * direction
            assert problem.implicit(point) == pytest.approx(np.minimum(point, 0.5).sum(), abs=1e-12)
            inside += 1
        with pytest.raises(SettingError, match="outside X"):
            problem.implicit(centre + (low + 1e-2) * direction)
        outside += 1
    assert inside == 180 and outside == 60
