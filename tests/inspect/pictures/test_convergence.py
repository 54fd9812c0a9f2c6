"""The convergence figure: f itself where the run's own y is not exact, and the library's colours everywhere."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import hierfl as hf
from hierfl.inspect.pictures.convergence import moving_mean
from hierfl.solvers import ZOHFL, Exact, FedRZO, ProjectedSGD


def solved(lower: Any) -> Any:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)),
        hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0], scope="client"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.LowerLevelWarning)
        return problem.solve(ZOHFL(step_size=0.1, lower=lower), rounds=60, x0=[0.8, 0.5], progress=False)


def lines(figure: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_f_is_drawn_where_the_runs_own_y_is_not_exact() -> None:
    result = solved(ProjectedSGD(steps=1, step_size=0.001))
    drawn = lines(result.plot())
    exact = drawn["f(x), the lower level solved"]
    for at, value in zip(*exact.get_data()):
        place = int(np.flatnonzero(result.trajectory["round"] == at)[0])
        assert value == pytest.approx(result.problem.implicit(result.trajectory["x"][place]), abs=1e-9)
    assert all(line.get_linewidth() < 1 for name, line in drawn.items() if "own y" in name)
    assert any("own y" in name for name in drawn)
    plt.close("all")


def test_a_run_with_exact_answers_needs_no_second_line() -> None:
    drawn = lines(solved(Exact()).plot())
    assert not any("own y" in name or "lower level solved" in name for name in drawn)
    plt.close("all")


def test_a_moving_mean_begins_with_the_first_round() -> None:
    np.testing.assert_allclose(moving_mean(np.array([4.0, 2.0, 0.0, 6.0]), 2), [4, 3, 1, 3])


def quadratic(seeds: int | None = None) -> Any:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    objective = hf.Minimize(clients=cp.sum_squares(x - 1) + cp.sum_squares(y))
    problem = hf.Problem(objective, hf.ArgMin(y, cp.sum_squares(y - x)), [x >= -2, x <= 2])
    return problem.solve(
        FedRZO(step_size=0.05), rounds=8, seeds=seeds, evaluate_every=4, progress=False, metrics=METRIC
    )


METRIC = {"size": lambda x, y: float(np.abs(x).max())}


@pytest.mark.parametrize("axis", ["communication", "seconds"])
def test_the_axis_is_what_was_spent_up_to_a_round(axis: str) -> None:
    result = quadratic()
    objective, size = result.plot(axis=axis).axes
    spent = np.cumsum(result.history["scalars" if axis == "communication" else "seconds"])
    np.testing.assert_allclose(np.asarray(objective.lines[0].get_xdata(), float), spent)
    np.testing.assert_allclose(np.asarray(size.lines[0].get_xdata(), float), [0, spent[3], spent[7]])
    if axis == "communication":
        sent = result.communication
        total = sum(sent[way] for way in ("scalars_down", "scalars_up", "lower_scalars_down", "lower_scalars_up"))
        assert spent[-1] == total and "scalars" in objective.get_xlabel()


def test_gaps_are_distances_to_the_reference_on_a_logarithmic_axis() -> None:
    """f = |x - 1|^2 + |x|^2 has its least value, 1, at (.5, .5)."""
    result, runs = quadratic(), quadratic(2)
    (panel, _) = result.plot(scale="gap").axes
    assert panel.get_yscale() == "log" and "reference()" in panel.get_ylabel()
    drawn = np.asarray(panel.lines[0].get_ydata(), float)
    np.testing.assert_allclose(drawn, np.abs(result.history["objective"] - 1), atol=1e-8)
    (panel, _) = runs.plot(scale="gap").axes
    expected = np.mean([np.abs(run.history["objective"] - 1) for run in runs], axis=0)
    np.testing.assert_allclose(np.asarray(panel.lines[0].get_ydata(), float), expected, atol=1e-8)
    assert quadratic().plot(scale="log").axes[0].get_yscale() == "log"


def test_axes_that_there_are_not_are_named() -> None:
    result = quadratic()
    with pytest.raises(hf.SettingError, match="axis='round': did you mean 'rounds'"):
        result.plot(axis="round")
    with pytest.raises(hf.SettingError, match="scale='logarithmic'"):
        result.plot(scale="logarithmic")
