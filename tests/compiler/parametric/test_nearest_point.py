"""The nearest point of a set by the host engine: z itself where it is inside, else CVXPY's, feasible to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierfl.compiler.parametric.nearest_point import NearestPoint
from hierfl.compiler.programs.convex_program import EMPTY

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


@pytest.mark.parametrize("name", SETS)
def test_many_points_are_brought_where_each_is(name: str) -> None:
    x = cp.Variable(2)
    projection = NearestPoint.on(SETS[name](x), [x])
    points = np.random.default_rng(1).uniform(-2, 2, (100, 2))
    each = np.stack([np.asarray(projection.project(jnp.asarray(point), {})) for point in points])
    together = jax.vmap(lambda point: projection.project(point, {}))(jnp.asarray(points))
    np.testing.assert_allclose(together, each, rtol=0, atol=1e-12)


def test_points_outside_of_the_domain_are_not_in_the_set() -> None:
    """y^2 / s <= t holds for s < 0 as numbers do, but not as sets do."""
    x = cp.Variable(3)
    projection = NearestPoint.on([cp.quad_over_lin(x[:1], x[1]) <= x[2]], [x])
    np.testing.assert_allclose(projection.project(jnp.array([0.0, -1.0, 1.0]), {}), [0.0, 0.0, 1.0], atol=1e-8)
    np.testing.assert_array_equal(projection.project(jnp.array([1.0, 2.0, 1.0]), {}), [1.0, 2.0, 1.0])


@pytest.mark.parametrize("size", [1e-8, 1e4, 1e8])
def test_units_change_nothing(size: float) -> None:
    x = cp.Variable(3)
    for rows in (
        lambda s: [cp.norm(x) <= s, x >= 0],
        lambda s: [cp.norm(cp.multiply(np.arange(1, 4), x)) <= s],
        lambda s: [cp.norm(x) <= s, cp.sum(x) == 0.1 * s],
    ):
        unit, scaled = NearestPoint.on(rows(1.0), [x]), NearestPoint.on(rows(size), [x])
        for z in 2 * np.random.default_rng(0).standard_normal((4, 3)):
            expected = size * np.asarray(unit.project(jnp.asarray(z), {}))
            np.testing.assert_allclose(scaled.project(jnp.asarray(size * z), {}), expected, atol=1e-8 * size)


def test_an_empty_set_has_no_nearest_point() -> None:
    x = cp.Variable(2)
    projection = NearestPoint.on([x >= 1, cp.sum(x) <= 1], [x])
    assert projection.nearest(np.zeros(2), {}).status == EMPTY
    assert projection.nearest(np.ones(2), {}).status == EMPTY
