"""``reference(certificate="global")`` against enumeration, published optima, formulas, and by name where there is none."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from cvxpy.atoms.elementwise.trig import sin
from scipy.optimize import linprog, minimize_scalar

import hierfl as hf
from hierfl.inspect.implicit.multipliers import answers_of
from hierfl.inspect.implicit.reference import Reference
from hierfl.inspect.proved import proof, scip
from hierfl.inspect.proved.single_level import SingleLevel
from tests.benchmarks.bolib import declared
from tests.benchmarks.bolib_linear import LINEAR


def proved(problem: hf.Problem, **settings: object) -> Reference:
    found = problem.reference(certificate="global", progress=False, **settings)  # type: ignore[arg-type]
    assert found.status == "proved", found
    assert found.gap is not None and 0 <= found.gap <= 1e-6
    return found


# --- against enumeration -----------------------------------------------------------------------------------------------


def best_vertex(c: np.ndarray, d: np.ndarray, e: np.ndarray, a: np.ndarray, b: np.ndarray, h: np.ndarray) -> float:
    """min c'x + d'y over x in [0, 2]^p, y in argmin {e'y: A y + B x >= h, 0 <= y <= 3}: at a vertex of both levels' rows."""
    p, n = len(c), len(d)
    rows = np.vstack([np.hstack([b, a]), np.eye(p + n), -np.eye(p + n)])
    right = np.concatenate([h, np.zeros(p + n), np.full(p, -2.0), np.full(n, -3.0)])
    best = np.inf
    for chosen in itertools.combinations(range(len(right)), p + n):
        matrix = rows[list(chosen)]
        if abs(np.linalg.det(matrix)) < 1e-9:
            continue
        v = np.linalg.solve(matrix, right[list(chosen)])
        if (rows @ v >= right - 1e-9).all():
            x, y = v[:p], v[p:]
            answer = linprog(e, A_ub=-a, b_ub=-(h - b @ x), bounds=[(0, 3)] * n)
            if e @ y <= answer.fun + 1e-8:
                best = min(best, c @ x + d @ y)
    return best


def test_small_linear_problems_with_ties_and_empty_sets() -> None:
    without = 0
    for seed in range(7):
        rng = np.random.default_rng(seed)
        n, p, m = (int(k) for k in rng.integers(1, 4, 3))
        p = min(p, 2)
        a, b, h, c, d, e = (rng.integers(-3, 4, s).astype(float) for s in ((m, n), (m, p), m, p, n, n))
        x, y = cp.Variable(p, name="x"), cp.Variable(n, name="y")
        problem = hf.Problem(hf.Minimize(server=c @ x + d @ y), hf.ArgMin(y, e @ y, [a @ y + b @ x >= h, y >= 0, y <= 3]), [x >= 0, x <= 2])
        expected = best_vertex(c, d, e, a, b, h)
        if np.isfinite(expected):
            found = proved(problem)
            assert found.value == pytest.approx(expected, rel=1e-7, abs=1e-7), seed
            assert found.bound == pytest.approx(expected, rel=1e-6, abs=1e-6)
        else:
            without += 1
            with pytest.raises(hf.errors.LowerLevelError, match="at no point of X"):
                problem.reference(certificate="global", progress=False)
    assert 0 < without < 6


@pytest.mark.parametrize("share", [1e8, 1e9])
def test_a_switch_with_a_large_number(share: float) -> None:
    """y = min(share n, 1) is 1 once n is: SCIP's presolving of the choices took n = 0 for the best."""
    n, y = cp.Variable(name="n", integer=True), cp.Variable(name="y")
    found = proved(hf.Problem(hf.Minimize(1e-3 * n - y), hf.ArgMin(y, -y, [y <= share * n, y <= 1]), [n >= 0, n <= 1]))
    assert (found.x, found.value) == (1.0, pytest.approx(-0.999, rel=1e-9))
    assert found.bound == pytest.approx(-0.999, abs=1e-8)


def best_pattern(q: np.ndarray, r: np.ndarray, a: np.ndarray, b: np.ndarray, h: np.ndarray, c: np.ndarray, d: np.ndarray) -> float:
    """min c'x + d'y over x in [-1, 1]^p with Q y + R x = A'z, A y + B x >= h, z >= 0: by all 2^m ways to be complementary, each a linear program."""
    (m, n), p = a.shape, len(c)
    best = np.inf
    for held in itertools.product([False, True], repeat=m):
        tight = np.array(held)
        none, low = np.zeros((m, m)), np.hstack([b, a])
        equal = np.vstack([np.hstack([r, q, -a.T]), np.hstack([low, none])[tight]])
        right = np.concatenate([np.zeros(n), h[tight]])
        bounds = [(-1, 1)] * p + [(None, None)] * n + [(0, None if t else 0) for t in tight]
        found = linprog(np.concatenate([c, d, np.zeros(m)]), -np.hstack([low, none]), -h, equal, right, bounds)
        best = min(best, found.fun if found.status == 0 else np.inf)
    return best


@pytest.mark.parametrize("kind", ["argmin", "argmax", "equilibrium"])
def test_quadratic_levels_and_equilibria_that_are_no_gradients(kind: str) -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        n, p, m = 3, 2, 4
        root = rng.normal(size=(2, n))  # of rank two: the level has a flat direction
        q = root.T @ root + (0.0 if kind != "equilibrium" else np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 0]]))
        r, a, b = rng.normal(size=(n, p)), np.vstack([rng.normal(size=(1, n)), np.eye(n)]), rng.normal(size=(m, p))
        h, c, d = -np.ones(m), rng.normal(size=p), rng.normal(size=n)
        x, y = cp.Variable(p, name="x"), cp.Variable(n, name="y")
        cost = 0.5 * cp.sum_squares(root @ y) + y @ (r @ x)
        level: hf.Equilibrium | hf.ArgMin = hf.ArgMin(y, cost, [a @ y + b @ x >= h])
        if kind != "argmin":
            level = hf.ArgMax(y, -cost, [a @ y + b @ x >= h]) if kind == "argmax" else hf.Equilibrium(y, q @ y + r @ x, [a @ y + b @ x >= h])
        problem = hf.Problem(hf.Minimize(server=c @ x + d @ y), level, [cp.norm_inf(x) <= 1])
        expected = best_pattern(q, r, a, b, h, c, d)
        assert proved(problem).value == pytest.approx(expected, rel=1e-6, abs=1e-6), seed  # the gap that is asked for


