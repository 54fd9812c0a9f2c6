"""What ``solve()`` takes without a solver, on ten problems of ten fields and on those that the bundle method cannot treat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog, minimize

import hierfl as hf
from hierfl.runtime import InProcess
from tests.benchmarks.untuned import searched
from tests.benchmarks.untuned_problems import FIELDS, Field


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_ten_fields_without_settings(field: Field) -> None:
    """The value is right, and no descent from there by values of another implementation gains a hundredth."""
    result = field.declare().solve(progress=False)
    chosen = "one convex program" if field.name == "recourse" else "exact gradients"
    assert chosen in result.settings["chosen"] and "chosen because" in str(result)
    assert (chosen == "one convex program") != ("it is a local method" in str(result))
    x = field.flat(result.x)
    assert field.value(x) == pytest.approx(result.value, rel=1e-6)
    assert result.status in ("at rest", "no descent found") or "not at rest" in str(result)
    sign = -1 if field.maximise else 1
    start = sign * field.value(x)
    assert sign * searched(field, x, 25 * min(x.size, 4), 0.05) >= start - 0.01 * (1e-6 + abs(start))


def test_others_get_the_papers_algorithm_and_a_line_that_says_why() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    values = hf.BlackBox(lambda v: float(np.sum((v - 1) ** 2)), y)
    level = hf.ArgMin(y, cp.sum_squares(y - x), scope="client")
    boxed = hf.Problem(hf.Minimize(clients=values), level, [cp.abs(x) <= 3])
    result = boxed.solve(rounds=200, progress=False)
    assert "gradients='differences'" in result.settings["solver"] and "f has no gradients" in str(result)
    assert result.value < 1e-6 and result.status == "at rest"
    smooth = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), hf.ArgMin(y, cp.sum_squares(y - x)))
    for given, reason in (
        ({"queries": "raw"}, "outside X"),
        ({"runtime": InProcess(schedule="map")}, "another way of running"),
    ):
        result = smooth.solve(rounds=100, progress=False, **given)
        assert result.settings["solver"].startswith("FedRZO") and reason in result.settings["chosen"]
        assert result.value < 0.1
    named = smooth.solve(hf.solvers.ImplicitGradient(), rounds=5, progress=False)
    assert "chosen" not in named.settings and "chosen because" not in str(named)


def test_neither_many_variables_nor_other_cones_go_to_values_alone() -> None:
    x, y = cp.Variable(201, name="x"), cp.Variable(name="y")
    wide = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1) + y), hf.ArgMin(y, cp.square(y - cp.sum(x))))
    z = cp.Variable(2, name="z")
    curved = hf.Problem(hf.Minimize(clients=cp.sum_squares(z - 2)), constraints=[cp.log_sum_exp(z) <= 2])
    for problem, least, at in ((wide, 201 * (0.25 + 0.5), 0.5), (curved, 2 * np.log(2) ** 2, 2 - np.log(2))):
        result = problem.solve(progress=False)
        assert result.settings["solver"].startswith("ImplicitBundle") and result.status == "at rest"
        assert result.value == pytest.approx(least, rel=1e-8) and result.x == pytest.approx(at, abs=1e-5)


def test_values_alone_are_taken_with_a_warning_that_says_why() -> None:
    x, y = cp.Variable(201, name="x"), cp.Variable(201, name="y")
    values = hf.BlackBox(lambda v: float(np.sum((v - 1) ** 2)), y)
    problem = hf.Problem(hf.Minimize(clients=values), hf.ArgMin(y, cp.sum_squares(y - x)))
    with pytest.warns(hf.errors.RestWarning, match="zeroth order.*f has no gradients.*BlackBox"):
        problem.solve(rounds=20, progress=False)


def test_a_start_without_a_value_asks_for_another() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(x - 2) + cp.square(y)),
        hf.ArgMin(y, cp.square(y - 3), [y >= 1, y <= x]),
        [cp.abs(x) <= 5],
    )
    with pytest.raises(hf.EmptyLowerSetError) as raised:
        problem.solve(x0=np.array(0.0), progress=False)
    assert any("give x0" in note for note in raised.value.__notes__)
    assert problem.solve(x0=np.array(3.0), progress=False).x == pytest.approx(1.0, abs=1e-6)
    found = problem.solve(progress=False)
    assert found.x == pytest.approx(1.0, abs=1e-6) and "f has no value at the projection of 0" in found.settings["chosen"]
    nowhere = hf.Problem(hf.Minimize(clients=cp.square(x) + y), hf.ArgMin(y, cp.square(y - 3), [y >= 1, y <= x]), [x <= 0])
    with pytest.raises(hf.EmptyLowerSetError):
        nowhere.solve(progress=False)


def test_a_lower_level_solver_is_not_taken_for_a_solver() -> None:
    x = cp.Variable(2, name="x")
    with pytest.raises(hf.errors.SettingError, match=r"FedRZO\(lower=LocalSGD"):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(x))).solve(hf.solvers.LocalSGD(), progress=False)


@pytest.mark.parametrize("start", [None, 0.0])
def test_a_run_goes_on_beyond_a_plateau(start: float | None) -> None:
    """y = max(0, 1 - e^(x+1)): at x >= -1 the answer is 0 whatever the penalty, as that of a lasso is."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    level = hf.ArgMin(y, 0.5 * cp.square(y - 1) + cp.exp(x + 1) * cp.abs(y))
    problem = hf.Problem(hf.Minimize(clients=cp.square(y - 0.5)), level, [x >= -8, x <= 4])
    result = problem.solve(x0=start, progress=False)
    assert result.history["objective"][0] == pytest.approx(0.25)
    assert result.status == "at rest" and float(result.x) == pytest.approx(np.log(0.5) - 1, abs=1e-6)


