"""Surfaces of implicit functions against what is computed by hand."""

from __future__ import annotations

import cvxpy as cp
import matplotlib as mpl
import numpy as np
import pytest

import hierfl as hf
from hierfl.models import nonsmooth_toy
from hierfl.solvers import FedAvg

mpl.use("Agg")


def toy(x: np.ndarray) -> np.ndarray:
    return 0.5 * np.sum((np.minimum(x, 0) + 1) ** 2, axis=-1)


# --- surfaces ----------------------------------------------------------------------------------------------------


def test_the_toy_in_two_dimensions() -> None:
    shown = nonsmooth_toy(2).implicit.surface([0.1, -0.05], radius=1.5, points=31, progress=False)
    grid = np.stack(np.meshgrid(0.1 + shown.s, -0.05 + shown.s, indexing="ij"), axis=-1)
    np.testing.assert_allclose(shown.value, toy(grid), atol=1e-9)
    places = shown.kink_points + np.array([0.1, -0.05])
    assert (
        np.abs(places).min(axis=1).max() < 1e-3 and len(places) == 62
    )  # both axes, at every grid line that they cross


def test_planes_in_more_dimensions_and_along_a_run() -> None:
    x = cp.Variable(4, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - np.array([1.0, 2.0, 0.0, 0.0]))))
    run = problem.solve(FedAvg(step_size=0.02), rounds=60, x0=np.array([0.0, 0.0, 0.0, 1.0]), progress=False)
    shown = problem.implicit.surface(run, radius=3, points=11, progress=False)
    assert "random" in shown.chosen or "principal" in shown.chosen
    np.testing.assert_allclose(shown.plane.directions @ shown.plane.directions.T, np.eye(2), atol=1e-12)
    assert len(shown.iterates) == 7
    given = problem.implicit.surface(np.zeros(4), [[1, 0, 0, 0], [1, 1, 0, 0]], radius=1, points=5, progress=False)
    np.testing.assert_allclose(given.plane.directions[1], [0, 1, 0, 0], atol=1e-12)
    assert given.value[0, 2] == pytest.approx(4 + 4, abs=1e-12)  # x = (-1, 0, 0, 0)


def test_the_figures_and_their_axes() -> None:
    x, y = cp.Variable(name="p"), cp.Variable(name="q")
    problem = hf.Problem(hf.Minimize(clients=cp.abs(x) + cp.square(y)), constraints=[x <= 0.5])
    shown = problem.implicit.surface({x: 0.0, y: 0.0}, points=11, progress=False)
    flat, space = shown.plot(), shown.plot(kind="3d")
    assert (flat.axes[0].get_xlabel(), flat.axes[0].get_ylabel()) == ("p", "q")
    assert space.axes[0].get_zlabel() == "f"
    assert "outside X" in str(shown) and np.isnan(shown.value[-1]).all()
    with pytest.raises(hf.SettingError, match="contour"):
        shown.plot(kind="pie")


@pytest.mark.parametrize(
    ("directions", "named"),
    [([[1, 0]], "two of them"), ([[1, 0], [2, 0]], "parallel"), ([[0, 0], [1, 0]], "parallel")],
)
def test_directions_are_checked(directions: list, named: str) -> None:
    with pytest.raises(hf.SettingError, match=named):
        nonsmooth_toy(2).implicit.surface(np.zeros(2), directions, progress=False)
    with pytest.raises(hf.SettingError, match="slice"):
        nonsmooth_toy(1).implicit.surface(np.zeros(1), progress=False)
