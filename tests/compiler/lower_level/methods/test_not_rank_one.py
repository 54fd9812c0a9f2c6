"""Jacobians that are diagonal plus rank one at the points that were looked at, and not at others: y by Newton's method there."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import lsq_linear

import hierfl as hf


def on_box(matrix: np.ndarray, q: np.ndarray, low: float, high: float) -> np.ndarray:
    """argmin 0.5 y'Jy + q'y over a box by bounded least squares on J's Cholesky factor."""
    factor = np.linalg.cholesky(matrix)
    return lsq_linear(factor.T, -np.linalg.solve(factor, q), (low, high), method="bvls", tol=1e-15).x


def declared(
    x: cp.Variable, y: cp.Variable, lower: cp.Expression, low: float, high: float, *clients: hf.Client
) -> hf.Problem:
    return hf.Problem(
        hf.Minimize(clients=cp.sum(y)),
        lower=hf.ArgMin(y, lower, [y >= low, y <= high]),
        federation=hf.Federation(clients or [hf.Client()]),
    )


def method(problem: hf.Problem) -> str:
    chosen = problem.compile().exact.method
    assert chosen is not None
    return chosen.name


def test_a_mean_of_clients_with_couplings_of_their_own() -> None:
    rng = np.random.default_rng(0)
    x, y, u = cp.Variable(1, name="x"), cp.Variable(20, name="y"), hf.ClientParameter(20, name="u")
    held = rng.standard_normal((3, 20))
    lower = 0.5 * cp.square(u @ y) + 0.5 * cp.sum_squares(y) + cp.sum(y) * x[0]
    problem = declared(x, y, lower, -0.5, 0.5, *(hf.Client(parameters={u: own}) for own in held))
    matrix = np.eye(20) + held.T @ held / 3
    for value in (0.3, -2.0, 1.0):
        expected = on_box(matrix, np.full(20, value), -0.5, 0.5)
        np.testing.assert_allclose(problem.implicit.response([value]), expected, atol=1e-9)
    assert 0 < problem.implicit.certificate([1.0]).strong_convexity <= np.linalg.eigvalsh(matrix)[0]


def test_a_client_that_holds_more_rows_than_those_looked_at() -> None:
    rng = np.random.default_rng(2)
    x, y, a = cp.Variable(12, name="x"), cp.Variable(12, name="y"), hf.Sample(12, name="a")
    rows = [rng.standard_normal((30 if k == 1 else 1, 12)) for k in range(8)]
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum(y)),
        lower=hf.ArgMin(y, 0.5 * hf.E(cp.square(a @ y)) + 0.5 * cp.sum_squares(y - x), [y <= 0.3], scope="client"),
        federation=hf.Federation([hf.Client({a: own}) for own in rows]),
    )
    point = rng.standard_normal(12)
    found = problem.implicit.response(point)
    for own, answer in zip(rows, found):
        expected = on_box(np.eye(12) + own.T @ own / len(own), -point, -np.inf, 0.3)
        np.testing.assert_allclose(answer, expected, atol=1e-8)


@pytest.mark.parametrize("point", [[1, 1], [1, 0], [0.3, 0], [2, 1e-17], [0, 0], [0, 1], [1e-9, 1]])
def test_a_rank_that_drops(point: list[float]) -> None:
    x, y, v = cp.Variable(2, nonneg=True, name="x"), cp.Variable(16, name="y"), np.arange(16) / 16
    couplings = 0.5 * x[0] * cp.square(cp.sum(y)) + 0.5 * x[1] * cp.square(v @ y)
    problem = declared(x, y, 0.5 * cp.sum_squares(y) + couplings - cp.sum(y), 0.0, 0.4)
    matrix = np.eye(16) + point[0] + point[1] * np.outer(v, v)
    np.testing.assert_allclose(problem.implicit.response(point), on_box(matrix, -np.ones(16), 0.0, 0.4), atol=1e-9)


@pytest.mark.parametrize("cost", [0.0, 1e-8, 1.0])
def test_a_cost_that_vanishes(cost: float) -> None:
    x, y, c = cp.Variable(1, nonneg=True, name="x"), cp.Variable(12, name="y"), np.arange(12) / 12
    lower = 0.5 * x[0] * cp.square(y[0]) + 0.5 * cp.sum_squares(y[1:]) + 0.5 * cp.square(cp.sum(y)) - c @ y
    expected = on_box(np.diag([cost] + [1.0] * 11) + 1, -c, -1.0, 1.0)
    np.testing.assert_allclose(declared(x, y, lower, -1.0, 1.0).implicit.response([cost]), expected, atol=1e-8)
