"""Descent on differences of values, and hopping from basin to basin, against what is known from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ImplicitBundle
from tests.bilevel_catalogue import LITERATURE
from tests.runtime.resumed import by_and_by, outcome, require_same

SEARCHED = ("Outrata-Zowe", "Aiyoshi-Shimizu", "Bard 1988, 3", "Falk-Liu")
BY_VALUES = ImplicitBundle(gradients="differences")


@pytest.mark.parametrize("case", [c for c in LITERATURE if c.name in SEARCHED], ids=str)
def test_minima_of_the_literature_by_values(case: Any) -> None:
    result = case.declare().solve(BY_VALUES, progress=False)
    assert result.status == "at rest" and "gradients" not in result.history
    assert result.value == pytest.approx(case.least, rel=1e-6, abs=1e-6)


def boxed(noise: float, constraints: list[Any], x: cp.Variable, goal: np.ndarray) -> hf.Problem:
    """|y - goal|_1 + |y - goal|^2 of a black box with a deterministic ripple, y = x."""
    y = cp.Variable(x.shape, name="y")

    def value(v: np.ndarray) -> float:
        away = np.abs(v - goal)
        return float(np.sum(away + away**2) + noise * np.sin(1e9 * np.sum(v)))

    return hf.Problem(hf.Minimize(clients=hf.BlackBox(value, y)), hf.ArgMin(y, cp.sum_squares(y - x)), constraints(x))


@pytest.mark.parametrize("noise", [0.0, 1e-8, 1e-5])
def test_values_that_err_are_taken_further_apart(noise: float) -> None:
    x, goal = cp.Variable((2, 2), name="x"), np.array([[0.3, -0.2], [1.0, 0.5]])
    result = boxed(noise, lambda x: [cp.abs(x) <= 2], x, goal).solve(BY_VALUES, rounds=300, progress=False)
    assert result.x == pytest.approx(goal, abs=1e-6 + 20 * np.sqrt(noise))


def test_a_set_without_inside_is_searched_along_itself() -> None:
    """On the simplex, |x - goal|_1 + |x - goal|^2 with goal in it is least there; the start is in the middle."""
    x, goal = cp.Variable(3, name="x"), np.array([0.7, 0.3, 0.0])
    result = boxed(0.0, lambda x: [x >= 0, cp.sum(x) == 1], x, goal).solve(BY_VALUES, progress=False)
    assert result.x == pytest.approx(goal, abs=1e-6)


def test_a_set_of_one_point_is_at_rest_there() -> None:
    x, goal = cp.Variable(2, name="x"), np.zeros(2)
    result = boxed(0.0, lambda x: [x == 2], x, goal).solve(progress=False)
    assert result.status == "at rest" and result.value == pytest.approx(12.0)


def wells() -> hf.Problem:
    """Two valleys of y^4/4 - y^2/2 + .1 y with y = x: the deeper one is at the least root of y^3 - y + .1."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    return hf.Problem(hf.Minimize(clients=0.25 * y**4 - 0.5 * cp.square(y) + 0.1 * y), hf.ArgMin(y, cp.square(y - x)), [cp.abs(x) <= 2])


@pytest.mark.parametrize("gradients", ["exact", "differences"])
def test_hops_find_the_deeper_valley(gradients: str) -> None:
    least = float(np.min(np.roots([1.0, 0.0, -1.0, 0.1]).real))
    start = np.array(0.9)
    assert wells().solve(ImplicitBundle(gradients=gradients), x0=start, progress=False).x > 0.5
    result = wells().solve(ImplicitBundle(gradients=gradients, hops=20), x0=start, progress=False)
    assert result.x == pytest.approx(least, abs=1e-6) and result.status == "at rest"
    assert (np.diff(result.history["objective"]) <= 0).all()


@pytest.mark.parametrize("gradients", ["exact", "differences"])
def test_a_run_that_hops_goes_on_where_it_was(gradients: str, tmp_path: Path) -> None:
    solver, settings = ImplicitBundle(gradients=gradients, hops=6), {"x0": np.array(0.9), "rounds": 60, "evaluate_every": 5}
    found, stopped = by_and_by(wells(), solver, tmp_path, 3, **settings)
    assert stopped > 1
    require_same(found, outcome(wells(), solver, **settings))


def test_the_default_spends_a_budget_on_hops() -> None:
    """Without one it is a local method."""
    start = np.array(0.9)
    local, wide = (wells().solve(x0=start, progress=False, **given) for given in ({}, {"budget": hf.Budget(lower_solves=200)}))
    assert local.x > 0.5 and wide.x < -0.5
    assert int(np.sum(wide.history["lower_solves"])) <= 200


def test_what_it_counts_are_values() -> None:
    heard = []
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    box = hf.BlackBox(lambda v: heard.append(v) or float(np.sum((v - 1) ** 2)), y)
    problem = hf.Problem(hf.Minimize(clients=box), hf.ArgMin(y, cp.sum_squares(y - x)))
    problem.compile(progress=False)
    heard.clear()
    result = problem.solve(BY_VALUES, progress=False)
    told, asked = int(np.sum(result.history["values"])), len(heard)
    assert told <= asked <= told + 40 and told == int(np.sum(result.history["lower_solves"]))  # metrics and the certificate ask as well


def test_settings_that_are_none_are_named() -> None:
    with pytest.raises(hf.errors.SettingError, match="gradients='finite'.*differences"):
        ImplicitBundle(gradients="finite")  # type: ignore[arg-type]
    with pytest.raises(hf.errors.SettingError, match="hops=-1: a whole number of at least 0"):
        ImplicitBundle(hops=-1)