def test_an_optimum_that_other_formulations_miss() -> None:
    """Strong duality with a slack of 1e-7 lets solvers end "optimal" at -8.40, where a grid with the level solved at each point has .811."""
    rng = np.random.default_rng(1)
    a, b = rng.uniform(0, 1, (5, 5)) * (rng.uniform(size=(5, 5)) < 0.5), rng.uniform(-1, 1, (5, 2))
    h, e, c, d = rng.uniform(1, 3, 5), rng.uniform(0.5, 1.5, 5), rng.normal(size=2), rng.normal(size=5)
    x, y = cp.Variable(2, name="x"), cp.Variable(5, name="y")
    problem = hf.Problem(hf.Minimize(server=c @ x + d @ y), hf.ArgMin(y, e @ y, [a @ y + b @ x >= h, y >= 0, y <= 10]), [x >= 0, x <= 1])

    def f(u: float, v: float) -> float:
        found = linprog(e, A_ub=-a, b_ub=-(h - b @ [u, v]), bounds=[(0, 10)] * 5)
        return float(c @ [u, v] + d @ found.x) if found.status == 0 else np.inf

    assert proved(problem).value == pytest.approx(min(f(u, v) for u in np.linspace(0, 1, 6) for v in np.linspace(0, 1, 6)), abs=1e-7)


# --- published problems ------------------------------------------------------------------------------------------------


def test_tolls_at_which_travellers_are_indifferent() -> None:
    """Two commodities, tolls on two arcs: revenue is largest where a toll path costs just what the free one does, which is the optimistic answer."""
    costs = np.array([[2.0, 4.0, 9.0], [3.0, 1.0, 6.0]])  # of the first toll arc, of the second, of the free way
    demand = np.array([1.0, 2.0])
    t, y = cp.Variable(2, name="t", nonneg=True), cp.Variable((2, 3), name="y", nonneg=True)
    paid = sum(y[k, 0] * t[0] + y[k, 1] * t[1] for k in range(2))
    level = hf.ArgMin(y, cp.sum(cp.multiply(costs, y)) + paid, [cp.sum(y, axis=1) == demand])
    found = proved(hf.Problem(hf.Maximize(server=paid), level, [t <= 20]))

    def revenue(tolls: tuple[float, float]) -> float:
        earned = 0.0
        for cost, many in zip(costs, demand):
            ways = cost + np.array([*tolls, 0.0])
            earned += many * max(toll for toll, way in zip([*tolls, 0.0], ways) if way <= ways.min() + 1e-9)
        return earned

    grid = np.arange(0.0, 10.01, 0.5)  # costs are whole numbers: so are the tolls at which ways are alike
    assert found.value == pytest.approx(max(revenue((a, b)) for a in grid for b in grid))
    assert "several lower solutions" in found.guarantee


# --- scopes and data -----------------------------------------------------------------------------------------------------


def test_averages_weights_and_scopes_against_formulas() -> None:
    """A newsvendor of each sample; a shared y of clients' rows; a y of each client: dense grids of formulas."""
    rng = np.random.default_rng(0)
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    rows = [rng.uniform(0, 8, 5), rng.uniform(0, 8, 3)]
    federation = hf.Federation([hf.Client({d: one}) for one in rows], weights=[0.3, 0.7])
    grid = np.linspace(0, 10, 100_001)

    recourse = hf.ArgMin(y, y, [y >= d - x, y >= 0], scope="sample")
    found = proved(hf.Problem(hf.Minimize(clients=hf.E(y + 0.1 * cp.square(y)), server=0.4 * x), recourse, [x >= 0, x <= 10], federation))
    short = [np.maximum(one[:, None] - grid, 0) for one in rows]
    values = 0.4 * grid + sum(w * (s + 0.1 * s**2).mean(axis=0) for w, s in zip((0.3, 0.7), short))
    assert found.value == pytest.approx(values.min(), abs=1e-6)

    level = hf.ArgMin(y, hf.E(cp.square(y - d)) + 2 * x * y, [y >= 1])
    found = proved(hf.Problem(hf.Maximize(clients=-hf.E(cp.abs(y - 0.5 * d)), server=-cp.exp(-x)), level, [x >= 0, x <= 3], federation))
    mean = 0.3 * rows[0].mean() + 0.7 * rows[1].mean()
    at, grid = np.maximum(mean - grid, 1.0), grid[grid <= 3]
    values = -np.exp(-grid) - sum(w * np.abs(at[: len(grid)] - 0.5 * one[:, None]).mean(axis=0) for w, one in zip((0.3, 0.7), rows))
    assert values.max() - 1e-9 <= found.value <= values.max() + 1e-5  # a grid is never better

    k = hf.ClientParameter(name="k")
    three = hf.Federation([hf.Client({}, {k: float(c)}) for c in (1, 2, 4)])
    private = hf.ArgMin(y, cp.square(y - x) + k * cp.abs(y), scope="client")
    found = proved(hf.Problem(hf.Minimize(clients=cp.square(y - k)), private, [cp.abs(x) <= 6], three))
    grid = np.linspace(-6, 6, 120_001)
    answers = [np.sign(grid) * np.maximum(np.abs(grid) - c / 2, 0) for c in (1, 2, 4)]
    assert found.value == pytest.approx(np.mean([(a - c) ** 2 for a, c in zip(answers, (1, 2, 4))], axis=0).min(), abs=1e-6)
    assert np.shape(found.y) == (3,) and np.shape(next(iter(found.multipliers.values()), np.zeros(3)))[0] == 3