def rows_of(n: int, p: int) -> tuple[np.ndarray, np.ndarray, hf.Sample, hf.Sample, hf.Federation]:
    rng = np.random.default_rng(n)
    a = rng.normal(size=(n, p))
    b = a[:, 0] - 2 * a[:, 1] + 0.3 * rng.normal(size=n)
    u, t = hf.Sample(p, name="u"), hf.Sample(name="t")
    clients = [hf.Client({u: a[k], t: b[k]}) for k in np.split(np.arange(n), [1, n // 3])]
    return a, b, u, t, hf.Federation(clients, weights="samples")


def test_a_lasso_has_the_zeros_of_its_optimality_conditions() -> None:
    a, b, u, t, federation = rows_of(90, 12)
    w = cp.Variable(12, name="w")
    loss = hf.Minimize(clients=0.5 * hf.E(cp.square(u @ w - t)), server=0.1 * cp.norm1(w))
    result = hf.Problem(loss, federation=federation).solve(progress=False)
    force = a.T @ (b - a @ result.x) / 90
    kept = result.x != 0
    assert 2 <= kept.sum() < 12 and "one convex program" in result.settings["chosen"]
    np.testing.assert_allclose(force[kept], 0.1 * np.sign(result.x[kept]), atol=1e-12)
    assert np.abs(force[~kept]).max() <= 0.1
    assert result.rest is not None and len(result.history["objective"]) == 1 and "multipliers of one convex program" in result.standing
    modulus = np.linalg.eigvalsh(a.T @ a / 90)[0]
    better = result.x - 1e-3 * np.eye(12)[kept.argmax()]  # another run's end: the bounds hold there, and say something
    ended = hf.Problem(loss, federation=federation).solve(hf.solvers.ImplicitBundle(), x0=better, rounds=1, progress=False)
    assert ended.rest is not None and result.value >= ended.value - ended.rest.value_bound
    away = float(np.linalg.norm(ended.x - result.x))
    assert away <= ended.rest.distance_bound * (1 + 1e-9) <= 1e-5 + np.sqrt(2 * (ended.value - result.value) / modulus)


@pytest.mark.parametrize("tail", [hf.Worst, lambda loss: hf.CVaR(loss, level=0.8)], ids=["worst", "cvar"])
def test_a_portfolio_by_the_tails_of_every_client_is_one_convex_program(tail: Callable[[Any], Any]) -> None:
    rng = np.random.default_rng(3)
    gains, shocks = [rng.normal(0.05, 0.3, size=(rows, 4)) for rows in (1, 9, 20)], rng.normal(size=(6, 4))
    x, u, s = cp.Variable(4, name="x"), hf.Sample(4, name="u"), hf.Sample(4, name="s")
    federation = hf.Federation([hf.Client({u: rows}) for rows in gains], weights="samples", server=hf.Client({s: shocks}))
    objective = hf.Maximize(clients=hf.E(u @ x) - tail(-u @ x), server=-0.1 * tail(s @ x) - cp.sum_squares(x))
    problem = hf.Problem(objective, constraints=[cp.sum(x) == 1, x >= 0], federation=federation)
    result = problem.solve(progress=False)
    z, told = cp.Variable(4), (cp.max if tail is hf.Worst else lambda losses: cp.cvar(losses, 0.8))
    of_clients = sum(len(rows) / 30 * (cp.sum(rows @ z) / len(rows) - told(-rows @ z)) for rows in gains)
    right = cp.Problem(cp.Maximize(of_clients - 0.1 * told(shocks @ z) - cp.sum_squares(z)), [cp.sum(z) == 1, z >= 0])
    right.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    assert result.value == pytest.approx(right.value, abs=1e-9) and result.rest is not None and result.rest.value_bound <= 1e-12
    np.testing.assert_allclose(result.x, z.value, atol=1e-5)
    assert problem.reference(progress=False).status == "proved"


def test_a_convex_problem_of_x_alone_is_proved_by_the_multipliers_of_one_program_and_no_other_is() -> None:
    """A logistic loss, which branch and bound did not bound within a minute; a difference of convex functions is not taken for convex."""
    a, b, u, t, federation = rows_of(60, 5)
    w = cp.Variable(5, name="w")
    loss = hf.E(cp.logistic(u @ w) - cp.multiply(t, u @ w) / 3)
    problem = hf.Problem(hf.Minimize(clients=loss, server=0.01 * cp.sum_squares(w)), constraints=[w <= 1], federation=federation)
    proved = problem.reference(certificate="global", progress=False)
    told = minimize(
        lambda w: np.mean(np.logaddexp(0, a @ w) - b * (a @ w) / 3) + 0.01 * w @ w,
        np.zeros(5),
        jac=lambda w: a.T @ (1 / (1 + np.exp(-a @ w)) - b / 3) / 60 + 0.02 * w,
        bounds=[(None, 1)] * 5,
        tol=1e-14,
    )
    assert proved.status == "proved" and proved.bound is not None and told.fun - 1e-13 <= proved.value <= told.fun + 1e-13
    assert proved.value - 1e-12 <= proved.bound <= told.fun
    hollow = hf.Problem(hf.Minimize(clients=loss, server=-cp.sum_squares(w)), constraints=[w <= 1, w >= -1], federation=federation)
    assert "convex" not in hollow.solve(progress=False).settings["chosen"]


def test_a_run_is_at_rest_as_soon_as_f_is_at_a_bound_that_is_given() -> None:
    x = cp.Variable(3, name="x")
    problem = hf.Problem(hf.Maximize(server=2 - cp.sum_squares(x - 1) - cp.norm1(x)))
    assert problem.solve(hf.solvers.ImplicitBundle(bound=-1.0), x0=np.zeros(3), progress=False).value == -1
    result = problem.solve(hf.solvers.ImplicitBundle(bound=-0.25), x0=np.zeros(3), progress=False)
    assert result.status == "at rest" and result.value == pytest.approx(-0.25, abs=1e-8)
    with pytest.raises(hf.errors.SettingError, match="bound=nan"):
        hf.solvers.ImplicitBundle(bound=float("nan"))


def test_a_quantile_regression_with_rows_on_x_is_a_vertex() -> None:
    a, b, u, t, federation = rows_of(40, 3)
    w = cp.Variable(3, name="w")
    error = t - u @ w
    objective = hf.Minimize(clients=hf.E(cp.maximum(0.8 * error, -0.2 * error)))
    result = hf.Problem(objective, constraints=[cp.sum(w) <= -1.2, w >= -3], federation=federation).solve(progress=False)
    cost = np.concatenate([np.zeros(3), 0.8 * np.ones(40), 0.2 * np.ones(40)]) / 40
    told = linprog(cost, [[1, 1, 1, *np.zeros(80)]], [-1.2], np.hstack([a, np.eye(40), -np.eye(40)]), b, [(-3, None)] * 3 + [(0, None)] * 80)
    np.testing.assert_allclose(result.x, told.x[:3], atol=1e-10)
    assert result.value == pytest.approx(told.fun, abs=1e-12)


def test_aggregates_of_all_rows_are_asked_for_all_rows_at_sites() -> None:
    a, b, u, t, _ = rows_of(40, 3)
    halves = [(a[k::2], b[k::2]) for k in range(2)]
    w, z = cp.Variable(3, name="w"), cp.Variable(3)
    clients = [hf.Client({u: own, t: out}) for own, out in halves]
    problem = hf.Problem(hf.Minimize(clients=hf.CVaR(cp.square(u @ w - t), 0.5)), federation=hf.Federation(clients))
    result = problem.solve(runtime=hf.runtime.Delayed([1.0, 1.0]), rounds=200, progress=False)
    worst = [cp.sum_largest(cp.square(own @ z - out), 10) / 10 for own, out in halves]
    assert result.value == pytest.approx(cp.Problem(cp.Minimize(sum(worst) / 2)).solve(solver=cp.CLARABEL), rel=0.05)


@pytest.mark.parametrize("scope", ["client", "federation"])
def test_aggregates_of_all_rows_below_are_answered_by_all_rows_at_sites(scope: str) -> None:
    a, b, u, t, _ = rows_of(40, 3)
    halves = [(a[k::2], b[k::2]) for k in range(2)]
    x, y, z = cp.Variable(3, name="x"), cp.Variable(3, name="y"), cp.Variable(3)
    lower = hf.ArgMin(y, hf.CVaR(cp.square(u @ y - t), 0.5) + cp.sum_squares(y - x), scope=scope)
    federation = hf.Federation([hf.Client({u: own, t: out}) for own, out in halves])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), lower, federation=federation)
    result = problem.solve(runtime=hf.runtime.Delayed([1.0, 1.0]), rounds=50, progress=False)
    at = np.asarray(result.x)
    tails = [cp.sum_largest(cp.square(own @ z - out), 10) / 10 for own, out in halves]
    values = []
    for tail in tails if scope == "client" else [sum(tails) / 2]:
        cp.Problem(cp.Minimize(tail + cp.sum_squares(z - at))).solve(solver=cp.CLARABEL)
        values.append(np.sum((z.value - 1) ** 2))
    assert result.value == pytest.approx(np.mean(values), rel=1e-3)  # at this x, by what the data say
    assert result.own_value == pytest.approx(np.mean(values), abs=0.05)  # by the steps towards y
