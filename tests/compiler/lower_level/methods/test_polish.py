"""Linear and quadratic programs solved to rounding, against solutions computed by hand and by SciPy's simplex method."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import hierfl as hf
from hierfl.compiler.lower_level.methods.active_set_polish import LinearQuadratic, polished


def on_a_box(target: np.ndarray) -> LinearQuadratic:
    """The point of [0, 1]^n next to a target."""
    n = len(target)
    rows = sp.csc_array(np.vstack([np.eye(n), -np.eye(n)]))
    return LinearQuadratic(sp.csc_array(np.eye(n)), -target, rows, np.append(np.ones(n), np.zeros(n)), 0)


def test_the_active_rows_are_mended_where_the_start_has_them_wrong() -> None:
    target = np.array([-1e-9, 1e-9, 0.5, 1.0, 1.0 + 1e-9, 3.0])
    found = polished(on_a_box(target), np.full(6, 0.5), np.full(12, 1.0))  # all rows look active
    assert found is not None and found.residual < 1e-15
    np.testing.assert_allclose(found.x, [0, 1e-9, 0.5, 1, 1, 1], atol=1e-16)
    np.testing.assert_allclose(found.z[6], 1e-9, atol=1e-16)


def test_a_linear_program_with_more_rows_than_it_needs() -> None:
    rng = np.random.default_rng(3)
    rows, cost = np.vstack([np.ones((2, 4)), -np.eye(4)]), rng.standard_normal(4)
    limits = np.array([1.0, 1.0, 0, 0, 0, 0])
    exact = linprog(cost, rows, limits, bounds=(None, None), method="highs")
    program = LinearQuadratic(sp.csc_array((4, 4)), cost, sp.csc_array(rows), limits, 0)
    near = exact.x + 1e-5 * rng.standard_normal(4), -exact.ineqlin.marginals + 1e-5
    found = polished(program, *near)
    assert found is not None
    np.testing.assert_allclose(found.x, exact.x, atol=1e-12)


def test_what_has_no_solution_is_not_polished() -> None:
    unbounded = LinearQuadratic(sp.csc_array((1, 1)), np.ones(1), sp.csc_array([[1.0]]), np.zeros(1), 0)
    assert polished(unbounded, np.zeros(1), np.zeros(1)) is None


@pytest.mark.parametrize("away", [-1e-3, -1e-6, -1e-9, 0.0, 1e-9, 1e-6, 1e-3])
def test_a_soft_threshold_is_exact_beside_its_kinks(away: float) -> None:
    """An interior-point method alone is off by 1e-6 there."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(server=y), hf.ArgMin(y, 0.5 * cp.square(y - x) + 0.3 * cp.abs(y)))
    for sign in (-1.0, 1.0):
        assert problem.implicit(sign * (0.3 + away)) == pytest.approx(sign * max(away, 0.0), abs=1e-15)
    assert problem.implicit.certificate(0.3 + away).lower_residual < 1e-14