@pytest.mark.parametrize(("level", "least", "x"), [(None, 0.55, -0.05), (0.5, 0.55, -0.05), (1 / 3, 0.55, 0.1), (0.0, 1.1 / 3, 0.2)])
def test_tails_of_rows_are_least_over_their_bounds(level: float | None, least: float, x: float) -> None:
    at, y, b = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="b")
    federation = hf.Federation([hf.Client({b: np.array([0.2, -0.6, 0.5])})])
    loss = cp.abs(y - b)
    tail = hf.Worst(loss) if level is None else hf.CVaR(loss, level=level)

    def found(objective: Any) -> Any:
        lower = hf.ArgMin(y, cp.square(y - at), scope="client")
        return hf.Problem(objective, lower, [cp.abs(at) <= 1], federation).reference(certificate="global", progress=False)

    for best, sign in ((found(hf.Minimize(clients=2 * tail)), 2), (found(hf.Maximize(clients=-tail)), -1)):
        assert best.status == "proved" and best.value == pytest.approx(sign * least, abs=1e-6)
        assert best.x == pytest.approx(x, abs=1e-4) or level == 1 / 3  # there f is flat between -0.2 and 0.35
    with pytest.raises(hf.IncompatibleSolverError, match="tails of rows that are minimised, or bounded above"):
        found(hf.Maximize(clients=tail))


def test_products_that_cancel_to_rounding_are_none() -> None:
    """A regression below, and squares above: f is a parabola, and what the level's duality says of products in it has residues of rounding."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        tables = [(rng.normal(size=(k, 3)), rng.normal(size=k), rng.normal(size=(k + 1, 3)), rng.normal(size=k + 1)) for k in (1, 3, 8)]
        x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
        u, b, v, d = hf.Sample(3, name="u"), hf.Sample(name="b"), hf.Sample(3, name="v"), hf.Sample(name="d")
        clients = [hf.Client([{u: a, b: c}, {v: e, d: g}]) for a, c, e, g in tables]
        level = hf.ArgMin(y, hf.E(cp.square(u @ y - b)) + 0.05 * cp.sum_squares(y - x))
        problem = hf.Problem(hf.Minimize(clients=hf.E(cp.square(v @ y - d)) + 0.1 * cp.square(x)), level, [cp.abs(x) <= 1], hf.Federation(clients))
        h = sum(a.T @ a / len(c) for a, c, _, _ in tables) / 3 + 0.05 * np.eye(3)
        at, along = np.linalg.solve(h, np.stack([sum(a.T @ c / len(c) for a, c, _, _ in tables) / 3, 0.05 * np.ones(3)], axis=1)).T

        def f(x: float, at: Any = at, along: Any = along, tables: Any = tables) -> float:
            return float(np.mean([np.mean((e @ (at + x * along) - g) ** 2) for _, _, e, g in tables]) + 0.1 * x**2)

        best = minimize_scalar(f, bounds=(-1, 1), method="bounded", options={"xatol": 1e-12})
        found = problem.reference(certificate="global", progress=False)
        assert found.status == "proved" and found.value == pytest.approx(best.fun, abs=1e-6)


def test_a_problem_in_x_alone_and_second_order_cones_on_x() -> None:
    x = cp.Variable(2, name="x")
    found = proved(hf.Problem(hf.Minimize(server=x[0] * x[1] + sin(x[0])), constraints=[cp.norm(x) <= 1]))
    angle = np.linspace(0, 2 * np.pi, 200_001)
    assert found.value == pytest.approx((np.cos(angle) * np.sin(angle) + np.sin(np.cos(angle))).min(), abs=1e-6)
    assert found.y is None and found.multipliers is None


# --- prices -----------------------------------------------------------------------------------------------------------------


def test_prices_upstairs_where_they_jump() -> None:
    """A producer withholds: at an output of 10 the price is that of the dear plant, beyond it of the cheap one; then a market by formula."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y", nonneg=True)
    balance = cp.sum(y) == 10
    level = hf.ArgMin(y, 10 * y[0] + 30 * y[1], [balance, y[0] <= x, y[1] <= 20])
    found = proved(hf.Problem(hf.Maximize(server=hf.ShadowPrice(balance) * x - 5 * x), level, [x >= 0, x <= 15]))
    assert found.value == pytest.approx(250) and float(found.x) == pytest.approx(10)

    q, g, d = cp.Variable(name="q"), cp.Variable(name="g", nonneg=True), cp.Variable(name="d", nonneg=True)
    cleared = q + g == d
    market = hf.ArgMin([g, d], 0.5 * cp.square(g) - 12 * d + 0.5 * cp.square(d), [cleared])  # price p: g = p, d = 12 - p, q + p = 12 - p
    found = proved(hf.Problem(hf.Maximize(server=hf.ShadowPrice(cleared) * q - q), market, [q >= 0, q <= 12]))
    assert float(found.x) == pytest.approx(5, abs=1e-3) and found.value == pytest.approx(12.5)  # (6 - q / 2 - 1) q


