"""The lower levels that a run solved: its history's count is what arithmetic says, and what a count of every call of F says."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.compiled_problem import CountedProblem
from hierfl.run_settings import RunSettings
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.records import Limits
from hierfl.runtime.run import run
from hierfl.solvers import (
    ZOHFL,
    Exact,
    FedAvg,
    FedNest,
    FedRZO,
    ImplicitBundle,
    ImplicitGradient,
    LocalSGD,
    ProjectedSGD,
    ProjectionMethod,
)

pytestmark = pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")  # few steps, for counting
M, ROWS = 4, (3, 5, 2, 6)  # clients, and the rows of each


def problem(scope: str | None) -> hf.Problem:
    x, y, a = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="a")
    random = np.random.default_rng(0)
    federation = hf.Federation([hf.Client({a: random.normal(size=(rows, 2))}) for rows in ROWS])
    box = [x >= -2, x <= 2]
    if scope is None:
        return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - a))), constraints=box, federation=federation)
    if scope == "sample":
        lower = hf.ArgMin(y, cp.sum_squares(y - x - a), [y >= 0], scope="sample")
        return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(y + x))), lower, box, federation)
    lower = hf.ArgMin(y, hf.E(cp.sum_squares(y - x - a)), scope=scope)
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y) + cp.sum_squares(x - 1)), lower, box, federation)


CASES = [
    # participants * points (x and x + eta v of each of 3 directions) * local steps
    ("client", FedRZO(directions=3, local_steps=2, lower=ProjectedSGD(steps=2)), M * 4 * 2),
    (
        "client",
        FedRZO(local_steps=[1, 2, 3, 0], lower=ProjectedSGD(steps=2)),
        (1 + 2 + 3 + 1) * 2,
    ),  # 0 steps tell f_i once
    ("client", FedRZO(participation=0.5, lower=ProjectedSGD(steps=2)), 2 * 2),
    ("client", ZOHFL(directions=2, lower=ProjectedSGD(steps=2)), M * 2 * 2),
    ("client", ImplicitGradient(), M),
    ("sample", ZOHFL(batch_size=3, lower=ProjectionMethod(steps=2)), M * 2 * 3),
    ("sample", ZOHFL(batch_size=None, lower=ProjectionMethod(steps=2)), sum(ROWS) * 2),
    ("sample", ImplicitGradient(), sum(ROWS)),
    ("federation", FedRZO(directions=3, local_steps=2, lower=LocalSGD()), 4),  # one y of all, delayed
    ("federation", ImplicitGradient(), 1),
]


@pytest.mark.parametrize(("scope", "solver", "expected"), CASES)
def test_a_round_solves_as_many_as_arithmetic_says(scope: str, solver: Any, expected: int) -> None:
    result = problem(scope).solve(solver, rounds=3, progress=False)
    np.testing.assert_array_equal(result.history["lower_solves"], [expected] * 3)


def test_each_solve_evaluates_f_as_often_as_its_steps_say() -> None:
    """A call of ProjectedSGD(steps=5) evaluates F 5 times, and once more for the residual: the host heard every evaluation."""
    counted, heard = CountedProblem.of(problem("client").compile()), {}
    settings = RunSettings.of(
        {
            "rounds": 2,
            "evaluate_every": 2,
            "runtime": InProcess(schedule="map"),
            "progress": False,
            "callback": lambda *_: heard.update(counted.counts),
        }
    )
    result = run(counted, FedRZO(directions=2, lower=ProjectedSGD(steps=5)), settings, Limits())
    assert heard["gradients"] == 6 * result.history["lower_solves"].sum()  # type: ignore[union-attr]


def test_the_bundle_method_solves_every_clients_lower_level_at_every_point_it_asks_for(monkeypatch: Any) -> None:
    import hierfl.descent.implicit_oracle as oracle

    asked, evaluate = [], oracle.evaluated_with_gradient
    monkeypatch.setattr(oracle, "evaluated_with_gradient", lambda *given: asked.append(1) or evaluate(*given))
    result = problem("client").solve(ImplicitBundle(), rounds=5, progress=False)
    assert result.history["lower_solves"].sum() == M * len(asked) >= M * 2


def test_convergence_by_lower_solves_and_who_has_none() -> None:
    compared = hf.sweep(
        problem("client"),
        {"one": ZOHFL(lower=Exact()), "four": ZOHFL(lower=Exact(), directions=4)},
        seeds=2,
        rounds=4,
        progress=False,
    )
    for line, name, each in zip(compared.plot(axis="lower solves").axes[0].lines, compared, (2, 8)):
        np.testing.assert_array_equal(line.get_xdata(), M * each * np.arange(1, 5), err_msg=name)
    plt.close("all")
    plain = problem(None).solve(FedAvg(step_size=0.1), rounds=2, progress=False)
    assert "lower_solves" not in plain.history
    with pytest.raises(hf.SettingError, match="the problem has no lower level"):
        plain.plot(axis="lower solves")
    along = problem("federation").solve(FedNest(), rounds=2, progress=False)
    with pytest.raises(hf.SettingError, match="FedNest.* counted none: it moves y along with x"):
        along.plot(axis="lower solves")
    with pytest.raises(hf.SettingError, match="did you mean 'lower solves'"):
        along.plot(axis="lower_solves")
