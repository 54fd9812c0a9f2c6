"""Surfaces, stationarity and convexity of implicit functions against what is computed by hand."""

from __future__ import annotations

import cvxpy as cp
import matplotlib as mpl
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.models import coupled_minimax, nonsmooth_toy
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


def test_iterates_can_be_read_in_the_legend() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.norm1(x)))
    run = problem.solve(FedAvg(step_size=0.02), rounds=30, x0=np.ones(2), progress=False)
    panel = problem.implicit.surface(run, radius=2, points=11, progress=False).plot().axes[0]
    handles = dict(zip([text.get_text() for text in panel.get_legend().get_texts()], panel.get_legend().legend_handles))
    assert handles["iterates"].get_color() == "white" and handles["iterates"].get_path_effects()  # a dark rim


def test_kinks_lie_on_the_surface_in_space() -> None:
    shown = nonsmooth_toy(2).implicit.surface([0.1, -0.05], radius=1.5, points=15, progress=False)
    panel = shown.plot(kind="3d").axes[0]
    (dots,) = panel.lines
    places = np.array(dots.get_data_3d())
    assert places.shape == (3, 30) and np.abs(places[:2]).min(axis=0).max() < 1e-3
    np.testing.assert_allclose(places[2], toy(places[:2].T), atol=1e-9)
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["kinks"]


@pytest.mark.filterwarnings("error")
def test_a_surface_without_values_says_why() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(name="y")
    problem = hf.Problem(
        hf.Minimize(clients=y + cp.sum(x)), hf.ArgMin(y, cp.square(y), [y >= 1, y <= -cp.square(x[0])])
    )
    shown = problem.implicit.surface([0.0, 0.0], points=5, progress=False)
    assert "f has no value at any of them: Y(x) is empty (at 25 points)" in str(shown) and "nan" not in str(shown)
    for kind in ("contour", "3d"):
        panel = shown.plot(kind=kind).axes[0]
        assert [text.get_text() for text in panel.get_legend().get_texts()] == ["no value: Y(x) is empty"]
        assert panel.get_xlim() == (-1, 1)


def test_bad_input_to_a_surface_is_named() -> None:
    implicit = nonsmooth_toy(2).implicit
    for setting, named in (({"tolerance": -1}, "tolerance=-1"), ({"seed": "x"}, "seed='x'")):
        with pytest.raises(hf.SettingError, match=named):
            implicit.surface(np.zeros(2), progress=False, **setting)
    shown = implicit.surface(np.zeros(2), points=5, progress=False)
    flat = shown.plot().axes[0]
    for arguments, named in (
        ({"ax": 3}, "ax=3"),
        ({"ax": flat, "kind": "3d"}, "projection"),
        ({"ax": shown.plot(kind="3d").axes[0]}, "3-D axes"),
        ({"nonsense": 1}, "nonsense= is no style keyword .* cmap"),
    ):
        with pytest.raises(hf.SettingError, match=named):
            shown.plot(**arguments)
    assert shown.plot(levels=5, alpha=0.5) is not shown.plot(ax=flat)


# --- stationarity ------------------------------------------------------------------------------------------------


def test_a_kink_is_stationary_where_its_gradients_surround_zero() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.norm1(x) + 0.3 * x[0]))
    here = problem.implicit.stationarity([0.0, 0.0], 0.1, progress=False)
    assert here.distance < 1e-6 and here.verdict.startswith("stationary")
    away = problem.implicit.stationarity([1.0, 1.0], 0.1, progress=False)
    assert away.distance == pytest.approx(np.hypot(1.3, 1.0), abs=1e-6) and "proves nothing" in away.verdict
    assert here.weights.min() >= 0 and here.weights.sum() == pytest.approx(1)


def test_the_normal_cone_of_the_upper_set_counts() -> None:
    """min x_1 + x_2 on a ball: at the minimiser the gradient is the ball's outward normal, turned around."""
    x = cp.Variable(2, name="x")
    ball = hf.Problem(hf.Minimize(clients=cp.sum(x)), constraints=[cp.norm(x) <= 1])
    assert ball.implicit.stationarity(-np.ones(2) / np.sqrt(2), 0.05, progress=False).distance < 1e-4
    assert ball.implicit.stationarity([1.0, 0.0], 0.05, progress=False).distance == pytest.approx(np.sqrt(2), abs=1e-4)
    up = hf.Problem(hf.Maximize(clients=cp.sum(x)), constraints=[x <= 1])
    assert up.implicit.stationarity([1.0, 1.0], 0.05, progress=False).distance < 1e-8
    assert up.implicit.stationarity([1.0, 0.0], 0.05, progress=False).distance == pytest.approx(1, abs=1e-6)


def test_the_interval_of_the_smoothed_gradient_covers_the_truth() -> None:
    """f = |x_1| + x'x/2 in R^3: grad f^eta in closed form; 60 intervals of 95% nearly all cover it."""
    x = cp.Variable(3, name="x")
    problem, at, eta = (
        hf.Problem(hf.Minimize(clients=cp.abs(x[0]) + 0.5 * cp.sum_squares(x))),
        np.array([0.1, 0.4, 0.0]),
        0.5,
    )
    t = at[0] / eta
    truth = np.linalg.norm(at + np.array([1.5 * t - 0.5 * t**3, 0, 0]))
    covered = 0
    for seed in range(60):
        low, high = problem.implicit.stationarity(at, eta, seed=seed, progress=False).smoothed_interval
        covered += low <= truth <= high
    assert covered >= scipy.stats.binom.ppf(1e-6, 60, 0.95)


def test_stationarity_refuses_what_it_cannot_do() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    nonsmooth = hf.Problem(hf.Minimize(clients=y), hf.ArgMin(y, cp.square(y - x) + cp.abs(y)))
    with pytest.raises(hf.errors.IncompatibleSolverError, match="CVXPY"):
        nonsmooth.implicit.stationarity(0.0, 0.1)
    with pytest.raises(hf.SettingError, match="radius"):
        nonsmooth_toy(1).implicit.stationarity([0.0], 0.0)


# --- convexity ---------------------------------------------------------------------------------------------------


def test_a_witness_against_convexity_is_one() -> None:
    problem = nonsmooth_toy(2)
    found = problem.implicit.convexity(np.zeros(2), 1.0, progress=False)
    middle = 0.5 * (found.a + found.b)
    np.testing.assert_allclose(found.middle, middle)
    assert found.violated and found.violation == pytest.approx(
        toy(middle) - 0.5 * (toy(found.a) + toy(found.b)), abs=1e-9
    )
    assert "not convex" in str(found)


def test_no_witness_on_convex_functions() -> None:
    assert not coupled_minimax().implicit.convexity(0.3, 0.5, progress=False).violated
    x = cp.Variable(3, name="x")
    for convex in (cp.norm(x), cp.exp(cp.sum(x)), np.array([1.0, -2.0, 3.0]) @ x):
        found = hf.Problem(hf.Minimize(clients=convex)).implicit.convexity(np.zeros(3), 2.0, progress=False)
        assert not found.violated and "does not prove" in str(found)
