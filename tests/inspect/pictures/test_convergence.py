"""The convergence figure: f itself where the run's own y is not exact, and the library's colours everywhere."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import cvxpy as cp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import hierfl as hf
from hierfl.models import nonsmooth_toy
from hierfl.solvers import ZOHFL, Exact, FedAvg, FedRZO, ProjectedSGD
from tests.inspect.known_functions import problem_of, toy


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


@cache
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
    for wrong, named in (({"scale": "logarithmic"}, "scale='logarithmic'"), ({"ax": 3}, "ax=3")):
        with pytest.raises(hf.SettingError, match=named):
            result.plot(**wrong)


# --- Surfaces of implicit functions against what is computed by hand.


mpl.use("Agg")


def test_the_toy_in_two_dimensions() -> None:
    shown = nonsmooth_toy(2).implicit.surface([0.1, -0.05], radius=1.5, points=31, progress=False)
    grid = np.stack(np.meshgrid(0.1 + shown.s, -0.05 + shown.s, indexing="ij"), axis=-1)
    np.testing.assert_allclose(shown.value, toy(grid), atol=1e-9)
    places = shown.kink_points + np.array([0.1, -0.05])
    assert np.abs(places).min(axis=1).max() < 1e-3 and len(places) == 62  # both axes, at every grid line that they cross
    panel = shown.plot(kind="3d").axes[0]
    (dots,) = panel.lines
    drawn = np.array(dots.get_data_3d())
    assert drawn.shape == (3, 62) and [text.get_text() for text in panel.get_legend().get_texts()] == ["kinks"]
    np.testing.assert_allclose(drawn[2], toy(drawn[:2].T), atol=1e-9)


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
    ("directions", "named"), [([[1, 0]], "two of them"), ([[1, 0], [2, 0]], "parallel"), ([[0, 0], [1, 0]], "zero")]
)
def test_directions_are_checked(directions: list, named: str) -> None:
    with pytest.raises(hf.SettingError, match=named):
        nonsmooth_toy(2).implicit.surface(np.zeros(2), directions, progress=False)
    with pytest.raises(hf.SettingError, match="slice"):
        nonsmooth_toy(1).implicit.surface(np.zeros(1), progress=False)


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


v = cp.Variable(2, name="v")
BENDS = [  # a term, the points of the grid, how many kinks it shows there, and their first coordinate
    (cp.square(cp.pos(v[0] - 0.123)) + v[1], 21, 0, None),  # what only changes curvature
    (cp.square(cp.pos(v[0] - 0.02)) + cp.abs(v[0] - 0.05) + 0 * v[1], 11, 11, 0.05),  # behind another switch of an edge
    (cp.sign(v[0] - 0.123) + cp.square(v[1]), 11, 11, 0.123),  # jumps
    (cp.abs(v[0] - 0.2) + 0 * v[1], 11, 11, 0.2),  # on a grid line
    (cp.abs(v[0] - 0.2) + cp.abs(v[1] + 0.2), 11, 21, None),  # two lines that share a point
]


@pytest.mark.parametrize("place", range(len(BENDS)))
def test_kinks_and_jumps_of_a_surface_are_counted_once(place: int) -> None:
    term, points, count, first = BENDS[place]
    found = problem_of(term).implicit.surface(np.zeros(2), points=points, progress=False).kink_points
    assert len(found) == count
    assert first is None or found[:, 0] == pytest.approx(np.full(count, first), abs=1e-8)


def test_what_vanishes_where_it_bends_is_no_kink_of_a_surface() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(y - 1)), hf.ArgMin(y, cp.sum_squares(y - x), [y <= 1]))  # min(x, 1) - 1
    assert not len(problem.implicit.surface(np.zeros(2), radius=1.5, points=20, progress=False).kink_points)


def test_a_plateau_at_the_maximum_is_no_gap() -> None:
    """f = min(0, x_1) is 0 on a half plane: its colour is that of the largest value, not the grey of places without one."""
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Maximize(clients=cp.minimum(0, x[0])), constraints=[cp.abs(x) <= 5])
    figure = problem.implicit.surface(np.array([0.3, 0.0]), radius=1, progress=False).plot()
    figure.canvas.draw()
    panel = figure.axes[0]
    image = np.asarray(figure.canvas.buffer_rgba())
    column, row = panel.transData.transform((1.0, 0.05))
    pixel = image[image.shape[0] - 1 - int(row), int(column), :3] / 255
    assert np.ptp(pixel) > 0.2  # a colour of the map, no grey
    plt.close("all")


def test_a_surface_says_where_its_points_are_not_feasible_and_one_value_is_one_colour() -> None:
    """y = x, with x[0] + x[1] <= 0.5 violated at 6 of 5 x 5 points, one value on the whole plane beside."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - x))
    shown = hf.Problem(hf.Minimize(server=0 * cp.sum(y) + 3), lower, [cp.sum(y) <= 0.75]).implicit.surface(np.zeros(2), points=5, progress=False)
    x0, x1 = np.meshgrid(shown.s, shown.s, indexing="ij")
    (flags,) = shown.violated.values()
    np.testing.assert_array_equal(flags, x0 + x1 > 0.75)
    assert f"not feasible at {flags.sum()} points: y[0] + y[1] <= 0.75 is violated" in str(shown).replace("sum(y)", "y[0] + y[1]")
    panel, bar = shown.plot().axes
    assert panel.get_legend().get_texts()[-1].get_text().startswith("violated: ")
    assert bar.get_ylim() == pytest.approx((2.6, 3.4))
    plt.close("all")


def test_starts_are_no_sample_and_one_round_is_seen() -> None:
    """Two starts end in the wells of |y^2 - 1| + y / 10: no mean and no band of theirs means anything."""
    x, y = cp.Variable(name="x", bounds=[-2, 2]), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(server=cp.square(cp.square(y) - 1) + 0.1 * y), hf.ArgMin(y, cp.square(y - x)))
    runs = problem.solve(restarts=3, progress=False)
    panel = runs.plot().axes[0]
    (text,) = panel.get_legend().get_texts()
    assert text.get_text() == "the best of 3 starts" and not panel.collections and len(panel.lines) == 4
    best = runs.best.history["objective"][: len(panel.lines[0].get_ydata())]
    np.testing.assert_array_equal(panel.lines[0].get_ydata(), best)
    one = problem.solve(FedRZO(step_size=0.01), rounds=1, progress=False)
    assert one.plot().axes[0].lines[0].get_marker() == "o"
    plt.close("all")


def test_an_empty_logarithmic_figure_says_why() -> None:
    x = cp.Variable(name="x", bounds=[-1, 1])
    result = hf.Problem(hf.Minimize(clients=cp.square(x) - 5)).solve(rounds=3, x0=0.5, progress=False)
    said = [text.get_text() for text in result.plot(scale="log").axes[0].texts]
    assert said == ["no value is above 0: take scale='linear'"]
    assert not result.plot().axes[0].texts
    plt.close("all")
