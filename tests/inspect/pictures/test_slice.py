"""Slices of implicit functions: gaps, smoothing, runs, figures and refusals."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import matplotlib as mpl
import numpy as np
import pytest

import hierfl as hf
from hierfl.inspect.pictures.slice import Slice
from hierfl.models import coupled_minimax, nonsmooth_toy
from hierfl.solvers import FedAvg, FedRZO
from tests.inspect.known_functions import cournot

mpl.use("Agg")


def test_gaps_are_found_named_and_told_apart() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y), [cp.sum(y) == x, y >= 0]), [x <= 0.7]
    )
    shown = problem.implicit.slice(0.5, radius=1, progress=False)
    empty, outside = shown.gaps
    assert empty.high == pytest.approx(-0.5, abs=1e-6) and "empty" in empty.reason
    assert outside.low == pytest.approx(0.2, abs=1e-6) and "outside X" in outside.reason
    np.testing.assert_allclose(
        shown.value[np.isfinite(shown.value)], 0.5 + shown.t[np.isfinite(shown.value)], atol=1e-8
    )
    assert "no value" in str(shown)
    patches = shown.plot().axes[0].patches  # which can be told apart
    assert len(patches) == len({(patch.get_facecolor(), patch.get_hatch()) for patch in patches}) == 2


def test_smoothing_is_unbiased_on_the_line() -> None:
    """f = |x|: f^eta(x) = (x^2 + eta^2) / (2 eta) for |x| <= eta in one dimension."""
    x = cp.Variable(name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.abs(x)))
    shown = problem.implicit.slice(0.0, smoothing=0.5, points=41, samples=2000, progress=False)
    (smooth,) = shown.smoothed
    truth = np.where(np.abs(shown.t) < 0.5, (shown.t**2 + 0.25) / 1.0, np.abs(shown.t))
    assert np.all(np.abs(smooth.value - truth) <= 4 * smooth.half_width + 1e-9)


def test_a_runs_iterates_choose_the_direction() -> None:
    x = cp.Variable(3, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - np.array([3.0, 0.0, 0.0]))))
    run = problem.solve(FedAvg(step_size=0.05), rounds=100, x0=np.zeros(3), progress=False)
    shown = problem.implicit.slice(run, radius=4, progress=False)
    assert "principal direction" in shown.chosen and abs(shown.direction[0]) == pytest.approx(1, abs=1e-6)
    assert len(shown.iterates) == 11 and np.abs(shown.iterates[:, 1]).max() < 1e-9
    alone = cournot(1.5)
    assert alone.implicit.slice(alone.solve(progress=False), points=5, progress=False).chosen == "x itself"


def test_the_figure_names_what_it_shows() -> None:
    shown = cournot(1.5).implicit.slice(8.0, radius=9, points=101, smoothing=[0.5, 1.0], samples=16, progress=False)
    figure = shown.plot(response=False)
    (panel,) = figure.axes
    assert panel.get_xlabel() == "t   (x = 8 + t)" and panel.get_title() == "f along x"
    named = [text.get_text() for text in panel.get_legend().get_texts()]
    assert "f" in named and "2 kinks" in named and any("η = 0.5" in text for text in named)
    assert any("outside X" in text for text in named)
    paper = shown.plot(response=False, style="paper")  # in a column the legend would cover f
    assert paper.axes[0].get_legend() is None and [text.get_text() for text in paper.legends[0].get_texts()] == named


def test_dollars_in_names_are_dollars() -> None:
    """Between two matplotlib reads mathematics, and raises its own error where that is none."""
    p, q = cp.Variable(2, name="p$^{$"), cp.Variable(name="q [$/MWh]")
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(q - p)), hf.ArgMin(q, cp.square(q - cp.sum(p)), [q <= 1]))
    line = problem.implicit.slice(np.zeros(2), np.array([1.0, 0.0]), points=5, progress=False).plot()
    line.canvas.draw()
    assert line.axes[0].get_title() == r"f along p\$^{\$[0]"
    problem.implicit.surface(np.zeros(2), points=5, progress=False).plot().canvas.draw()


def test_a_gap_at_a_single_point_is_a_line_and_the_ends_of_f_are_those_at_kinks() -> None:
    """-log |t| has no value at 0; |t - 0.123| is least between two points of the slice."""
    x = cp.Variable(name="x", bounds=[-2, 2])
    shown = hf.Problem(hf.Minimize(server=-cp.log(cp.abs(x)))).implicit.slice(0.0, progress=False)
    (gap,) = shown.gaps
    assert gap.low == gap.high == 0.0
    (band,) = [patch for patch in shown.plot().axes[0].patches if patch.get_label() == "no value: a term is undefined"]
    assert band.get_linewidth() > 0
    shown = hf.Problem(hf.Minimize(server=cp.abs(x - 0.123))).implicit.slice(0.0, points=5, progress=False)
    assert "from 0 (t = 0.123) to 1.123 (t = -1)" in str(shown)


def test_the_answers_are_drawn_below_where_they_are_few() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0], scope="client")
    toy = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower, federation=hf.Federation([hf.Client(), hf.Client()]))
    shown = toy.implicit.slice(np.array([0.5, 0.0]), np.array([1.0, 0.0]), points=41, progress=False)
    value, answer = shown.plot().axes
    assert (
        value.get_title() == "f along x[0]" and value.get_xlabel() == "" and answer.get_xlabel().startswith("t   (x[0]")
    )
    assert [text.get_text() for text in answer.texts] == ["y[0], 0", "y[1], 0", "y[0], 1", "y[1], 1"]
    named = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower, federation=hf.Federation([hf.Client(name="Ana"), hf.Client()]))
    drawn = named.implicit.slice(np.array([0.5, 0.0]), np.array([1.0, 0.0]), points=41, progress=False).plot()
    assert [text.get_text() for text in drawn.axes[1].texts] == ["y[0], Ana", "y[1], Ana", "y[0], 1", "y[1], 1"]
    heights = sorted(text.get_position()[1] for text in answer.texts)
    assert np.all(np.diff(heights) > 0.07)  # names of curves that lie on each other can be read
    np.testing.assert_allclose(answer.lines[0].get_ydata(), np.maximum(shown.t + 0.5, 0), atol=1e-12)
    assert len(shown.plot(response=False).axes) == 1
    with pytest.raises(hf.SettingError, match="a panel of its own"):
        shown.plot(ax=value, response=True)
    with pytest.raises(hf.SettingError, match="holds no y"):
        hf.Problem(hf.Minimize(clients=cp.norm1(x))).implicit.slice(points=5, progress=False).plot(response=True)


def jumping() -> hf.Problem:
    """y = 1 where x < 0.3, else -1; f = y + x^2 on X = (-inf, 1.15]."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    bilinear = hf.ArgMin(y, (x - 0.3) * y, [y >= -1, y <= 1])
    return hf.Problem(hf.Minimize(clients=y + cp.square(x)), bilinear, [x <= 1.15])


