"""Numbers of very different sizes in one lower level: right answers, honest bounds, or a named error."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-7, 1e-8, 1e-9])
def test_bounds_count_what_ill_conditioned_equations_make_of_rounding(epsilon: float) -> None:
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    rows = np.array([[1, 1, 0], [1, 1 + epsilon, 0.0]])
    level = hf.ArgMin(y, cp.sum_squares(y - x), [rows @ y == cp.hstack([x[0], x[0] + epsilon])])
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y) + 0 * cp.sum(x)), lower=level)
    at = np.array([0.1, 0.7, 1 / 3])
    error = np.linalg.norm(problem.implicit.response(at) - np.array([at[0] - 1, 1, at[2]]))
    assert error <= problem.implicit.certificate(at).error_bound <= 1e-2


@pytest.mark.parametrize(
    "constraints",
    [
        lambda x, y: [y >= 1e-8, y <= 0.91e-8],
        lambda x, y: [y >= 0, y <= 1e-10, cp.sum(y) == 1e-9],
        lambda x, y: [cp.norm(y) <= -1e-10 * x],
        lambda x, y: [cp.sum(y) >= 1e-8, cp.sum(y) <= 0.9e-8],
    ],
)
def test_tiny_sets_are_empty_when_they_are(constraints: Any) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum(y) + 0 * x), lower=hf.ArgMin(y, cp.sum_squares(y - x), constraints(x, y))
    )
    with pytest.raises(hf.EmptyLowerSetError):
        problem.implicit(0.1)


@pytest.mark.parametrize(
    "constraints",
    [
        lambda x, y, z: [z >= y[0], cp.log(z) >= -1],
        lambda x, y, z: [cp.norm(y - x) <= 1, z >= y[0], cp.sqrt(z) >= 0.1],
        lambda x, y, z: [y[1] <= 1 + y[0], cp.inv_pos(y[0]) <= 2],
        lambda x, y, z: [y[1] >= y[0], cp.sqrt(y[1]) >= 1.5],
    ],
)
def test_no_constraint_is_lost_beside_a_band(constraints: Any) -> None:
    x, y, z = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Variable(name="z")
    level = hf.ArgMin([y, z], cp.sum_squares(y - x) + cp.square(z - x[0]), constraints(x, y, z))
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y) + z), lower=level)
    at = np.array([-1.0, 0.5])
    direct = cp.Problem(cp.Minimize(cp.sum_squares(y - at) + cp.square(z - at[0])), constraints(at, y, z))
    direct.solve(solver=cp.CLARABEL)
    response = problem.implicit.response(at)
    np.testing.assert_allclose(response[y], y.value, atol=1e-5)
    np.testing.assert_allclose(response[z], z.value, atol=1e-5)
