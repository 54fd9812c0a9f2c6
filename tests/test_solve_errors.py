"""What cannot be solved or evaluated is refused by an error that names the culprit."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ZOHFL, FedAvg, FedRZO
from tests.small_declarations import leaves, quadratic


def test_empty_set_of_upper_decisions() -> None:
    x, *_ = leaves()
    rows = [x[0] + 2 * x[1] >= 1, x[0] <= 0, 3 * x[0] + x[1] <= 0, x[1] - x[0] <= 0]
    for constraints in ([x >= 1, x <= 0], [cp.sum(x) >= 1, cp.norm(x) <= 0.1], [cp.norm(x) <= -1], rows):
        problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), constraints=constraints)
        with pytest.raises(hf.DeclarationError, match="X is empty"):
            problem.solve(ZOHFL(), rounds=1, progress=False)
        for ask in (problem.implicit, problem.implicit.gradient):
            with pytest.raises(hf.DeclarationError, match="X is empty"):
                ask(np.zeros(2))


@pytest.mark.parametrize(
    "arguments",
    [
        {"solver": "ZOHFL"},
        {"rounds": "3"},
        {"rounds": -1},
        {"rounds": 10**12},
        {"seed": 2**64},
        {"seed": None},
        {"runtime": "x"},
        {"metrics": [1]},
        {"metrics": {"m": 3}},
        {"metrics": {"round": lambda x, y: 1.0}},
        {"metrics": {"scalars": lambda x, y: 1.0}},
        {"rounds": None, "budget": hf.Budget(rounds=10**12)},
        {"metrics": {"m": lambda x, y: None}},
        {"callback": 3},
        {"evaluate_every": 0},
    ],
)
def test_wrong_arguments_of_solve(arguments: dict) -> None:
    x, y, *_ = leaves()
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y)), lower=hf.ArgMin(y, quadratic(x, y)))
    with pytest.raises(hf.SettingError):
        problem.solve(**{"rounds": 2, "progress": False, **arguments})


def test_a_diverged_result_belongs_to_the_problem_that_diverged() -> None:
    x = cp.Variable(2, name="x")
    steep = hf.Problem(hf.Minimize(clients=cp.sum(cp.power(x, 4))))
    flat = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)))

    def inner(*_: object) -> None:
        steep.solve(FedAvg(step_size=5.0), rounds=40, x0=np.array([3.0, 3.0]), progress=False)

    with pytest.raises(hf.DivergedError) as caught:
        flat.solve(FedAvg(), rounds=4, callback=inner, progress=False)
    assert caught.value.result.problem is steep
    with pytest.raises(hf.DivergedError) as caught:
        steep.solve(FedAvg(step_size=5.0), rounds=40, x0=np.array([3.0, 3.0]), seeds=2, progress=False)
    assert caught.value.runs[0].problem is steep and caught.value.result is caught.value.runs[0]


def test_a_metric_that_raises_is_named() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)))
    seen: list[int] = []

    def accuracy(x: np.ndarray, y: object) -> float:
        seen.append(1)
        return {1: 0.0}[len(seen)]

    said = r"metric 'accuracy' raised KeyError after 10 rounds: 2. .* x of shape \(2,\) and y None"
    with pytest.raises(hf.SettingError, match=said) as caught:
        problem.solve(FedAvg(), rounds=20, metrics={"accuracy": accuracy}, progress=False)
    assert isinstance(caught.value.__cause__, KeyError)


def test_warnings_are_of_the_line_that_asked_and_of_each_problem_that_has_them() -> None:
    def tied() -> hf.Problem:
        x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
        return hf.Problem(hf.Minimize(server=cp.square(x) + y[0]), hf.ArgMin(y, cp.sum(y), [cp.sum(y) >= x, y >= 0, y <= 2]))

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")  # which shows a text once for each place
        tied().implicit(1.0)
        tied().implicit(1.0)
    assert [one.category for one in told] == [hf.errors.LowerLevelWarning] * 2
    assert {one.filename for one in told} == {__file__} and told[1].lineno == told[0].lineno + 1


@pytest.mark.parametrize("solver", [None, FedRZO(smoothing=0.1, step_size=0.1)])
def test_a_start_outside_x_is_told(solver: FedRZO | None) -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 5)), hf.ArgMin(y, cp.sum_squares(y - x)), [x <= 2])
    with pytest.warns(hf.FeasibilityWarning, match=r"x0 is 4.24 outside X.*\[2. 2.\]"):
        problem.solve(solver, x0=[5, 5], rounds=2, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", hf.FeasibilityWarning)
        problem.solve(solver, x0=[2 + 1e-9, 1], rounds=2, progress=False)
