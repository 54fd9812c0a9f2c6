"""Exact lower levels: each method against independent answers, the certificate against the truth, and overrides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize
from scipy.optimize import lsq_linear

import hierfl as hf
from hierfl.compiler import implicit_differentiation
from hierfl.solvers import ZOHFL
from hierfl.solvers.lower import Exact

N = 12


def quadratic(rng: np.random.Generator, n: int, condition: float) -> np.ndarray:
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    return np.asarray(q @ np.diag(np.geomspace(1.0, condition, n)) @ q.T)


def on_box(matrix: np.ndarray, q: np.ndarray, low: float, high: float) -> np.ndarray:
    """argmin 0.5 y'Jy + q'y over a box by bounded least squares on J's Cholesky factor."""
    factor = np.linalg.cholesky(matrix)
    return lsq_linear(factor.T, -np.linalg.solve(factor, q), (low, high), method="bvls", tol=1e-15).x


def lower_problem(level: Callable[[cp.Variable, cp.Variable], hf.ArgMin | hf.Equilibrium], n: int = N) -> hf.Problem:
    x, y = cp.Variable(n, name="x"), cp.Variable(n, name="y")
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y)), lower=level(x, y))


SETS: dict[str, Callable[[Any], list[Any]]] = {
    "box": lambda y: [y >= -0.1, y <= 0.3],
    "ball": lambda y: [cp.norm(y) <= 0.5],
    "simplex": lambda y: [y >= 0, cp.sum(y) == 1],
    "polyhedron": lambda y: [y >= -0.5, np.vander(np.linspace(0, 1, N), 3).T @ y <= 0.1],
}


def test_newton_agrees_with_scipy_on_a_softmax_regression() -> None:
    rng = np.random.default_rng(2)
    features, labels = rng.standard_normal((60, 5)), np.eye(3)[rng.integers(0, 3, 60)]
    x, y = cp.Variable((3, 5), name="x"), cp.Variable((3, 5), name="y")
    row, label = hf.Sample(5, name="row"), hf.Sample(3, name="label")
    loss = hf.E(cp.log_sum_exp(y @ row) - label @ (y @ row)) + 0.05 * cp.sum_squares(y - x)
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - y)),
        lower=hf.ArgMin(y, loss, scope="client"),
        federation=hf.Federation([hf.Client({row: features, label: labels})]),
    )
    assert "Newton-CG" in problem.explain()["lower level"][0].how

    def value(w: np.ndarray) -> float:
        scores = features @ w.reshape(3, 5).T
        return float(np.mean(scipy.special.logsumexp(scores, axis=1) - np.sum(scores * labels, axis=1)) + 0.05 * w @ w)

    reference = scipy.optimize.minimize(value, np.zeros(15), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(problem.implicit.response(np.zeros((3, 5))).ravel(), reference.x, atol=1e-6)
    assert problem.implicit.certificate(np.zeros((3, 5))).error_bound <= 1e-7


@pytest.mark.parametrize("name", SETS)
def test_monotone_maps_that_are_no_gradients(name: str) -> None:
    rng = np.random.default_rng(3)
    skew = rng.standard_normal((N, N))
    j, b = 0.5 * np.eye(N) + 3 * (skew - skew.T), rng.standard_normal(N)
    problem = lower_problem(lambda x, y: hf.Equilibrium(y, j @ y - b + x, SETS[name](y)))
    y, x = problem.implicit.response(np.zeros(N)), cp.Variable(N)
    # y solves VI(Y, F) if and only if it minimises the linear function F(y)'z over Y
    linear = cp.Problem(cp.Minimize((j @ y - b) @ x), SETS[name](x))
    linear.solve(solver=cp.CLARABEL)
    assert (j @ y - b) @ y <= linear.value + 1e-6
    found = problem.implicit.certificate(np.zeros(N))
    assert found.error_bound <= 1e-7 and found.iterations <= 10  # Newton steps count; others alone take 11 to 47


@pytest.mark.parametrize("least", [None, -0.2])
@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_gradients_of_large_levels_are_solved_for_without_a_matrix(skew: float, least: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implicit_differentiation, "DENSE_LIMIT", 0)
    rng = np.random.default_rng(7)
    parts = rng.standard_normal((N, N))
    j = quadratic(rng, N, 20.0) + skew * (parts - parts.T)

    def level(x: cp.Variable, y: cp.Variable) -> hf.ArgMin | hf.Equilibrium:
        within = [] if least is None else [y >= least]
        if skew:
            return hf.Equilibrium(y, j @ y + cp.power(y, 3) - x, within)
        return hf.ArgMin(y, 0.5 * cp.quad_form(y, j) + 0.25 * cp.sum(cp.power(y, 4)) - x @ y, within)

    problem, x = lower_problem(level), rng.standard_normal(N)
    y = problem.implicit.response(x)
    free, bent = y > (-np.inf if least is None else least + 1e-6), j + np.diag(3 * y**2)
    moves = np.zeros((N, N))
    moves[np.ix_(free, free)] = np.linalg.inv(bent[np.ix_(free, free)])
    np.testing.assert_allclose(problem.implicit.gradient(x), 2 * (x - y) - moves.T @ (2 * (x - y)), atol=1e-6)


EQUAL = np.ones(16)
DIFFICULT = {
    "a player without own costs": np.diag([*np.linspace(1, 2, 15), 0.0]) + 0.7,
    "a variance": np.eye(16) - 1 / 16,
    "two skew factors": 0.01 * np.eye(16)
    + np.outer(EQUAL, np.cos(np.arange(16.0)))
    - np.outer(np.cos(np.arange(16.0)), EQUAL),
    "two large skew factors": 1e-6 * np.eye(16) + np.outer(EQUAL, np.arange(16.0)) - np.outer(np.arange(16.0), EQUAL),
}


@pytest.mark.parametrize("name", DIFFICULT)
@pytest.mark.parametrize("x", [0.1 * np.cos(np.arange(16.0)) - 0.1 * np.cos(np.arange(16.0)).mean(), -np.arange(16.0)])
def test_maps_that_are_hardly_diagonal_plus_rank_one(name: str, x: np.ndarray) -> None:
    j, z, y = DIFFICULT[name], cp.Variable(16, name="z"), cp.Variable(16, name="y")
    level = hf.Equilibrium(y, j @ y - z, [y >= 0, y <= 1])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(z - y)), lower=level)
    found = problem.implicit.response(x)
    np.testing.assert_allclose(np.clip(found - (j @ found - x), 0, 1), found, atol=1e-9)


