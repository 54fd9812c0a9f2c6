"""The nearest point of a set by the host engine: z itself where it is inside, else CVXPY's, feasible to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from hierfl.compiler.host.cone_solution import EMPTY, SOLVED
from hierfl.compiler.host.nearest_point import HostProjection

SETS: dict[str, Callable[[Any], list[Any]]] = {
    "polyhedron": lambda x: [x >= -1, x[0] + 2 * x[1] <= 2, x[0] - x[1] == 0.25],
    "disc and a row": lambda x: [cp.norm(x) <= 1, x[0] + x[1] <= 0.5],
    "parabola": lambda x: [cp.square(x[0]) + 2 * x[1] <= 1, x[1] >= -2],
}


@pytest.mark.parametrize("name", SETS)
def test_points_inside_stay_and_others_are_brought_nearest(name: str) -> None:
    x, z = cp.Variable(2), cp.Parameter(2)
    rows = SETS[name](x)
    projection = HostProjection.on(rows, [x])
    reference = cp.Problem(cp.Minimize(cp.sum_squares(x - z)), rows)
    rng, stayed = np.random.default_rng(0), 0
    for _ in range(40):
        z.value = rng.uniform(-2, 2, 2)
        if name == "polyhedron" and rng.random() < 0.5:
            z.value = np.array([0.25, 0.0]) + z.value[0] / 3  # on the equation, to the bit or not
        reference.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        found = projection.nearest(z.value, {})
        assert found.status == SOLVED and found.error <= 1e-9
        np.testing.assert_allclose(found.u[:2], x.value, atol=1e-6)
        x.value = z.value
        if max(float(np.max(row.violation())) for row in rows) == 0.0:
            stayed += 1
            np.testing.assert_allclose(found.u[:2], z.value, rtol=0, atol=1e-9)
    assert stayed >= 3


def test_an_empty_set_has_no_nearest_point() -> None:
    x = cp.Variable(2)
    projection = HostProjection.on([x >= 1, cp.sum(x) <= 1], [x])
    assert projection.nearest(np.zeros(2), {}).status == EMPTY
    assert projection.nearest(np.ones(2), {}).status == EMPTY