@pytest.mark.parametrize("seed", range(12))
def test_the_worst_of_several_solutions_against_linear_programs_on_a_grid(seed: int) -> None:
    """Rows that move, a quadratic cost of one combination, and one that moves with x: the worst is a linear program over the lower solutions."""
    rng, n, m = np.random.default_rng(seed), 3, 3
    a, b, h = (rng.integers(low, high, size).astype(float) for low, high, size in ((-2, 3, (m, n)), (-2, 3, (m, 2)), (-3, 1, m)))
    e, c, d, g = (rng.integers(low, high, size).astype(float) for low, high, size in ((-1, 2, n), (-3, 4, 2), (-3, 4, n), (-1, 2, n)))
    curved, moved = float(seed % 3 > 0), float(seed % 3 > 1)
    x, y = cp.Variable(2, name="x"), cp.Variable(n, name="y")
    level = hf.ArgMin(y, e @ y + curved * cp.square(g @ y - moved * x[0]), [a @ y + b @ x >= h, y >= 0, y <= 2], selection="pessimistic")
    found = proved(hf.Problem(hf.Minimize(server=c @ x + d @ y), level, [x >= 0, x <= 1]))

    def worst(at: np.ndarray) -> float:
        z = cp.Variable(n)
        below = cp.Problem(cp.Minimize(e @ z + curved * cp.square(g @ z - moved * at[0])), [a @ z + b @ at >= h, z >= 0, z <= 2])
        below.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        if z.value is None:
            return float("inf")
        same = {"A_eq": curved * g[None], "b_eq": [curved * g @ z.value]}
        bad = linprog(-d, A_ub=np.vstack([-a, e]), b_ub=[*(b @ at - h), e @ z.value + 1e-8], bounds=[(0, 2)] * n, **same)
        return float(c @ at - bad.fun) if bad.status == 0 else float("inf")

    assert worst(found.x) == pytest.approx(found.value, abs=1e-4)  # whose accuracy is the root of CVXPY's
    assert min(worst(np.array(at) / 3) for at in np.ndindex(4, 4)) >= found.value - 1e-4


def test_the_worst_of_each_client() -> None:
    """Of 1 <= y, y[0] + y[1] = 2 + x + its share, whatever the client takes of it for nothing is worst where y[1] is largest: f = x / 2 + 1 / 2 + shares - x."""
    x, y, share = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.ClientParameter(name="share")
    clients = hf.Federation([hf.Client({}, {share: value}) for value in (1.0, 2.0, 6.0)])
    level = hf.ArgMin(y, 0 * y[0], [y >= 1, cp.sum(y) == 2 + x + share], scope="client", selection="pessimistic")
    problem = hf.Problem(hf.Minimize(clients=y[1] - y[0] - 0.5 * x), level, [x >= 0, x <= 4], federation=clients)
    assert proved(problem).value == pytest.approx(3.0)  # y = (1, 1 + x + share), a mean of x / 2 + share


# --- larger, and ended early ------------------------------------------------------------------------------------------------


def random_problem(size: int, seed: int) -> hf.Problem:
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0, 1, (size, size)) * (rng.uniform(size=(size, size)) < 0.5), rng.uniform(-1, 1, (size, 5))
    h, e, c, d = rng.uniform(1, 3, size), rng.uniform(0.5, 1.5, size), rng.normal(size=5), rng.normal(size=size)
    x, y = cp.Variable(5, name="x"), cp.Variable(size, name="y")
    return hf.Problem(hf.Minimize(server=c @ x + d @ y), hf.ArgMin(y, e @ y, [a @ y + b @ x >= h, y >= 0, y <= 10]), [x >= 0, x <= 1])


def test_dense_rows_are_proved_by_what_their_duality_says() -> None:
    """Without that row it takes 110,066 nodes and 20 seconds."""
    rng, size = np.random.default_rng(3), 20
    a, b, y0 = rng.normal(size=(size, size)), rng.normal(size=(size, 5)), rng.uniform(0, 2, size)
    h = a @ y0 + b @ np.full(5, 0.5) - rng.uniform(0, 1, size)
    e, c, d = rng.normal(size=size), rng.normal(size=5), rng.normal(size=size)
    x, y = cp.Variable(5, name="x"), cp.Variable(size, name="y")
    level = hf.ArgMin(y, e @ y, [a @ y + b @ x >= h, y >= 0, y <= 10])
    found = proved(hf.Problem(hf.Minimize(server=c @ x + d @ y), level, [x >= 0, x <= 1]))
    (nodes,) = re.findall(r"\(([\d,]+) nodes\)", found.guarantee)
    assert int(nodes.replace(",", "")) < 5_000
    answer = linprog(e, A_ub=-a, b_ub=-(h - b @ found.x), bounds=[(0, 10)] * size)
    assert found.value == pytest.approx(c @ found.x + d @ answer.x, abs=1e-6)