def test_the_curve_is_broken_at_a_jump_and_goes_through_kinks() -> None:
    (line, *_) = jumping().implicit.slice(0.1, points=24, progress=False).plot().axes[0].lines
    t, value = line.get_data()
    (hole,) = np.flatnonzero(np.isnan(value) & (t < 1))
    np.testing.assert_allclose(t[hole - 1 : hole + 2], 0.2, atol=1e-6)
    np.testing.assert_allclose(value[[hole - 1, hole + 1]], [1.09, -0.91], atol=1e-5)
    assert np.all(np.diff(t) >= 0) and np.all(value[:hole] > 0.9) and np.all(value[hole + 1 : -3] < 0.5)
    x = cp.Variable(name="x")
    (line, *_) = hf.Problem(hf.Minimize(clients=cp.abs(x - 0.123))).implicit.slice(0.0, points=5).plot().axes[0].lines
    assert np.min(np.abs(line.get_data() - np.array([[0.123], [0.0]])).max(axis=0)) < 1e-6


def test_the_axis_says_what_t_is() -> None:
    x, pair = cp.Variable(name="price"), cp.Variable(2, name="x")
    scalar, plane = hf.Problem(hf.Minimize(clients=cp.abs(x))), hf.Problem(hf.Minimize(clients=cp.norm1(pair)))

    def label(problem: hf.Problem, center: Any, direction: Any) -> str:
        return problem.implicit.slice(center, direction, points=5, progress=False).plot().axes[-1].get_xlabel()

    assert label(scalar, 0.3, None) == "t   (price = 0.3 + t)"
    assert label(scalar, 0.0, -2.0) == "t   (price = −t)"
    assert label(plane, [1.0, 0.5], [0, 1]) == "t   (x[1] = 0.5 + t, the rest fixed)"
    assert label(plane, [1.0, 0.5], [1, 1]) == "t   (x = centre + t · direction)"


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"direction": [0.0, 0.0]}, hf.SettingError, "direction is zero"),
        ({"direction": [1.0, 0.0, 0.0]}, hf.DataError, "direction"),
        ({"radius": 0}, hf.SettingError, "radius"),
        ({"points": 2}, hf.SettingError, "points"),
        ({"smoothing": 0.0}, hf.SettingError, "smoothing"),
        ({"smoothing": "wide"}, hf.SettingError, "smoothing"),
        ({"smoothing": [0.1, float("nan")]}, hf.SettingError, "smoothing"),
        ({"tolerance": 0.0}, hf.SettingError, "tolerance=0.0"),
        ({"seed": "x"}, hf.SettingError, "seed='x'"),
        ({"center": [3.0, 0.0]}, hf.SettingError, "outside X"),
        ({"center": [np.nan, 0.0]}, hf.DataError, "NaN"),
    ],
)
def test_bad_input_is_named(arguments: dict, error: type[Exception], named: str) -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), constraints=[cp.norm(x) <= 2])
    with pytest.raises(error, match=named):
        problem.implicit.slice(**{"center": [0.0, 0.0], "progress": False, **arguments})


