"""Branch and bound as a solver: whole numbers against enumeration, and what is refused where x moves continuously."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.errors import DeclarationError, IncompatibleSolverError, SettingError
from hierfl.inspect.implicit.rest import rest_of
from hierfl.solvers import BranchAndBound, FedRZO, ImplicitBundle


def facilities() -> tuple[hf.Problem, np.ndarray, np.ndarray]:
    """Which of five sites to open; each of four clients orders from open ones at least cost, a little from each."""
    rng = np.random.default_rng(0)
    costs, demands = rng.uniform(1, 5, (4, 5)), rng.uniform(1, 3, 4)
    site, y = cp.Variable(5, name="site", boolean=True), cp.Variable(5, name="y")
    c, d = hf.ClientParameter(5, name="c"), hf.ClientParameter(name="d")
    level = hf.ArgMin(y, c @ y + 0.05 * cp.sum_squares(y), [cp.sum(y) >= d, y >= 0, y <= 1.2 * site], scope="client")
    federation = hf.Federation([hf.Client({}, {c: costs[i], d: float(demands[i])}) for i in range(4)])
    rent = np.array([1.0, 2.0, 1.5, 0.5, 1.0])
    return hf.Problem(hf.Minimize(clients=c @ y, server=rent @ site), level, [cp.sum(site) <= 4], federation), costs, demands


def ordered(costs: np.ndarray, demand: float, most: np.ndarray) -> float:
    """The costs of a client, by its one multiplier."""
    low, high = 0.0, 100.0
    for _ in range(200):
        price = 0.5 * (low + high)
        y = np.clip((price - costs) / 0.1, 0.0, most)
        low, high = (price, high) if y.sum() < demand else (low, price)
    return float(costs @ y)


def test_sites_are_opened_as_enumeration_says() -> None:
    problem, costs, demands = facilities()
    values = {}
    for each in itertools.product([0.0, 1.0], repeat=5):
        if sum(each) <= 4 and 1.2 * sum(each) >= demands.max():
            orders = [ordered(c, d, 1.2 * np.array(each)) for c, d in zip(costs, demands)]
            values[each] = np.array([1.0, 2.0, 1.5, 0.5, 1.0]) @ each + np.mean(orders)
    best = min(values, key=lambda each: values[each])
    result = problem.solve(progress=False)
    assert tuple(result.x) == best and result.value == pytest.approx(values[best], abs=1e-6)
    assert result.status == "proved" and result.settings["solver"] == "BranchAndBound(gap=1e-06)" and "whole numbers" in str(result)
    assert result.rest is not None and result.rest.verdict == "at rest" and result.rest.value_bound <= 1e-6 * (1 + abs(result.value))
    assert result.gap == pytest.approx(0, abs=1e-6) and "site is binary" in str(problem) and r"\mathrm{binary}" in problem.latex()
    assert problem.implicit(np.array(best)) == pytest.approx(values[best], abs=1e-6)
    with pytest.raises(SettingError, match=r"site\[0\] is 0\.5, and was declared as a whole number"):
        problem.implicit(np.full(5, 0.5))
    for solver in (FedRZO(), ImplicitBundle()):
        with pytest.raises(IncompatibleSolverError, match=f"{type(solver).__name__} moves x continuously, and 'site'"):
            problem.solve(solver, progress=False)
    with pytest.raises(IncompatibleSolverError, match="which Delayed has elsewhere: no method takes whole numbers among x there"):
        problem.solve(runtime=hf.runtime.Delayed([1.0] * len(costs)), progress=False)
    for asked in (problem.reference, problem.check, lambda: problem.implicit.stationarity(np.ones(5), 0.1), lambda: problem.implicit.smoothed(np.ones(5), 0.1)):
        with pytest.raises(IncompatibleSolverError, match="whole numbers"):
            asked()


def test_whole_numbers_beside_others_and_integers_in_a_game() -> None:
    """How many machines, and how long each runs: against each number by formula."""
    k, x, y = cp.Variable(name="k", integer=True), cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(
        hf.Maximize(server=y * 3 - 0.4 * cp.square(k) - cp.square(x - 0.3)), hf.ArgMin(y, cp.square(y - 4 * x), [y <= k]), [x >= 0, x <= 2, k >= -2.5, k <= 7.5]
    )
    found = problem.reference(certificate="global", progress=False)

    def best(k: int) -> float:
        x = np.linspace(0, 2, 200_001)
        return float((3 * np.minimum(4 * x, k) - 0.4 * k**2 - (x - 0.3) ** 2).max())

    expected = max(range(-2, 8), key=best)
    assert found.status == "proved" and found.value == pytest.approx(best(expected), abs=1e-6)
    assert {v.name(): float(a) for v, a in found.x.items()}["k"] == expected


def test_few_combinations_are_looked_through_where_there_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    k, y = cp.Variable(2, name="k", integer=True), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.power(cp.norm(y - k), 1.5) + cp.sum_squares(y))  # y is k, shrunk to the length t with 1.5 sqrt(|k| - t) = 2 t
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(y - 0.3) + 0.01 * cp.sum(k)), level, [k >= -3.2, k <= 3])
    result = problem.solve(progress=False)

    def f(a: int, b: int) -> float:
        length = np.hypot(a, b)
        y = np.array([a, b]) * ((np.sqrt(2.25**2 + 36 * length) - 2.25) / 8 / length if length else 0.0)
        return float(np.sum((y - 0.3) ** 2) + 0.01 * (a + b))

    assert result.value == pytest.approx(min(f(a, b) for a in range(-3, 4) for b in range(-3, 4)), abs=1e-8)
    assert result.status == "proved"
    told = problem.reference(certificate="global", progress=False).guarantee
    assert "all of 49 combinations" in told and "length to the power 1.5" in told
    wide = hf.Problem(hf.Minimize(server=cp.sum_squares(y - 0.3)), level, [k >= -300, k <= 300])
    with pytest.raises(IncompatibleSolverError, match="length to the power 1.5"):
        wide.solve(progress=False)
    monkeypatch.setitem(sys.modules, "pyscipopt", None)
    bit = cp.Variable(name="bit", boolean=True)
    assert hf.Problem(hf.Minimize(server=cp.square(bit - 0.7))).solve(progress=False).value == pytest.approx(0.09)


def test_combinations_whose_lower_level_was_not_solved_are_not_proved_worse() -> None:
    """y is 0 for every n, and n = 3 the best: numbers of 1e10 beside 1 hide it from the solver of the level."""
    n, y, matrix = cp.Variable(name="n", integer=True), cp.Variable(name="y"), cp.Variable((2, 2), name="matrix", symmetric=True)
    level = hf.ArgMin([y, matrix], y + cp.sum_squares(matrix), [matrix >> 0, cp.exp(y) <= 2 + 1e10 * n, y >= 0])
    problem = hf.Problem(hf.Minimize(cp.square(y - 0.5) - n), level, [n >= 0, n <= 3])
    found = problem.reference(certificate="global", progress=False)
    assert found.bound is not None and found.bound <= -2.75 + 1e-6
    assert found.value == pytest.approx(-2.75, abs=1e-6) or found.status.startswith("not proved: the lower level was not solved at")


def test_settings_ties_and_whole_numbers_below(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="gap"):
        BranchAndBound(gap=2.0)
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    with pytest.raises(SettingError, match="queries"):
        hf.Problem(hf.Minimize(server=cp.square(x))).solve(BranchAndBound(), queries="raw", progress=False)
    for selection, status in ((None, "not proved: the best of several"), ("optimistic", "proved")):  # at 0 every y is an answer
        level = hf.ArgMin(y, x * y, [y >= -1, y <= 1], selection=selection)
        problem = hf.Problem(hf.Minimize(server=x + 2 * y), level, [cp.abs(x) <= 1])
        if selection is None:
            with pytest.warns(hf.errors.LowerLevelWarning, match="several"):
                assert problem.solve(BranchAndBound(), progress=False).status.startswith(status)
        else:
            result = problem.solve(BranchAndBound(), progress=False)
            assert result.status == status and result.value == pytest.approx(-2)
    monkeypatch.setattr("hierfl.solvers.branch_and_bound.evaluated", lambda *_: None)  # what solves the level may know less than SCIP
    assert problem.solve(BranchAndBound(), progress=False).status.startswith("not proved: its program ends with f = -2 ")
    whole = cp.Variable(2, name="whole", integer=True)
    with pytest.raises(DeclarationError, match="'whole' is declared integer, in a lower level"):
        hf.Problem(hf.Minimize(server=x), hf.ArgMin(whole, cp.sum_squares(whole - x)))
    part = cp.Variable(3, name="part", boolean=[(0,), (2,)])
    with pytest.raises(DeclarationError, match="'part' is declared boolean in part"):
        hf.Problem(hf.Minimize(server=cp.sum_squares(part)))


@pytest.mark.parametrize(("bound", "said"), [(6.8, "f(x) is the optimum (by its bound"), (6.7999, "f(x) is at most 1.0e-04 from the optimum (by its bound")])
def test_a_bound_that_is_met_is_the_optimum(bound: float, said: str) -> None:
    build, supply = cp.Variable(3, name="build", boolean=True), cp.Variable(3, name="supply", nonneg=True)
    cost = np.array([1.0, 2.0, 4.0])
    below = hf.ArgMin(supply, cost @ supply, [cp.sum(supply) == 2, supply <= 1.2 * build])
    problem = hf.Problem(hf.Minimize(server=np.array([3.0, 1.0, 0.5]) @ build + cost @ supply), below)
    result = problem.solve(progress=False)
    again = replace(result, value=6.8, history={**result.history, "bound": np.array([bound])})
    assert result.value == pytest.approx(6.8, abs=1e-9) and said in rest_of(problem.compile(progress=False), again).words
