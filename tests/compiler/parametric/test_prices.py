"""Prices upstairs: multipliers and shadow prices against CVXPY, differences of optimal values, and formulas."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime.sites.parcels import without_data
from tests.bilevel_case import gradient_by_differences

EXACT = {"solver": cp.CLARABEL, "tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}


class RandomLevel:
    """A random linear or quadratic level in y over one constraint of a kind, with bounds that move with x; minimised or maximised."""

    def __init__(self, rng: np.random.Generator, kind: str, sense: str, relation: str) -> None:
        self.n, self.kind, self.sense, self.relation = int(rng.integers(2, 6)), kind, sense, relation
        m = int(rng.integers(1, self.n))
        root = rng.standard_normal((self.n, self.n))
        self.q = cp.psd_wrap(root.T @ root + 0.3 * np.eye(self.n))
        self.c, self.a, self.b = rng.standard_normal(self.n), rng.standard_normal((m, self.n)), rng.uniform(0.1, 1, m)
        self.of_x, self.weights, self.at = 0.3 * rng.standard_normal((m, 2)), rng.standard_normal(m), rng.uniform(-1, 1, 2)

    def written(self, x: Any, y: Any, more: Any = 0.0) -> tuple[Any, list[Any], Any]:
        """(objective, constraints, the one that has a price); ``more`` of its right-hand side."""
        right, left = self.b + self.of_x @ x, self.a @ y
        relations: dict[str, Callable[[], Any]] = {
            "<=": lambda: left <= right + more,
            ">=": lambda: left >= -right + more,
            "==": lambda: left == right + more,
        }
        priced = relations[self.relation]()
        cost = self.c @ y + x[0] * y[0] + (0.5 * cp.quad_form(y, self.q) if self.kind == "quadratic" else 0.0)
        return cost if self.sense == "min" else -cost, [priced, y <= 2 + 0.1 * cp.sum(x), y >= -2], priced

    def solved(self, x: np.ndarray, more: Any = 0.0) -> tuple[float, np.ndarray, np.ndarray]:
        """(optimal value, y, dual value) by CVXPY."""
        y = cp.Variable(self.n)
        objective, constraints, priced = self.written(x, y, more)
        value = cp.Problem((cp.Minimize if self.sense == "min" else cp.Maximize)(objective), constraints).solve(**EXACT)
        return float(value), y.value, priced.dual_value

    def problem(self, price_of: Callable[[Any], Any]) -> hf.Problem:
        x, y = cp.Variable(2, name="x"), cp.Variable(self.n, name="y")
        objective, constraints, priced = self.written(x, y)
        price = price_of(priced)
        upper = self.weights @ price + 0.1 * price @ (self.a @ y)
        level = (hf.ArgMin if self.sense == "min" else hf.ArgMax)(y, objective, constraints)
        return hf.Problem(hf.Minimize(server=upper), level, constraints=[x >= -1, x <= 1])

    def upper(self, price: np.ndarray, y: np.ndarray) -> float:
        return float(self.weights @ price + 0.1 * price @ (self.a @ y))


CASES = [
    (kind, sense, relation, trial)
    for kind in ("linear", "quadratic")
    for sense in ("min", "max")
    for relation in ("<=", ">=", "==")
    for trial in range(2)
]


@pytest.mark.parametrize(("kind", "sense", "relation", "trial"), CASES)
def test_signs_values_and_gradients(kind: str, sense: str, relation: str, trial: int) -> None:
    level = RandomLevel(np.random.default_rng([trial, len(kind), len(relation), ord(sense[1])]), kind, sense, relation)
    value, y, dual = level.solved(level.at)
    expected, here = level.upper(dual, y), level.problem(hf.Dual)
    assert float(here.implicit(level.at)) == pytest.approx(expected, rel=1e-7, abs=1e-8)
    np.testing.assert_allclose(here.implicit.gradient(level.at), gradient_by_differences(here.implicit, level.at, 1e-4), rtol=1e-5, atol=1e-6)
    by_cvxpy = level.problem(lambda constraint: constraint.dual_variables[0])
    assert float(by_cvxpy.implicit(level.at)) == pytest.approx(expected, rel=1e-7, abs=1e-8)
    steps = 1e-4 * np.eye(len(dual))
    shadow = np.array([(level.solved(level.at, e)[0] - level.solved(level.at, -e)[0]) / 2e-4 for e in steps])
    assert float(level.problem(hf.ShadowPrice).implicit(level.at)) == pytest.approx(level.upper(shadow, y), rel=1e-5, abs=1e-5)


def test_beside_smooth_terms_and_cones() -> None:
    rng = np.random.default_rng(0)
    a, at = rng.standard_normal((2, 3)), np.array([0.3, -0.4])
    x, y, own = cp.Variable(2, name="x"), cp.Variable(3, name="y"), cp.Variable(3)
    for cost, near in (
        (lambda y, x: cp.sum(cp.exp(y)) + cp.sum_squares(y[0] - x[0]), lambda y: []),
        (lambda y, x: cp.sum_squares(y - 3 * x[0]), lambda y: [cp.norm(y) <= 2]),
    ):
        balance, same = a @ y == x, a @ own == at
        problem = hf.Problem(hf.Minimize(server=np.array([1.0, 2.0]) @ hf.Dual(balance) + y[0]), hf.ArgMin(y, cost(y, x), [balance, *near(y)]))
        cp.Problem(cp.Minimize(cost(own, at)), [same, *near(own)]).solve(**EXACT)
        expected = np.array([1.0, 2.0]) @ same.dual_value + own.value[0]
        assert float(problem.implicit(at)) == pytest.approx(expected, rel=1e-6)
        np.testing.assert_allclose(problem.implicit.gradient(at), gradient_by_differences(problem.implicit, at, 1e-4), rtol=1e-5)


def test_of_clients_and_of_samples() -> None:
    x, y, z = cp.Variable(2, name="x"), cp.Variable(3, name="y"), cp.Variable(name="z")
    d, u = hf.ClientParameter(name="d"), hf.Sample(name="u")
    demand = cp.sum(y) >= d + x[0]
    price = hf.ShadowPrice(demand, name="price")
    clients = [hf.Client(parameters={d: value}) for value in (1.0, 2.0, 5.0)]
    problem = hf.Problem(
        hf.Minimize(clients=price * x[1] + cp.sum(y)),
        hf.ArgMin(y, cp.sum_squares(y), [demand, y >= 0], scope="client"),
        federation=hf.Federation(clients),
    )
    at = np.array([0.3, -0.4])
    needs = np.array([1.0, 2.0, 5.0]) + at[0]
    assert float(problem.implicit(at)) == pytest.approx(np.mean(2 * needs / 3 * at[1] + needs), rel=1e-12)
    result = problem.solve(hf.solvers.FedRZO(step_size=1e-3), rounds=2, x0=at, progress=False)
    np.testing.assert_allclose(result.y[price], 2 * (np.array([1.0, 2.0, 5.0]) + result.x[0]) / 3, rtol=1e-9)
    above, rows = z >= u * x[0], [np.arange(1.0, 4.0), np.array([7.0])]
    samples = hf.Problem(
        hf.Minimize(clients=hf.E(hf.Dual(above) * u) + 0 * x[1]),
        hf.ArgMin(z, cp.square(z), [above], scope="sample"),
        federation=hf.Federation([hf.Client({u: own}) for own in rows]),
    )
    assert float(samples.implicit(np.array([0.5, 0.0]))) == pytest.approx(np.mean([np.mean(own**2) for own in rows]), rel=1e-12)


def test_sites_have_them_too() -> None:
    """Processes of their own, which are sites, take the same path; so does a game's price, declared there again."""
    x, y, d = cp.Variable(2, name="x"), cp.Variable(3, name="y"), hf.ClientParameter(name="d")
    demand = cp.sum(y) >= d + x[0]
    federation = hf.Federation([hf.Client(parameters={d: value}) for value in (1.0, 2.0)])
    upper = hf.Minimize(clients=hf.ShadowPrice(demand) * x[1] + cp.sum_squares(x))
    problem = hf.Problem(upper, hf.ArgMin(y, cp.sum_squares(y), [demand], scope="client"), federation=federation)
    settings: dict[str, Any] = {"rounds": 2, "x0": np.ones(2), "progress": False}
    solver = hf.solvers.FedRZO(step_size=1e-2, batch_size=None)
    here = problem.solve(solver, **settings)
    there = problem.solve(solver, runtime=hf.runtime.Delayed([1.0, 1.0]), **settings)
    np.testing.assert_allclose(there.trajectory["x"], here.trajectory["x"], rtol=0, atol=1e-12)
    shared = y[:2] <= x
    game = hf.Problem(hf.Minimize(server=cp.sum(hf.Dual(shared)) + 0 * x[0]), hf.Equilibrium(y, 2 * y - 3, [shared]))
    again = without_data(game.declaration)
    assert again.lower_level is not None and [v.name() for v in again.lower_level.decided] == ["y"]


