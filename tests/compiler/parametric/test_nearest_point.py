"""The nearest point of a set by the host engine: z itself where it is inside, else CVXPY's, feasible to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest

from hierfl.compiler.parametric.nearest_point import NearestPoint

pytestmark = pytest.mark.usefixtures("x64")

SETS: dict[str, Callable[[Any], list[Any]]] = {
    "polyhedron": lambda x: [x >= -1, x[0] + 2 * x[1] <= 2, x[0] - x[1] == 0.25],
    "disc and a row": lambda x: [cp.norm(x) <= 1, x[0] + x[1] <= 0.5],
    "parabola": lambda x: [cp.square(x[0]) + 2 * x[1] <= 1, x[1] >= -2],
}


@pytest.mark.parametrize("name", SETS)
def test_points_inside_stay_and_others_are_brought_nearest(name: str) -> None:
    x, z = cp.Variable(2), cp.Parameter(2)
    rows = SETS[name](x)
    projection = NearestPoint.on(rows, [x])
    reference = cp.Problem(cp.Minimize(cp.sum_squares(x - z)), rows)
    rng, stayed = np.random.default_rng(0), 0
    for _ in range(40):
        z.value = rng.uniform(-2, 2, 2)
        if name == "polyhedron" and rng.random() < 0.5:
            z.value = np.array([0.25, 0.0]) + z.value[0] / 3  # on the equation, to the bit or not
        reference.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        found = projection.nearest(z.value, {})
        assert found.solved and found.error <= 1e-9
        np.testing.assert_allclose(found.u[:2], x.value, atol=1e-6)
        nearest = np.asarray(projection.project(jnp.asarray(z.value), {}))
        np.testing.assert_allclose(nearest, x.value, atol=1e-6)
        x.value = z.value
        if max(float(np.max(row.violation())) for row in rows) == 0.0:
            stayed += 1
            np.testing.assert_allclose(nearest, z.value, rtol=0, atol=0 if name != "polyhedron" else 1e-15)
    assert stayed >= 3


def test_points_outside_of_the_domain_are_not_in_the_set() -> None:
    """y^2 / s <= t holds for s < 0 as numbers do, but not as sets do."""
    x = cp.Variable(3)
    projection = NearestPoint.on([cp.quad_over_lin(x[:1], x[1]) <= x[2]], [x])
    np.testing.assert_allclose(projection.project(jnp.array([0.0, -1.0, 1.0]), {}), [0.0, 0.0, 1.0], atol=1e-8)
    np.testing.assert_array_equal(projection.project(jnp.array([1.0, 2.0, 1.0]), {}), [1.0, 2.0, 1.0])