def test_bad_input_to_a_slice_is_named() -> None:
    implicit, y = jumping().implicit, cp.Variable(name="z")
    shown = implicit.slice(0.1, points=5, progress=False)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: shown.response(3), "variable=3: a variable of the lower level, here y"),
        (lambda: shown.response(y), "variable=z: a variable of the lower level, here y"),
        (lambda: shown.active(99), "place=99: an index of the slice's 5 points, 0 to 4"),
        (lambda: shown.active(1.0), "place=1.0"),  # type: ignore[arg-type]
        (lambda: shown.plot(ax=3), "ax=3: axes of matplotlib"),
        (lambda: shown.plot(nonsense=1), "nonsense= is no style keyword .* color, linestyle"),
        (lambda: implicit.smoothed(0.1, 0.1, seed="a"), "seed='a'"),  # type: ignore[arg-type]
    ]
    for call, named in calls:
        with pytest.raises(hf.SettingError, match=named):
            call()
    assert shown.active(-1) == shown.active(4) == ("y >= -1",)
    (line, *_) = shown.plot(lw=3, c="black", label="value").axes[0].lines
    assert (line.get_linewidth(), line.get_color(), line.get_label()) == (3, "black", "value")
    with pytest.raises(hf.SettingError, match="style: .*both 'lw' and 'linewidth'"):
        shown.plot(lw=3, linewidth=2)


def test_the_end_of_the_set_is_no_kink() -> None:
    """f is x^2 - x on X = [-1, 1]; beyond -1, where abs(y) <= 1 would bind, there is no f."""
    assert len(coupled_minimax().implicit.slice().kinks) == 0
    found = coupled_minimax().implicit.slice(0.0, radius=1.5)
    assert len(found.kinks) == 0 and [gap.reason for gap in found.gaps] == ["x is outside X"] * 2


def test_a_result_of_another_problem_is_refused() -> None:
    run = nonsmooth_toy(2).solve(FedRZO(), rounds=2, progress=False)
    with pytest.raises(hf.SettingError, match="another problem"):
        nonsmooth_toy(2).implicit.slice(run)


@pytest.mark.parametrize("corner", [True, False])
def test_a_direction_that_nobody_gave_does_not_leave_x_at_once(corner: bool) -> None:
    """At a corner, and where X is flat, a random direction has next to no value; where it stays in X it is the one of the seed."""
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    below = hf.ArgMin(y, cp.sum_squares(y - x))
    on_x = [x >= 0, cp.sum(x) == 1] if corner else [x >= -9, x <= 9]
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(y)), below, on_x)
    centre = np.array([1.0, 0.0, 0.0])
    for seed in range(4):
        shown = problem.implicit.slice(centre, points=41, seed=seed, progress=False)
        there = np.isfinite(shown.value)
        np.testing.assert_allclose(np.linalg.norm(shown.direction), 1.0)
        if corner:
            assert "into X" in str(shown) and there.sum() >= 10
            np.testing.assert_allclose(shown.direction.sum(), 0.0, atol=1e-9)
        else:
            drawn = np.random.default_rng(seed).standard_normal(3)
            np.testing.assert_allclose(shown.direction, drawn / np.linalg.norm(drawn), rtol=1e-14)
            assert there.all() and f"a random unit vector (seed {seed})" in str(shown)


def test_a_window_without_values_says_why() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(server=x + y), hf.ArgMin(y, cp.square(y), [y >= 0, y <= x - 5]))
    shown = problem.implicit.slice(0.0, points=21, progress=False)
    assert str(shown).splitlines()[1:] == ["no value for t in [-1, 1]: Y(x) is empty"]
    assert len(shown.kinks) == 0
    assert "no value: Y(x) is empty" in [text.get_text() for text in shown.plot().axes[0].get_legend().get_texts()]