@pytest.mark.parametrize("n", [1000, 10_000])  # of 10,000 the Jacobian is never formed
def test_cournot_with_many_followers_uses_its_structure(n: int) -> None:
    b = 0.5
    costs, caps = np.linspace(0.09, 0.11, n), np.linspace(2, 4, n)
    x, y, a = cp.Variable(name="x"), cp.Variable(n, name="y"), hf.Sample(name="a")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(-x * (a - b * (x + cp.sum(y))))),
        lower=hf.Equilibrium(
            y, cp.multiply(costs + b, y) - a + b * (x + cp.sum(y)), [y >= 0, y <= caps], scope="sample"
        ),
        constraints=[x >= 0, x <= 10],
        federation=hf.Federation([hf.Client({a: np.array([7.5, 10.0, 12.5])})]),
    )
    assert "diagonal plus rank one" in problem.explain()["lower level"][0].how
    answers, certificate = problem.implicit.response(2.0)[0], problem.implicit.certificate(2.0)
    assert certificate.error_bound <= 1e-13 * n
    for demand, y_found in zip((7.5, 10.0, 12.5), answers):

        def excess(total: float, demand: float = demand) -> float:  # total output answered by total output
            return float(np.clip((demand - b * (2.0 + total)) / (costs + b), 0, caps).sum() - total)

        total = scipy.optimize.brentq(excess, 0, caps.sum(), xtol=1e-14, rtol=1e-15)
        np.testing.assert_allclose(y_found, np.clip((demand - b * (2.0 + total)) / (costs + b), 0, caps), atol=1e-11)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("method", ["semismooth Newton", "accelerated gradient"])
@pytest.mark.parametrize("kind", ["free", "box", "ball"])
def test_bounds_of_errors_are_bounds_and_not_far_above(kind: str, method: str, tolerance: float) -> None:
    rng = np.random.default_rng(5)
    for condition in (1.0, 30.0, 1000.0):
        h, b = quadratic(rng, 6, condition), 2 * rng.standard_normal(6)
        sets = {"free": lambda y: [], "box": lambda y: [y >= -0.5, y <= 0.5], "ball": lambda y: [cp.norm(y) <= 1]}[kind]
        problem = lower_problem(lambda x, y: hf.ArgMin(y, 0.5 * cp.quad_form(y, cp.psd_wrap(h)) - (b + 0 * x) @ y, sets(y)), 6)  # noqa: B023
        found = problem.compile().exact.by(method).at(np.zeros(6), tolerance=tolerance).solution
        price = price_of_length(h, b) if kind == "ball" else 0.0
        truth = on_box(h, -b, -0.5, 0.5) if kind == "box" else np.linalg.solve(h + price * np.eye(6), b)
        error, bound = np.linalg.norm(found.y[0] - truth), float(found.error_bound[0])
        assert error * (1 - 1e-9) - 1e-12 <= bound <= 2 * condition * error + 1e-9
        assert error <= 2 * tolerance * (1 + np.linalg.norm(truth))