@pytest.mark.parametrize("same", ["0.01", "1.0"])
def test_points_that_rows_leave_no_room_around_are_found(same: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first row's level is tied, its y is any number in [-4, 5]. Where SCIP takes what its tolerance allows for the same, presolving says that there is no point;
    the point that is known refutes it.
    """
    (tmp_path / "rougher.py").write_text(scip.Process.script.read_text().replace("SAME = 0.01", f"SAME = {same}"))
    monkeypatch.setattr(scip.Process, "script", tmp_path / "rougher.py")
    monkeypatch.setattr(scip, "_AT_REST", [])
    x, y, s, t = cp.Variable(2, name="x", integer=True), cp.Variable(name="y"), hf.Sample(name="s"), hf.Sample(name="t")
    problem = hf.Problem(
        hf.Maximize(clients=hf.E(2 * x[0] - 2 * x[1] - 4 * y)),
        lower=hf.ArgMin(y, s * y, [-2 * y <= 8 + t, y <= 5], scope="sample"),
        constraints=[x[0] >= 0, x[0] <= 2, x[1] >= -2, x[1] <= 5],
        federation=hf.Federation([hf.Client({s: np.array([0.0, 2.0]), t: np.array([0.0, 1.0])})]),
    )
    assert proved(problem).value == pytest.approx(25.0)


def test_a_single_feasible_point_is_found() -> None:
    """Answers are bounded where x <= -1, and satisfy the upper constraint where x >= -1."""
    x, y, s = cp.Variable(1, name="x"), cp.Variable(1, name="y"), hf.Sample(1, name="s")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(3 * y[0])),
        lower=hf.ArgMin(y, (s - x) @ y, [0 * y <= 5 + x, y >= 0], scope="sample"),
        constraints=[x >= -3, x <= 3, -2 * x + 2 * y <= 2],
        federation=hf.Federation([hf.Client({s: np.array([[1.0], [-1.0], [0.0]])})]),
    )
    found = proved(problem)
    assert (found.value, found.x[0]) == (pytest.approx(0.0, abs=1e-8), pytest.approx(-1.0))


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("kind", ["argmin", "argmax", "equilibrium"])
def test_what_is_implied_holds_at_every_solution(kind: str, curved: bool) -> None:
    """Costs and rows that move, entries of y with an end above, below and none: the conditions hold at what the level answers, and so does the row."""
    rng, sign = np.random.default_rng(5), -1.0 if kind == "argmax" else 1.0
    x, y = cp.Variable(2, name="x"), cp.Variable(4, name="y")
    g, turn, a, b = rng.normal(size=(4, 4)), rng.normal(size=(4, 4)), rng.normal(size=(3, 4)), rng.normal(size=(3, 2))
    rows = [a @ y + b @ x >= -1, y[0] >= -2, y[1] <= 1.5, cp.abs(y[2:]) <= 3, cp.sum(y) == 0.5]
    slopes = rng.normal(size=4) + cp.hstack([x[0], x[1] - x[0], 2 * x[1], 0])
    quadratic = g @ g.T * curved + np.eye(4) * (0.1 * curved)
    if kind == "equilibrium":
        level: object = hf.Equilibrium(y, (quadratic + turn - turn.T) @ y + slopes, rows)
    else:
        form = cp.sum_squares(np.linalg.cholesky(quadratic).T @ y) if curved else 0.0
        level = (hf.ArgMin if kind == "argmin" else hf.ArgMax)(y, sign * (form + slopes @ y), rows)
    problem = hf.Problem(hf.Minimize(server=cp.sum(y)), level, [x >= -1, x <= 1])  # type: ignore[arg-type]
    compiled = problem.compile(progress=False)
    program = SingleLevel.of(compiled)
    assert len(program.implied) == (kind != "equilibrium" or not curved)  # of the parts that turn nothing is left
    for point in rng.uniform(-1, 1, (20, 2)):
        values = program.completed(point, [(one.first.u, one.first.z) for one in answers_of(compiled, point)])
        assert max(abs(one.at(values)) for one in program.all_equations) <= 1e-6
        assert all(one.at(values) >= -1e-7 for one in program.implied)


def test_the_limit_and_ctrl_c_give_the_best_point_and_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(40, 1)
    problem.compile()
    found = problem.reference(certificate="global", time_limit=3.0, progress=False)
    assert found.status == "time limit reached" and "time limit reached" in str(found) and "the best point found" in repr(found)
    assert found.bound < found.value == pytest.approx(problem.implicit(found.x))

    begun, search = threading.Event(), scip.searched

    def watched(*given: object, **settings: object) -> object:
        begun.set()
        return search(*given, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(scip, "searched", watched)

    def press() -> None:
        """A second after the search has begun."""
        begun.wait()
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    began = time.perf_counter()
    found = problem.reference(certificate="global", time_limit=None, progress=False)
    assert found.status == "interrupted" and np.isfinite(found.bound) and time.perf_counter() - began < 20


def test_a_default_run_says_whether_it_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "MOMENT", 60.0)  # on a busy machine
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    wells = cp.power(y, 4) - 2 * cp.square(y) + 0.2 * y
    problem = hf.Problem(hf.Minimize(server=wells), hf.ArgMin(y, cp.square(y - x)), [x >= -2, x <= 2])
    best = min(np.roots([4, 0, -4, 0.2]).real, key=lambda at: at**4 - 2 * at**2 + 0.2 * at)
    left, right = (problem.solve(x0=at, progress=False) for at in (-1.5, 1.5))
    assert left.x == pytest.approx(best, abs=1e-6) and "no x is better, to " in str(left)
    assert right.x > 0.5 and f"not the best: f = {left.value:.6g}"[:28] in str(right) and 'reference(certificate="global")' in str(right)
    assert "no x is better" not in str(problem.solve(hf.solvers.ImplicitGradient(step_size=0.05), rounds=3, progress=False))


def test_what_the_level_asks_of_x_alone() -> None:
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.ClientParameter(name="d")
    plain = hf.Problem(hf.Minimize(server=x + y), hf.ArgMin(y, cp.square(y - x), [y >= 0, x >= 1]), [x <= 5])
    assert proved(plain).value == pytest.approx(2)
    clients = hf.Federation([hf.Client(parameters={d: value}) for value in (0.5, 1.5)])
    own = hf.Problem(hf.Minimize(clients=x + y), hf.ArgMin(y, cp.square(y - x), [y >= 0, x >= d], scope="client"), [x <= 5], clients)
    assert proved(own).value == pytest.approx(3)


def test_tolls_that_nothing_bounds() -> None:
    """Three tolls on eight arcs (BOLIB's first toll setting): what is paid is at most what the way without tolls costs more."""
    x, y = cp.Variable(3, name="x", nonneg=True), cp.Variable(8, name="y", nonneg=True)
    paid = x[0] * y[2] + x[1] * y[3] + x[2] * y[7]
    ways = [y[0] + y[1] + y[2] == 1, y[0] == y[3] + y[4], y[1] + y[3] == y[5] + y[6], y[4] + y[5] == y[7], y[2] + y[6] + y[7] == 1]
    level = hf.ArgMin(y, np.array([2.0, 6, 5, 0, 4, 2, 6, 0]) @ y + paid, ways)
    assert proved(hf.Problem(hf.Maximize(server=paid), level)).value == pytest.approx(7.0)


# --- what there is no optimum of, and what is refused ------------------------------------------------------------------------


def test_unbounded_and_empty_problems_by_name() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    tracks = hf.ArgMin(y, cp.square(y - x))
    with pytest.raises(hf.errors.DivergedError, match="unbounded below"):
        hf.Problem(hf.Minimize(server=y), tracks).reference(certificate="global", progress=False)
    with pytest.raises(hf.errors.DivergedError, match="unbounded above"):
        hf.Problem(hf.Maximize(server=cp.square(y)), tracks).reference(certificate="global", progress=False)
    with pytest.raises(hf.errors.LowerLevelError, match="at no point of X"):
        hf.Problem(hf.Minimize(server=y), hf.ArgMin(y, y, [y >= x, y <= -1]), [x >= 0]).reference(certificate="global", progress=False)
    z = cp.Variable(2, name="z")
    relaxed = hf.ArgMin(z, z[0] + z[1], [z[0] + 2 * z[1] >= x, z >= 0])  # bounded by complementarity alone
    assert proved(hf.Problem(hf.Minimize(server=-cp.sum(z)), relaxed, [x >= 0, x <= 4])).value == pytest.approx(-2)


@pytest.mark.parametrize("bend", [0.0, 1e-3])
def test_a_program_that_is_unbounded_in_each_choice_is_not_called_proved(bend: float) -> None:
    """y(x) = min(x, 1) for x >= 0: y - x falls without end, and x - y, a slack, has no bound; SCIP itself calls 0 the least value."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    level = hf.ArgMin(y, x - y + 0.5 * cp.square(y), [y >= 0, x - y >= 0])
    with pytest.raises(hf.DivergedError, match="unbounded below"):
        hf.Problem(hf.Minimize(server=y - x + bend * cp.square(y)), level).reference(certificate="global", progress=False)


def test_an_unbounded_problem_of_large_numbers_is_told() -> None:
    """Tuy, Migdalas and Hoai-Phuong (2007), example 3: a value is published, and along one basis of the lower level f falls without end."""
    published = next(one for one in LINEAR if one.name == "TuyEtal2007Ex3")
    (x, d), (y, e) = (cp.Variable(10), cp.Variable(10)), (cp.Variable(6), cp.Variable(6))
    near, far = published.levels(x, y), published.levels(x + d, y + e)
    held = [level.rows[k].expr[rows] == 0 for level in (near, far) for k, rows in enumerate(([2, 4], [0, 2, 4, 5]))]
    allowed = [*near.rows, *far.rows, *near.constraints, *far.constraints, *held, d >= 0, cp.sum(d) == 1000]
    cp.Problem(cp.Minimize(far.upper - near.upper), [*allowed, x <= 100]).solve(solver=cp.HIGHS)
    problem = declared(published)
    for level, at in ((near, x.value), (far, x.value + d.value)):
        assert problem.implicit(np.maximum(at, 0.0)) == pytest.approx(level.upper.value, rel=1e-6)
    assert far.upper.value < near.upper.value - 5000.0
    with pytest.raises(hf.DivergedError, match="unbounded below"):
        problem.reference(certificate="global", progress=False, time_limit=30)


def test_what_has_no_optimality_conditions_here_is_refused_by_name() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    f, in_box = cp.sum_squares(y), [cp.norm_inf(x) <= 1]

    def refused(level: hf.ArgMin | hf.Equilibrium, match: str, objective: cp.Expression = f) -> None:
        with pytest.raises(hf.errors.IncompatibleSolverError, match=match):
            hf.Problem(hf.Minimize(server=objective), level, in_box).reference(certificate="global", progress=False)

    refused(hf.Equilibrium(y, y + cp.power(y, 3) - x, [y >= -1]), "affine in y")
    refused(hf.ArgMin(y, cp.sum_squares(y - x)), "geo_mean.* has no translation|GeoMean", cp.sum(y) - cp.geo_mean(x + 2))
    refused(hf.ArgMin(y, x @ y, [y >= -1, y <= 1], selection="pessimistic"), "costs below that x does not move.*pessimistic", cp.sum(y))
    refused(hf.ArgMin(y, y[0], [y >= x, y <= 3], selection="pessimistic"), "f linear in the y.*pessimistic")
    refused(hf.ArgMin(y, y[0], [cp.norm(y - x) <= 1, y[1] <= 3], selection="pessimistic"), "linear rows.*pessimistic", cp.sum(y))
    strict = hf.ArgMin(y, cp.sum_squares(y - x), selection="pessimistic")
    assert proved(hf.Problem(hf.Minimize(server=f), strict, in_box)).value == pytest.approx(0, abs=1e-7)
    problem = hf.Problem(hf.Minimize(server=f), strict, in_box)
    for setting in ({"gap": 0.0}, {"gap": True}, {"time_limit": -1.0}):
        with pytest.raises(hf.errors.SettingError, match=next(iter(setting))):
            problem.reference(certificate="global", **setting)  # type: ignore[arg-type]
    with pytest.raises(hf.errors.SettingError, match="'global'"):
        problem.reference(certificate="globall")


def test_without_scip_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyscipopt", None)
    x = cp.Variable(name="x")
    with pytest.raises(hf.errors.MissingPackageError, match=r"hierfl\[global\]"):
        hf.Problem(hf.Maximize(server=cp.square(x)), constraints=[cp.abs(x) <= 1]).reference(certificate="global", progress=False)


def test_an_optimum_that_does_not_hold_when_the_level_is_solved_again_is_not_called_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(server=x + y), hf.ArgMin(y, cp.square(y - x)), [cp.abs(x) <= 1])
    right = scip.searched

    def wrong(*given: object, **settings: object) -> object:
        found = right(*given, **settings)  # type: ignore[arg-type]
        return found._replace(value=found.value - 0.1, bound=found.bound - 0.1)

    monkeypatch.setattr(scip, "searched", wrong)
    found = problem.reference(certificate="global", progress=False)
    assert found.status.startswith("not proved") and found.value == pytest.approx(-2) and "not proved" in repr(found)


def test_a_crash_of_scip_is_an_answer_and_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crashing = tmp_path / "crashing.py"
    lines = ["import os, signal, sys", "from multiprocessing.connection import Connection", "channel = Connection(int(sys.argv[1]))"]
    lines += ["sys.path[:] = channel.recv()", "channel.send(('ready',))", "channel.recv()", "os.kill(os.getpid(), signal.SIGSEGV)"]
    crashing.write_text("\n".join(lines))
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(server=cp.square(x - 0.5) + y), hf.ArgMin(y, cp.square(y - x)), [cp.abs(x) <= 1])
    monkeypatch.setattr(scip.Process, "script", crashing)
    monkeypatch.setattr(scip, "_AT_REST", [])
    found = problem.reference(certificate="global", progress=False)
    assert found.status == "SCIP failed: its process ended abnormally (SIGSEGV)" and "the best point found" in repr(found)
    assert found.value == pytest.approx(0.25, abs=1e-6) and found.bound == -np.inf  # (x - 1/2)^2 + x at x = 0
    monkeypatch.undo()
    assert proved(problem).value == pytest.approx(0.25, abs=1e-9)


def test_a_fault_of_ours_in_scips_process_is_no_answer() -> None:
    with pytest.raises(RuntimeError, match="in SCIP's process: Traceback"), scip._process() as process:
        list(process.answers({"program": {}}, time.perf_counter() + 30))


def test_a_bound_that_tolerances_undo_is_not_called_proved() -> None:
    """BOLIB's Dempe1992a: f = y[1] is 0 wherever it has a value, and -2e-5 where rows are violated by SCIP's tolerance."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, 0.5 * cp.sum_squares(y - np.array([1.0, 0])), [x[1] + y[0] + x[0] * y[1] <= 0, y[0] <= 0])
    found = hf.Problem(hf.Minimize(server=y[1]), level, [cp.square(x[0]) + cp.square(x[1] + 1) <= 1]).reference(certificate="global", progress=False)
    assert found.status.startswith("not proved") and found.bound < 0 and abs(found.value) <= 1e-6


def test_an_infimum_that_is_not_attained_is_bounded_from_below() -> None:
    """y(x) is 0 for x > 0 and 1 at 0: f = x + y has the infimum 0, with multipliers 1 / x (BOLIB's Zlobec2001b)."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    rows = [y >= 0, y <= 1, x * y >= 0, x * y <= 0]
    found = hf.Problem(hf.Minimize(server=x + y), hf.ArgMin(y, -y, rows), [x >= 0, x <= 1]).reference(certificate="global", progress=False)
    assert found.bound <= 0 < found.value and found.value == pytest.approx(float(found.x), rel=1e-9)


def test_quotients_below_whose_denominators_come_to_nothing() -> None:
    """Two roads of capacity x > 0 and 1 share 2 travellers, each at time y / capacity: y_0 = 2 x / (1 + x), and f = y_0 ** 2 + x falls to 0 as x does."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y", nonneg=True)
    level = hf.ArgMin(y, cp.square(y[0]) / x + cp.square(y[1]), [cp.sum(y) == 2])
    found = proved(hf.Problem(hf.Minimize(server=cp.square(y[0] - 1) + x), level, [x >= 0, x <= 3]))
    grid = np.linspace(1e-9, 3, 300_001)
    assert found.value == pytest.approx(((2 * grid / (1 + grid) - 1) ** 2 + grid).min(), abs=1e-6)


def test_what_is_proved_has_the_digits_that_the_gap_does_not_ask_for() -> None:
    """f = (x - y)^2 + (y - 3)^4 / 4, y(x) = max(2 x, 1): against the root of the derivative of x^2 + (2 x - 3)^4 / 4."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    level = hf.ArgMin(y, cp.square(y - 2 * x), [y >= 1])
    found = proved(hf.Problem(hf.Minimize(server=cp.square(x - y) + 0.25 * cp.power(y - 3, 4)), level))
    root = next(r.real for r in np.roots([16, -72, 110, -54]) if abs(r.imag) < 1e-9)
    assert float(found.x) == pytest.approx(root, abs=1e-10)


def test_prices_times_outputs_are_said_by_duality() -> None:
    """What a producer earns at three nodes: no product of unknowns is left but squares of what others' costs bend by; the optimum is that of a fine grid."""
    offer, y, angle = cp.Variable(name="offer"), cp.Variable(3, name="y"), cp.Variable(3, name="angle")
    flow = cp.hstack([angle[0] - angle[1], angle[1] - angle[2], angle[0] - angle[2]])
    met = [y[0] - flow[0] - flow[2] == 20, y[1] + flow[0] - flow[1] == 45, y[2] + flow[1] + flow[2] == 55]
    rows = [*met, y >= 0, y <= np.array([80.0, 50, 90]), cp.abs(flow) <= 30, angle[2] == 0]
    market = hf.ArgMin([y, angle], offer * y[0] + np.array([22.0, 30]) @ y[1:] + 0.05 * cp.square(y[1]) + 0.1 * cp.square(y[2]), rows)
    problem = hf.Problem(hf.Maximize(server=hf.ShadowPrice(met[0]) * y[0] - 10 * y[0]), market, [offer >= 0, offer <= 60])
    objective = SingleLevel.of(problem.compile(progress=False)).objective
    assert all(len(places) < 2 or (places[0] == places[-1] and value > 0) for places, value in objective.terms.items())
    found, grid = proved(problem), max(problem.implicit(at) for at in np.linspace(0.5, 59.5, 60))
    assert grid - 1e-6 <= found.value and found.value == pytest.approx(problem.implicit(found.x), abs=1e-6)


def test_a_start_by_the_variables_names_is_taken() -> None:
    u, v, y = cp.Variable(2, name="u"), cp.Variable(name="v"), cp.Variable(name="y")
    level = hf.ArgMin(y, cp.square(y - u[0] * v), [y >= -1])
    problem = hf.Problem(hf.Minimize(server=cp.square(y - 1) + cp.sum_squares(u) + cp.square(v)), level, [cp.abs(u) <= 2, cp.abs(v) <= 2, y <= 3])
    begun = problem.reference(certificate="global", x0={u: [1.0, 0.0], v: 1.0}, time_limit=5, progress=False)
    assert begun.value == pytest.approx(proved(problem).value, abs=1e-6)


def test_owners_alike_hide_no_better_point_from_a_search_with_a_start() -> None:
    """f is of x alone, -1 times the weights at (0, 0, 1); two of three clients have the same numbers."""
    x, y, own = cp.Variable(3, boolean=True, name="x"), cp.Variable(name="y", nonneg=True), hf.ClientParameter(2, name="own")
    rows = [np.array([2.02, 1.2]) * y <= np.array([[-0.015, 0.05, 0.63], [0.245, -0.11, -0.21]]) @ x + [4, 2] + own, y <= 2]
    level = hf.ArgMin(y, (np.array([0.78, -1.83, -0.69]) @ x - 0.97) * y + 1.125 * cp.square(y), rows, scope="client")
    clients, weights = [hf.Client(parameters={own: one}) for one in ([2, 1], [0, 0], [0, 0])], [1.62094565, 1.90745521, 1.63455064]
    problem = hf.Problem(hf.Minimize(clients=cp.sum(x[:2]) - x[2] + 0 * y), level, federation=hf.Federation(clients, weights=weights))
    found = problem.reference(certificate="global", x0=np.zeros(3), progress=False)
    assert (found.status, found.value) == ("proved", pytest.approx(-sum(weights)))


@pytest.mark.parametrize("falling", [cp.log, lambda x: -cp.inv_pos(x), lambda x: -cp.power(x, -0.5)], ids=["log", "reciprocal", "root"])
@pytest.mark.parametrize("least", [0.0, -1.0])
def test_nothing_is_proved_where_f_falls_without_end_at_the_edge_of_its_domain(falling: Any, least: float) -> None:
    x = cp.Variable(name="x")
    open_, closed = (hf.Problem(hf.Minimize(falling(x)), constraints=[x >= low, x <= 2]) for low in (least, 0.5))
    assert "not proved" in str(open_.reference(certificate="global", progress=False).status)
    found = closed.reference(certificate="global", progress=False)
    assert found.status == "proved" and found.x["x"] == pytest.approx(0.5, abs=1e-6)
