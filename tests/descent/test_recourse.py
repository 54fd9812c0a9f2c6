"""A second stage that costs above what it costs below: proved optima beside quantiles and CVXPY, and problems that only look alike."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

RNG = np.random.default_rng(4)
DEMANDS = [RNG.uniform(1, 3, size=(rows, 40)) for rows in (5, 1, 3)]
COST, SHORT = RNG.uniform(1, 2, 40), RNG.uniform(3, 5, 40)


def newsvendors(share: float = 1.0, maximise: bool = False) -> hf.Problem:
    x, y, u = cp.Variable(40, name="x"), cp.Variable(40, name="y", nonneg=True), hf.Sample(40, name="u")
    cost = COST @ x + share * hf.E(SHORT @ y)
    upper = hf.Maximize(clients=-cost) if maximise else hf.Minimize(clients=cost)
    federation = hf.Federation([hf.Client({u: demand}) for demand in DEMANDS], weights="samples")
    return hf.Problem(upper, hf.ArgMin(y, SHORT @ y, [y >= u - x], scope="sample"), [x >= 0, x <= 4], federation)


@pytest.mark.parametrize(("share", "maximise"), [(1.0, False), (1.0, True), (2.0, False)])
def test_a_newsvendor_orders_a_quantile(share: float, maximise: bool) -> None:
    """The order that falls short with the frequency cost / shortage (Arrow, Harris and Marschak, 1951), in 40 goods at once."""
    result = newsvendors(share, maximise).solve(progress=False)
    pooled = np.sort(np.concatenate(DEMANDS), axis=0)
    short = COST / (share * SHORT)
    best = pooled[np.floor(len(pooled) * (1 - short)).astype(int), np.arange(40)]
    np.testing.assert_allclose(result.x, best, atol=1e-12)
    value = COST @ best + share * SHORT @ np.maximum(pooled - best, 0).mean(axis=0)
    assert result.value == pytest.approx(-value if maximise else value, rel=1e-12)
    assert result.status == "at rest" and len(result.history["objective"]) == 1 and result.rest is not None
    assert result.rest.value_bound < 1e-10 * value


@pytest.mark.parametrize("scope", ["client", "federation"])
def test_a_stage_of_clients_and_one_of_all(scope: Any) -> None:
    x, y, k, d, u = cp.Variable(2, name="x"), cp.Variable(3, name="y"), hf.ClientParameter(name="k", nonneg=True), hf.ClientParameter(3, name="d"), hf.Sample(3, name="u")
    matrix, prices, constants = RNG.uniform(size=(3, 2)), RNG.uniform(1, 3, 3), [(0.5, RNG.uniform(1, 2, 3)), (1.4, RNG.uniform(1, 2, 3))]
    rows = [RNG.uniform(size=(n, 3)) for n in (2, 4)]

    def costs(x: Any, y: Any, k: Any, u: Any) -> Any:
        far = cp.norm(y - matrix @ x)
        return k * (prices @ y) + far + cp.sum_squares(y - u) if scope == "federation" else k * (prices @ y) + far

    def limits(x: Any, y: Any, d: Any) -> list[Any]:
        return [y >= d - matrix @ x, y >= 0]

    own = hf.E(costs(x, y, k, u)) if scope == "federation" else costs(x, y, k, u)
    upper = hf.Minimize(clients=cp.sum(x) + cp.sum_squares(x) + own)
    clients = [hf.Client({u: some}, {k: kc, d: dc}) for some, (kc, dc) in zip(rows, constants)]
    if scope == "client":
        clients = [hf.Client({}, {k: kc, d: dc}) for kc, dc in constants]
    problem = hf.Problem(upper, hf.ArgMin(y, own, limits(x, y, d), scope=scope), [x >= 0, x <= 3], hf.Federation(clients))
    found = problem.reference(progress=False)
    own_y = [cp.Variable(3)] * 2 if scope == "federation" else [cp.Variable(3), cp.Variable(3)]
    parts = [sum(costs(x, one, kc, row) for row in some) / len(some) for one, some, (kc, _) in zip(own_y, rows, constants)]
    whole = cp.Problem(
        cp.Minimize(cp.sum(x) + cp.sum_squares(x) + 0.5 * sum(parts)),
        [x >= 0, x <= 3, *(limit for one, (_, dc) in zip(own_y, constants) for limit in limits(x, one, dc))],
    )
    whole.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    assert "multipliers of one convex program" in str(found)
    assert found.value == pytest.approx(whole.value, rel=1e-8) and found.bound <= whole.value + 1e-8


LOOK_ALIKES = {  # (what y costs above, what below)
    "more above": lambda x, y: (2 * y + cp.square(y), 2 * y),
    "other shares": lambda x, y: (2 * y + 3 * cp.square(y), y + 2 * cp.square(y)),
    "the other way": lambda x, y: (-2 * y, 2 * y),
    "prices": lambda x, y: (x * y, x * y),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_others_are_searched(name: str) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    above, below = LOOK_ALIKES[name](x, y)
    problem = hf.Problem(hf.Minimize(x + cp.square(x) + above), hf.ArgMin(y, below + cp.square(y - 1), [y >= 1 - x, y <= 4]), [x >= 0, x <= 3])
    assert "convex program" not in str(problem.reference(progress=False))


def test_what_is_convex_in_y_alone_is_searched() -> None:
    """y <= x^2 is no convex set of both: f = x^2 - 2 min(x^2, 1), least at the ends."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(cp.square(x) - 2 * y), hf.ArgMin(y, -2 * y, [y <= cp.square(x), y <= 1]), [x >= -0.5, x <= 2])
    found = problem.reference(progress=False)
    assert "convex program" not in str(found) and found.value == pytest.approx(-1.0, abs=1e-8)


def test_clients_that_differ_in_no_constant_have_a_y_each() -> None:
    x, y, u = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="u")
    lower = hf.ArgMin(y, 2 * y, [y >= 1 - x], scope="client")
    federation = hf.Federation([hf.Client({u: np.arange(3.0)}), hf.Client({u: np.arange(2.0)})])
    found = hf.Problem(hf.Minimize(clients=hf.E(cp.square(x - u)) + 2 * y), lower, [x >= 0, x <= 3], federation).reference(progress=False)
    at = np.linspace(0, 3, 100_001)
    f = 0.5 * sum(((at[:, None] - np.arange(n)) ** 2).mean(axis=1) for n in (3, 2)) + 2 * (1 - at)
    assert "multipliers of one convex program" in str(found) and found.value == pytest.approx(f.min(), abs=1e-8)


@pytest.mark.parametrize("scope", ["client", "federation"])
def test_a_tail_of_each_client_above_is_searched(scope: Any) -> None:
    """Of one row each the tail is the loss: f = x^2 / 2 + (x - 1)^2 / 2 + x, least at 0."""
    x, y, u = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="u")
    upper = hf.Minimize(clients=hf.CVaR(cp.square(x - u), level=0.3) + y)
    clients = hf.Federation([hf.Client({u: np.array([value])}) for value in (0.0, 1.0)])
    found = hf.Problem(upper, hf.ArgMin(y, y, [y >= x], scope=scope), [cp.abs(x) <= 2], clients).reference(progress=False)
    assert "convex program" not in str(found) and found.value == pytest.approx(0.5, abs=1e-8)
