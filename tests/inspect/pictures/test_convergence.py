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
from hierfl.inspect.pictures.style import COLOURS
from hierfl.solvers import ZOHFL, Exact, ProjectedSGD


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


def test_colours_are_the_librarys_on_axes_of_others() -> None:
    _, axes = plt.subplots()
    solved(Exact()).plot(ax=axes)
    assert {line.get_color() for line in axes.lines} <= set(COLOURS)
    plt.close("all")


def test_a_moving_mean_begins_with_the_first_round() -> None:
    np.testing.assert_allclose(moving_mean(np.array([4.0, 2.0, 0.0, 6.0]), 2), [4, 3, 1, 3])