def price_of_length(h: np.ndarray, b: np.ndarray) -> float:
    """The price at which the solution of (h + price) y = b has length 1; 0 where it is shorter without."""
    excess = lambda price: np.linalg.norm(np.linalg.solve(h + price * np.eye(len(b)), b)) - 1  # noqa: E731
    return 0.0 if excess(0.0) <= 0 else scipy.optimize.brentq(excess, 0.0, 1e4, xtol=1e-15, rtol=1e-15)


def test_a_method_that_cannot_work_is_refused() -> None:
    problem = lower_problem(lambda x, y: hf.ArgMin(y, cp.sum_squares(y - x) + cp.square(cp.sum(y)), SETS["box"](y)))
    with pytest.raises(
        hf.IncompatibleSolverError, match=r"'linear system' cannot solve this .*no constraints.*'semismooth Newton'"
    ):
        problem.solve(ZOHFL(lower=Exact(method="linear system")), rounds=1, progress=False)
    with pytest.raises(hf.SettingError, match="method of Exact='newton': did you mean 'semismooth Newton'"):
        Exact(method="newton")


@pytest.mark.parametrize("free", [True, False])
def test_counts_in_many_columns_are_solved_from_where_exponentials_overflow(free: bool) -> None:
    """A Poisson model of 1,500 counts in 300 columns, more than a factorisation a step: of exp(u @ w) a full step overflows. Against Newton's method with halving, in NumPy."""
    rng = np.random.default_rng(100)
    rows = rng.normal(size=(1_500, 300)) / np.sqrt(300)
    counts = rng.poisson(np.exp(np.clip(rows @ rng.normal(size=300), -3, 3))).astype(float)
    x, w, u, n = cp.Variable(name="x"), cp.Variable(300, name="w"), hf.Sample(300, name="u"), hf.Sample(name="n")
    level = hf.ArgMin(w, hf.E(cp.exp(u @ w) - n * (u @ w)), [] if free else [w >= -50])
    problem = hf.Problem(hf.Minimize(server=cp.square(x) + cp.sum(w)), level, federation=hf.Federation([hf.Client({u: rows, n: counts})]))

    def loss(at: np.ndarray) -> float:
        return float(np.mean(np.exp(rows @ at) - counts * (rows @ at)))

    at = np.zeros(300)
    for _ in range(60):
        rates = np.exp(rows @ at)
        step = np.linalg.solve(rows.T @ (rates[:, None] * rows), rows.T @ (counts - rates))
        share = next(share for share in 0.5 ** np.arange(40) if loss(at + share * step) <= loss(at))
        at = at + share * step
    np.testing.assert_allclose(problem.implicit.response(0.5), at, atol=1e-7)


# --- Jacobians that are diagonal plus rank one at the points that were looked at, and not at others: y by Newton's method there.


def over_box(x: cp.Variable, y: cp.Variable, lower: cp.Expression, low: float, high: float) -> hf.Problem:
    return hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, lower, [y >= low, y <= high]))


@pytest.mark.parametrize("point", [[1, 1], [1, 0], [0.3, 0], [2, 1e-17], [0, 0], [0, 1], [1e-9, 1]])
def test_a_rank_that_drops(point: list[float]) -> None:
    x, y, v = cp.Variable(2, nonneg=True, name="x"), cp.Variable(16, name="y"), np.arange(16) / 16
    couplings = 0.5 * x[0] * cp.square(cp.sum(y)) + 0.5 * x[1] * cp.square(v @ y)
    problem = over_box(x, y, 0.5 * cp.sum_squares(y) + couplings - cp.sum(y), 0.0, 0.4)
    matrix = np.eye(16) + point[0] + point[1] * np.outer(v, v)
    np.testing.assert_allclose(problem.implicit.response(point), on_box(matrix, -np.ones(16), 0.0, 0.4), atol=1e-9)


@pytest.mark.parametrize("cost", [0.0, 1e-8, 1.0])
def test_a_cost_that_vanishes(cost: float) -> None:
    x, y, c = cp.Variable(1, nonneg=True, name="x"), cp.Variable(12, name="y"), np.arange(12) / 12
    lower = 0.5 * x[0] * cp.square(y[0]) + 0.5 * cp.sum_squares(y[1:]) + 0.5 * cp.square(cp.sum(y)) - c @ y
    expected = on_box(np.diag([cost] + [1.0] * 11) + 1, -c, -1.0, 1.0)
    np.testing.assert_allclose(over_box(x, y, lower, -1.0, 1.0).implicit.response([cost]), expected, atol=1e-8)