def test_the_runs_of_several_seeds_are_refused_by_name() -> None:
    problem = nonsmooth_toy(2)
    runs = problem.solve(FedRZO(), rounds=2, seeds=2, progress=False)
    for look in (problem.implicit.slice, problem.implicit.surface):
        with pytest.raises(hf.SettingError, match=r"several seeds: .* runs\.best"):
            look(runs)
    assert len(problem.implicit.slice(runs.best, points=5, progress=False).iterates)


def test_tangents_that_are_upright_are_not_drawn() -> None:
    x = cp.Variable(name="x")
    shown = hf.Problem(hf.Minimize(server=cp.sqrt(cp.pos(x)))).implicit.slice(0.0, points=41, progress=False)
    panel = shown.plot().axes[0]
    assert all(np.isfinite(line.get_ydata()).all() for line in panel.lines) and len(panel.lines) == 3


def test_ties_of_the_lower_level_are_told_where_they_are() -> None:
    """Costs (0, max(1 - t, 0)) of two shares at one client: alike from t = 1 on; at the other they are alike for a moment only."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    rho = hf.ClientParameter(name="rho")
    lower = hf.ArgMin(y, cp.pos(1 - x) * y[1] + rho * (x + 0.5) * y[1], [y >= 0, cp.sum(y) == 1], scope="client")
    federation = hf.Federation([hf.Client({}, {rho: 0.0}, name="north"), hf.Client({}, {rho: 9.0}, name="south")])
    shown = hf.Problem(hf.Minimize(clients=y[1]), lower=lower, federation=federation).implicit.slice(
        0.0, radius=2.0, points=81, progress=False
    )
    (tie,) = shown.ties
    assert (tie.low, tie.high, tie.owner) == (pytest.approx(1.0, abs=1e-6), 2.0, "client 'north'")
    assert "t in [1, 2]: the lower level of client 'north' has several solutions, and y is that of least norm" in str(
        shown
    )
    labels = shown.plot(response=False).axes[0].get_legend_handles_labels()[1]
    assert "several lower solutions" in labels


def test_a_tie_at_a_single_point_of_a_slice_is_told_and_none_that_f_does_not_see() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")

    def along(upper: cp.Expression) -> Slice:
        lower = hf.ArgMin(y, x * y, [cp.abs(y) <= 1])
        return hf.Problem(hf.Minimize(clients=upper), lower=lower).implicit.slice(0.0, points=21, progress=False)

    (tie,) = along(y).ties
    assert tie.low == tie.high == 0.0
    assert "t = 0: the lower level of the federation has several solutions" in str(along(y))
    assert not along(cp.square(x) + 0 * y).ties


def test_a_search_for_kinks_that_takes_too_long_is_given_up_and_says_so() -> None:
    """300 units with different costs, each with its own kink of the price: minutes of kinks in a moment's limit."""
    rng = np.random.default_rng(0)
    x, y = cp.Variable(name="x"), cp.Variable(300, nonneg=True, name="y")
    served = cp.sum(y) == 20 + x
    level = hf.ArgMin(y, rng.uniform(1, 2, 300) @ y + cp.sum_squares(y), [served, y <= rng.uniform(0.1, 0.3, 300)])
    problem = hf.Problem(hf.Minimize(server=hf.ShadowPrice(served)), level, [x >= -10, x <= 10])
    shown = problem.implicit.slice(0.0, radius=9.0, points=21, progress=False, time_limit=0.2)
    began = time.perf_counter()
    text = str(shown)
    assert time.perf_counter() - began < 5.0  # on a busy machine
    assert "the search for kinks was given up: time limit reached" in text and len(shown.kinks) == 0 and shown.kinks.unknown
    assert np.isfinite(shown.value).all() and shown.plot(response=False) is not None
    with pytest.raises(hf.SettingError, match="time_limit"):
        problem.implicit.slice(0.0, time_limit=0.0)


def test_what_is_asked_later_is_of_the_parameters_values_then() -> None:
    x, y, q = cp.Variable(name="x"), cp.Variable(name="y"), cp.Parameter(name="q", value=0.25)
    problem = hf.Problem(hf.Minimize(clients=cp.abs(x - q) + y), hf.ArgMin(y, cp.square(y - x)))
    line = problem.implicit.slice(0.0, points=21, progress=False)
    q.value = -0.5
    assert [kink.t for kink in line.kinks] == pytest.approx([0.25])
    assert [kink.t for kink in problem.implicit.slice(0.0, points=21, progress=False).kinks] == pytest.approx([-0.5])
