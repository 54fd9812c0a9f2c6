"""Gradients of lower levels over averages of clients' data, uneven and of one row, where Y is a polyhedron."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.bilevel_answers import quadratic_answer
from tests.bilevel_case import gradient_by_differences
from tests.compiler.parametric.engines import Engine, near

RNG = np.random.default_rng(5)
ROWS = [RNG.standard_normal((count, 3)) for count in (7, 1, 13)]
LIMITED = np.array([[1.0, 2, 0], [0, 1, 1]])
CURVES = [rows.T @ rows / len(rows) for rows in ROWS]
POINTS = [np.array([0.3, 0.3, 0.3]), np.array([1.0, -0.4, 0.7])]


def declared(scope: str) -> hf.Problem:
    x, y, u = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    below = hf.E(cp.square(u @ (y - x))) + 0.1 * cp.sum_squares(y)
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(u @ y - 1)) + cp.sum(x)),
        hf.ArgMin(y, below, [y >= 0, LIMITED @ y <= 1], scope=scope),
        federation=hf.Federation([hf.Client({u: rows}) for rows in ROWS]),
    )


def response(curve: np.ndarray, x: np.ndarray) -> np.ndarray:
    rows, limits = np.vstack([-np.eye(3), LIMITED]), np.array([0.0, 0, 0, 1, 1])
    return quadratic_answer(2 * curve + 0.2 * np.eye(3), -2 * curve @ x, rows, limits)


def value(scope: str, x: np.ndarray) -> float:
    shared = response(np.mean(CURVES, axis=0), x)
    answers = [response(curve, x) if scope == "client" else shared for curve in CURVES]
    return float(np.mean([np.mean((rows @ y - 1) ** 2) for rows, y in zip(ROWS, answers)]) + x.sum())


@pytest.mark.parametrize("scope", ["client", "federation"])
@pytest.mark.parametrize("x", POINTS, ids=str)
def test_gradients(scope: str, x: np.ndarray, engine: Engine) -> None:
    problem = engine(declared(scope))

    def of(at: Any) -> float:
        return value(scope, at)

    near(problem.implicit(x), of(x))
    near(problem.implicit.gradient(x), gradient_by_differences(of, x, 1e-4), 1e-8)


@pytest.mark.parametrize("scope", ["client", "federation"])
def test_ties_that_data_resolve(scope: str, engine: Engine) -> None:
    """Below only y_1 + y_2 + y_3 counts: of the answers, the one that fits a client's data best is meant."""
    x, y, u = cp.Variable(name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    problem = engine(
        hf.Problem(
            hf.Minimize(clients=hf.E(cp.square(u @ y - 1))),
            hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= -1, y <= 1], scope=scope, selection="optimistic"),
            federation=hf.Federation([hf.Client({u: rows}) for rows in ROWS]),
        )
    )
    z = cp.Variable(3)
    losses = [cp.sum_squares(rows @ z - 1) / len(rows) for rows in ROWS]
    within = [z >= -1, z <= 1, cp.sum(z) == 0.5]
    asked = [sum(losses) / 3] if scope == "federation" else losses
    best = [cp.Problem(cp.Minimize(loss), within).solve(solver=cp.CLARABEL) for loss in asked]
    near(problem.implicit(0.5), np.mean(best), 1e-7)


# --- Owners whose programs are solved together, against each owner's own program by CVXPY, and differences.


A = np.random.default_rng(5).uniform(0.2, 1.0, size=(3, 4))
COST = np.array([1.0, 1.7, 1.2, 2.3])


def recourse(demand: np.ndarray, quadratic: bool) -> hf.Problem:
    """Demands of samples are met at least cost; a linear program for each, or a quadratic one."""
    x, y, d = cp.Variable(name="x"), cp.Variable(4, name="y"), hf.Sample(3, name="d")
    cost = COST @ y + (0.3 * cp.sum_squares(y) if quadratic else 0.0)
    below = hf.ArgMin(y, cost, [A @ y >= d - x, y >= 0, y <= 9], scope="sample")
    federation = hf.Federation([hf.Client({d: part}) for part in np.split(demand, [1, 3])])
    return hf.Problem(hf.Minimize(clients=hf.E(COST @ y) + cp.square(x)), below, federation=federation)