def test_of_equilibria_and_players() -> None:
    x, a, b = (cp.Variable(name=name) for name in "xab")
    shared, own = a + b <= x, a <= x
    mapping = [2 * a + b - 4, 2 * b + a - 5]
    both = hf.Problem(hf.Minimize(server=hf.Dual(shared, name="price") + 0 * x), hf.Equilibrium([a, b], mapping, [shared]))
    assert float(both.implicit(1.0)) == pytest.approx(3.0, rel=1e-12)  # 3 (a + b) = 9 - 2 price
    assert both.implicit.gradient(1.0) == pytest.approx(-1.5, rel=1e-12)
    assert float(both.implicit(10.0)) == pytest.approx(0.0, abs=1e-12)
    players = hf.Player(a, cp.square(a) + a * b - 4 * a, [own]), hf.Player(b, cp.square(b) + a * b - 5 * b)
    game = hf.Problem(hf.Minimize(server=hf.Dual(own) + 0 * x), hf.Nash(*players))
    assert float(game.implicit(0.5)) == pytest.approx(0.75, rel=1e-12)  # b = 2.25, 2 a + b - 4 + price = 0
    for copied in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        assert float(copied.implicit(1.0)) == pytest.approx(3.0, rel=1e-12)


def test_several_prices_are_told_and_a_jump_is_a_kink() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y", nonneg=True)
    demand = cp.sum(y) == x
    problem = hf.Problem(hf.Minimize(server=hf.ShadowPrice(demand) + 0 * x), hf.ArgMin(y, y[0] + 2 * y[1], [demand, y <= np.array([3.0, 10.0])]))
    assert float(problem.implicit(1.0)) == pytest.approx(1.0, rel=1e-12)
    assert float(problem.implicit(7.0)) == pytest.approx(2.0, rel=1e-12)
    with pytest.warns(hf.LowerLevelWarning, match="several solutions or prices"):
        assert 1.0 <= float(problem.implicit(3.0)) <= 2.0
    found = problem.implicit.slice(5.0, direction=1.0, radius=4.0, points=81, progress=False)
    assert "t = -2 (x = 3): f jumps from 1 to 2; (y <= [3, 10])[0]" in str(found.kinks)


