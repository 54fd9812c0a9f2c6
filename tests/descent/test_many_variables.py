"""Descent in many variables, against minima known from formulas, linear programs, and CVXPY."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog, minimize_scalar

import hierfl as hf
from hierfl.solvers import ImplicitBundle

RNG = np.random.default_rng(0)


def separable(kind: str, t: np.ndarray, c: np.ndarray) -> tuple[hf.Problem, Callable[[float, int], float]]:
    """y = max(0, x) below a sum of functions of one variable each, and those functions."""
    x, y = cp.Variable(t.size, name="x"), cp.Variable(t.size, name="y")
    top, one = {
        "smooth": (
            0.5 * c @ cp.square(y - t) + 0.05 * cp.sum_squares(x - 1),
            lambda z, i: 0.5 * c[i] * (max(0, z) - t[i]) ** 2 + 0.05 * (z - 1) ** 2,
        ),
        "kinks of both": (
            c @ cp.abs(y - t) + 0.05 * cp.sum_squares(x - 1),
            lambda z, i: c[i] * abs(max(0, z) - t[i]) + 0.05 * (z - 1) ** 2,
        ),
    }[kind]
    problem = hf.Problem(hf.Minimize(clients=top), hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]), [cp.abs(x) <= 3])
    return problem, one


@pytest.mark.parametrize("size", [50, 1000])
@pytest.mark.parametrize("kind", ["smooth", "kinks of both"])
def test_kinks_along_every_variable(kind: str, size: int) -> None:
    """At the minimum about half of the variables are at a kink."""
    t, c = 2 * RNG.standard_normal(size), RNG.uniform(0.5, 5, size)
    problem, one = separable(kind, t, c)
    least = 0.0
    for i in range(size):
        places = [-3.0, 0.0, 1.0, 3.0, float(np.clip(t[i], -3, 3))]
        ends = [minimize_scalar(one, bounds=b, args=(i,), method="bounded").x for b in ((-3, 0), (0, 3))]
        least += min(one(z, i) for z in [*places, *ends])
    result = problem.solve(progress=False)
    assert result.status == "at rest" and result.settings["rounds_done"] <= 500
    assert result.value == pytest.approx(least, rel=1e-6) and result.value >= least * (1 - 1e-9)


def test_a_smooth_sum_over_a_simplex_and_a_box() -> None:
    """Neither set's projection goes along the model: the steps are found by projected gradients of it."""
    n = 80
    x, a, b = cp.Variable(n, name="x"), RNG.standard_normal((120, n)), RNG.standard_normal(120)
    for within in ([cp.sum(x) == 1, x >= 0], [x >= -0.1, x <= 0.2], [cp.norm(x) <= 0.5]):
        f = 0.5 * cp.sum_squares(a @ x - b)
        least = cp.Problem(cp.Minimize(f), within).solve(solver=cp.CLARABEL)
        result = hf.Problem(hf.Minimize(clients=f), constraints=within).solve(progress=False)
        assert result.status == "at rest" and result.value == pytest.approx(least, rel=1e-7)


def test_kinks_along_no_variable_are_left_to_a_model_in_pieces() -> None:
    n = 40
    a, b, x = RNG.standard_normal((2 * n, n)), RNG.standard_normal(2 * n), cp.Variable(n, name="x")
    beside = np.block([[a, -np.eye(2 * n)], [-a, -np.eye(2 * n)]])
    bounds = [(None, None)] * n + [(0, None)] * (2 * n)
    least = linprog(np.r_[np.zeros(n), np.ones(2 * n)], beside, np.r_[b, -b], bounds=bounds).fun
    result = hf.Problem(hf.Minimize(clients=cp.norm1(a @ x - b))).solve(ImplicitBundle(), progress=False)
    assert result.status == "at rest" and result.value == pytest.approx(least, rel=1e-8)


def test_ends_that_are_no_minimum_are_named() -> None:
    n = 50
    x, y = cp.Variable(n, name="x"), cp.Variable(name="y")
    level = hf.ArgMin(y, cp.square(y - cp.sum(x)))
    assert hf.Problem(hf.Minimize(clients=y), level).solve(progress=False).status == "f seems unbounded below"
    w, v = np.linspace(-1, 1, n), cp.Variable(name="v")
    edge = hf.ArgMin(v, cp.square(v), [v >= cp.sum(x), v <= 1 - cp.sum(x)])
    falls = hf.Problem(hf.Minimize(clients=-cp.sum(x) + cp.sum_squares(x - w) + 0 * v), edge)
    result = falls.solve(progress=False)
    assert result.status in ("at rest", "at the edge of where f has values", "no descent found") or "not" in str(result)
    assert float(np.sum(result.x)) <= 0.5 + 1e-9


def test_a_sum_over_many_rows_is_descended_by_gradients() -> None:
    """Above two million scalars of data, a penalty chosen by validation rows, beside Newton's method and a search in one variable."""
    rows, p = 110_000, 20
    a, held, w = RNG.standard_normal((rows, p)), RNG.standard_normal((2_000, p)), RNG.standard_normal(p)
    b = np.sign(a @ w + 3 * RNG.standard_normal(rows))
    held_b = np.sign(0.2 * held @ w + 3 * RNG.standard_normal(2_000))
    x, y = cp.Variable(name="x"), cp.Variable(p, name="y")
    u, t, v, s = hf.Sample(p, name="u"), hf.Sample(name="t"), hf.Sample(p, name="v"), hf.Sample(name="s")
    clients = [hf.Client({u: a[i::5], t: b[i::5], v: held[i::5], s: held_b[i::5]}) for i in range(5)]
    level = hf.ArgMin(y, hf.E(cp.logistic(-t * (u @ y))) + 0.5 * cp.exp(x) * cp.sum_squares(y))
    top = hf.Minimize(clients=hf.E(cp.logistic(-s * (v @ y))))
    result = hf.Problem(top, level, [x >= -8, x <= 4], hf.Federation(clients)).solve(progress=False)
    assert result.settings["solver"].startswith("ImplicitBundle") and result.status == "at rest"

    def fitted(penalty: float) -> np.ndarray:
        z = np.zeros(p)
        for _ in range(12):
            chance = 1 / (1 + np.exp(b * (a @ z)))
            slope = -a.T @ (b * chance) / rows + penalty * z
            curvature = (a * (chance * (1 - chance))[:, None]).T @ a / rows + penalty * np.eye(p)
            z = z - np.linalg.solve(curvature, slope)
        return z

    def value(z: float) -> float:
        return float(np.mean(np.logaddexp(0, -held_b * (held @ fitted(np.exp(z))))))

    least = minimize_scalar(value, bounds=(-8, 4), method="bounded", options={"xatol": 1e-6})
    assert result.value == pytest.approx(least.fun, rel=1e-9) and float(result.x) == pytest.approx(least.x, abs=1e-3)
    assert result.y == pytest.approx(fitted(np.exp(float(result.x))), abs=1e-8)