def by_cvxpy(demand: np.ndarray, quadratic: bool, x: float) -> float:
    values = []
    for d in demand:
        y = cp.Variable(4)
        cost = COST @ y + (0.3 * cp.sum_squares(y) if quadratic else 0.0)
        cp.Problem(cp.Minimize(cost), [A @ y >= d - x, y >= 0, y <= 9]).solve(cp.CLARABEL)
        values.append(float(COST @ np.asarray(y.value)))
    parts = np.split(np.asarray(values), [1, 3])
    return float(np.mean([part.mean() for part in parts])) + x**2


@pytest.mark.parametrize("quadratic", [False, True])
def test_many_samples_have_the_answers_of_each(quadratic: bool) -> None:
    demand = np.random.default_rng(1).uniform(0.3, 1.6, size=(100, 3))
    problem = recourse(demand, quadratic)
    assert float(problem.implicit(0.1)) == pytest.approx(by_cvxpy(demand, quadratic, 0.1), rel=1e-6)
    step = 1e-6
    ahead, back = (float(problem.implicit(0.1 + way)) for way in (step, -step))
    assert float(problem.implicit.gradient(0.1)) == pytest.approx((ahead - back) / (2 * step), rel=1e-5)


def test_an_owner_without_an_answer_is_named() -> None:
    demand = np.full((60, 3), 1.0)
    demand[40] = 1e3
    with pytest.raises(hf.EmptyLowerSetError, match="client 2, sample 37"):
        recourse(demand, False).implicit(0.1)


def test_many_clients_hold_rows_of_their_own() -> None:
    rng = np.random.default_rng(2)
    x, y, a, b = cp.Variable(2, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="a"), hf.Sample(name="b")
    data = [(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in rng.integers(1, 9, size=20)]
    lower = hf.E(cp.square(a @ y - b)) + cp.exp(x[0]) * cp.sum_squares(y)
    below = hf.ArgMin(y, lower, [y >= x[1], cp.sum(y) <= 0.8], scope="client")
    federation = hf.Federation([hf.Client({a: rows, b: wanted}) for rows, wanted in data])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), below, federation=federation)
    at, values = np.array([0.2, -0.1]), []
    for rows, wanted in data:
        z = cp.Variable(3)
        cost = cp.sum_squares(rows @ z - wanted) / len(wanted) + np.exp(at[0]) * cp.sum_squares(z)
        cp.Problem(cp.Minimize(cost), [z >= at[1], cp.sum(z) <= 0.8]).solve(cp.CLARABEL)
        values.append(np.sum((z.value - 1) ** 2))
    assert float(problem.implicit(at)) == pytest.approx(np.mean(values), rel=1e-6)
    ways = 1e-6 * np.eye(2)
    slopes = [(float(problem.implicit(at + way)) - float(problem.implicit(at - way))) / 2e-6 for way in ways]
    np.testing.assert_allclose(problem.implicit.gradient(at), slopes, rtol=1e-5, atol=1e-7)


def test_a_game_that_cvxpys_first_backend_does_not_know_is_answered_without_its_warning() -> None:
    """2 (u - mean) + a v = 0 and v = 0.2 sum(u), so that sum(u) = sum(mean) / (1 + 0.2 a)."""
    u, v, x = cp.Variable(2, name="u"), cp.Variable(name="v"), cp.Variable(name="x")
    s, a = hf.Sample(2, name="s"), hf.ClientParameter(name="a", nonneg=True)
    game = hf.Nash(
        hf.Player(u, hf.E(cp.sum_squares(u - s)) + a * cp.sum(u) * v, [u <= 5]),
        hf.Player(v, cp.square(v) - 0.4 * cp.sum(u) * v),
        scope="client",
    )
    rows = [np.random.default_rng(k).normal(size=(k, 2)) for k in (2, 5)]
    federation = hf.Federation([hf.Client({s: own}, {a: 0.5}) for own in rows])
    f = hf.Problem(hf.Minimize(clients=cp.sum_squares(u) + cp.square(x)), game, federation=federation).implicit
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = f(0.0)
    means = [own.mean(axis=0) for own in rows]
    answers = [mean - 0.25 * 0.2 * mean.sum() / 1.1 for mean in means]
    assert found == pytest.approx(np.mean([answer @ answer for answer in answers]), abs=1e-9)