def test_two_prices_of_one_constraint_and_its_multipliers() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    demand, most = cp.sum(y) == x, y <= 4
    upper = hf.ShadowPrice(demand) * x + demand.dual_variables[0] + cp.sum(hf.Dual(most))
    problem = hf.Problem(hf.Minimize(server=upper), hf.ArgMin(y, cp.sum_squares(y), [demand, most]))
    assert float(problem.implicit(6.0)) == pytest.approx(6.0 * 6.0 - 6.0, rel=1e-12)
    told = problem.implicit.multipliers(6.0)
    assert told[demand] == pytest.approx(-6.0, rel=1e-12)
    np.testing.assert_allclose(told[most], 0.0, atol=1e-12)


BOUNDED: dict[str, Callable[[Any, Any], Any]] = {  # bounds on what has kinks, at x = (2, -3)
    "absolute values": lambda y, x: cp.abs(y) <= 1,
    "absolute values around x": lambda y, x: cp.abs(y - x[0]) <= 0.5,
    "absolute values in other units": lambda y, x: cp.abs(y) / 2 <= np.array([1.0, 4.0]) / 6,
    "maxima": lambda y, x: cp.maximum(y, -y / 2, 0.1) <= x[0] - 1,
    "the largest entry": lambda y, x: cp.max(y) <= 1,
    "the largest size": lambda y, x: 2 * cp.norm_inf(y) - x[1] <= 3 * x[0],
    "the sum": lambda y, x: cp.norm1(y) <= 1,
    "the smallest": lambda y, x: cp.min(y) >= -1,
    "slack": lambda y, x: cp.abs(y) <= 50 + x[0],
}


@pytest.mark.parametrize("name", BOUNDED)
def test_of_bounds_on_what_has_kinks(name: str) -> None:
    x, y, own, at = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Variable(2), np.array([2.0, -3.0])
    bound, same = BOUNDED[name](y, x), BOUNDED[name](own, at)
    weights = np.arange(1.0, 1 + bound.size).reshape(bound.shape)
    level = hf.ArgMin(y, cp.sum_squares(y - 2 * x) + cp.sum(y), [bound])
    problem = hf.Problem(hf.Minimize(server=cp.sum(cp.multiply(weights, hf.Dual(bound))) + y[0]), level)
    cp.Problem(cp.Minimize(cp.sum_squares(own - 2 * at) + cp.sum(own)), [same]).solve(**EXACT)
    assert float(problem.implicit(at)) == pytest.approx(float(np.sum(weights * same.dual_value)) + own.value[0], rel=1e-8)
    np.testing.assert_allclose(problem.implicit.multipliers(at)[bound], same.dual_value, atol=1e-8)
    np.testing.assert_allclose(problem.implicit.gradient(at), gradient_by_differences(problem.implicit, at, 1e-4), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("selection", "x", "value"), [("optimistic", 1.0, 0.0), ("pessimistic", 0.5, 0.75), (None, 1.0, 0.0)])
def test_rows_that_say_the_same_everywhere(selection: str | None, x: float, value: float) -> None:
    """Of two multipliers whose sum is x the first is 0, or x: f is (x - 1)^2, or with x more; without a selection one that is not mentioned has all."""
    upper, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    first, second = cp.sum(y) >= upper[0], cp.sum(y) >= upper[0]
    level = hf.ArgMin(y, cp.sum_squares(y), [first, second], selection=selection)
    problem = hf.Problem(hf.Minimize(server=hf.Dual(first) + cp.sum_squares(upper - 1)), level, constraints=[upper >= -3, upper <= 3])
    at = np.array([0.5, 0.25])
    np.testing.assert_allclose(problem.implicit.gradient(at), gradient_by_differences(problem.implicit, at, 1e-4), atol=1e-6)
    found = problem.solve(progress=False)
    np.testing.assert_allclose(found.x, [x, 1.0], atol=1e-6)
    assert found.value == pytest.approx(value, abs=1e-9)
    rooted = hf.Problem(hf.Minimize(server=cp.sqrt(hf.Dual(first)) + 0 * cp.sum(upper)), level)
    assert np.isfinite(rooted.implicit(np.array([2.0, 1.0])))  # no price of an inequality is below 0, not by rounding either


def test_a_bid_that_makes_the_price() -> None:
    """Strategic bidding (Fanzeres, 2017): to offer a little less leaves the dearest plant to set the price."""
    x, y = cp.Variable(name="x"), cp.Variable(4, name="y", nonneg=True)
    balance = cp.sum(y) == 100
    level = hf.ArgMin(y, np.array([0.0, 50.0, 100.0, 1000.0]) @ y, [balance, y <= cp.hstack([x, 40, 40, 100])], selection="optimistic")
    problem = hf.Problem(hf.Maximize(server=hf.ShadowPrice(balance) * y[0]), level, constraints=[x >= 0, x <= 100])
    assert float(problem.implicit(20.0)) == pytest.approx(20_000, rel=1e-12)
    found = problem.solve(progress=False)
    assert found.value == pytest.approx(20_000, rel=1e-6) and found.x == pytest.approx(20.0, rel=1e-6)
    best = problem.reference(certificate="global", progress=False)
    assert best.status == "proved" and best.value == pytest.approx(20_000, rel=1e-6)


def test_prices_are_chosen_where_y_is_one() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y", nonneg=True)
    demand = cp.sum(y) == 1 + 0 * x
    both = hf.ArgMin(y, cp.sum(y) * (1 + cp.square(x)), [demand, cp.sum(y) <= 1], selection="optimistic")
    problem = hf.Problem(hf.Minimize(server=hf.Dual(demand) * y[0]), both, constraints=[x >= 0, x <= 1])
    with pytest.raises(hf.NotConvexError, match="chooses among several prices where y is one"):
        problem.implicit(0.5)
