"""Slices of implicit functions: kinks against those computed by hand, smooth functions without any, gaps, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.inspect.pictures.slice import Slice
from hierfl.models import coupled_minimax, nonsmooth_toy
from hierfl.progress import RunProgress
from hierfl.solvers import FedAvg, FedRZO

mpl.use("Agg")


def places(shown: Slice) -> list[float]:
    return [kink.t for kink in shown.kinks]


def slopes(shown: Slice) -> np.ndarray:
    return np.array([(kink.left_slope, kink.right_slope) for kink in shown.kinks])


# --- kinks by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 50])
def test_the_toy_has_a_kink_where_a_coordinate_crosses_zero(n: int) -> None:
    """f = sum (min(x_i, 0) + 1)^2 / 2: slope d_i from below, 0 from above."""
    rng = np.random.default_rng(n)
    centre, direction = rng.standard_normal(n), rng.standard_normal(n)
    direction /= np.linalg.norm(direction)
    shown = nonsmooth_toy(n).implicit.slice(centre, direction, radius=3, progress=False)
    crossings = -centre / direction
    order = [i for i in np.argsort(crossings) if abs(crossings[i]) < 3]
    np.testing.assert_allclose(places(shown), crossings[order], atol=1e-6)
    for kink, i in zip(shown.kinks, order):

        def slope(t: float, inside: bool, i: int = i) -> float:
            x = centre + t * direction
            others = sum(direction[j] * (x[j] + 1) for j in range(n) if x[j] < 0 and j != i)
            return others + (direction[i] if inside else 0.0)

        assert kink.left_slope == pytest.approx(slope(kink.t, direction[i] > 0), abs=1e-6)
        assert kink.right_slope == pytest.approx(slope(kink.t, direction[i] < 0), abs=1e-6)
        assert kink.causes[0].source == "y >= 0" and kink.causes[0].entry == (i,)
        assert not kink.convex  # the slope falls from 1 to 0 as the coordinate grows


def test_a_minimax_problem_whose_kinks_cancel_is_smooth() -> None:
    shown = coupled_minimax().implicit.slice(0.3, radius=0.6, progress=False)
    assert len(shown.kinks) == 0
    x = 0.3 + shown.t
    np.testing.assert_allclose(shown.value, x**2 - x, atol=1e-9)


def cournot(cap: float = np.inf) -> hf.Problem:
    """4 followers of demand 10 - x - sum(y); with one cost each they leave together at x = 10 - cost."""
    x, y = cp.Variable(name="x"), cp.Variable(4, name="y")
    game = hf.Equilibrium(y, 1.1 * y - 10 + x + cp.sum(y), [y >= 0] + ([y <= cap] if np.isfinite(cap) else []))
    return hf.Problem(hf.Minimize(clients=0.05 * x**2 - x * (10 - x - cp.sum(y))), game, [x >= 0, x <= 20])


def test_followers_that_leave_and_followers_at_capacity() -> None:
    """y_i = (10 - x) / 5.1 between 0 and the cap; f = 0.05 x^2 - x (10 - x - 4 y)."""
    shown = cournot(1.5).implicit.slice(8.0, radius=7.5, progress=False)
    bound = 10 - 1.5 * 5.1
    np.testing.assert_allclose(np.array(places(shown)) + 8.0, [bound, 10.0], atol=1e-6)
    capped, leaving = shown.kinks
    # f' = 0.1 x - 10 + 2 x + 4 y + 4 x y', with y' = -1 / 5.1 between the two
    at = 0.1 * bound - 10 + 2 * bound + 6.0
    assert capped.left_slope == pytest.approx(at, abs=1e-6)
    assert capped.right_slope == pytest.approx(at - 4 * bound / 5.1, abs=1e-6)
    assert not capped.convex and "y <= 1.5" in capped.cause
    assert leaving.left_slope == pytest.approx(1 - 10 + 20 - 40 / 5.1, abs=1e-6)
    assert leaving.right_slope == pytest.approx(11, abs=1e-6)
    assert leaving.convex and "y >= 0" in leaving.cause


def test_clients_in_balls_around_x() -> None:
    """y_i = nearest point to c_i within 1 of x: kinks where client 1's ball reaches it, none where y_i is at its goal."""
    x, y, c = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.ClientParameter(2, name="c")
    clients = [hf.Client(parameters={c: np.array([a, 0.0])}) for a in (0.0, 3.0)]
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - np.array([0.0, 2.0])) + cp.sum(x)),
        lower=hf.ArgMin(y, cp.sum_squares(y - c), [cp.norm(y - x) <= 1], scope="client"),
        federation=hf.Federation(clients),
    )
    shown = problem.implicit.slice(np.zeros(2), [1.0, 0.0], radius=5, progress=False)
    np.testing.assert_allclose(places(shown), [2, 4], atol=1e-6)
    np.testing.assert_allclose(slopes(shown), [[5, 2], [4, 7]], atol=1e-6)
    assert all(kink.causes[0].holder == "client 1" for kink in shown.kinks)
    np.testing.assert_allclose(shown.response()[:, 1, 0], np.clip(3, shown.t - 1, shown.t + 1), atol=1e-8)
    assert any("of client 0" in name for name in shown.active(0))


def test_an_answer_for_each_sample() -> None:
    """y = max(0, a x - 1) for each sample: a kink at x = 1 / a, named by the sample's row."""
    x, y, a = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="a")
    data = [np.array([0.5, 1.0]), np.array([2.0, 4.0, -1.0])]
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(x - 1) + y)),
        hf.ArgMin(y, cp.square(y - a * x + 1), [y >= 0], scope="sample"),
        federation=hf.Federation([hf.Client({a: rows}) for rows in data]),
    )
    shown = problem.implicit.slice(1.0, radius=0.9, points=41, progress=False)
    np.testing.assert_allclose(np.array(places(shown)) + 1.0, [0.25, 0.5, 1.0], atol=1e-6)
    assert [(kink.causes[0].holder, kink.causes[0].row) for kink in shown.kinks] == [
        ("client 1", 1),
        ("client 1", 0),
        ("client 0", 1),
    ]
    np.testing.assert_allclose(np.diff(slopes(shown)).ravel(), [4 / 6, 2 / 6, 1 / 4], atol=1e-6)
    assert "y >= 0 of client 0, row 0" in shown.active(0)


def test_an_l1_regularised_lower_level() -> None:
    """y = soft threshold of x at 1."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(y - 1) + 0.1 * x), hf.ArgMin(y, 0.5 * cp.square(y - x) + cp.abs(y))
    )
    shown = problem.implicit.slice(0.0, radius=3, points=41, progress=False)
    np.testing.assert_allclose(places(shown), [-1, 1], atol=1e-6)
    np.testing.assert_allclose(slopes(shown), [[-1.9, 0.1], [0.1, -1.9]], atol=1e-3)
    assert all(kink.cause == "abs(y)" for kink in shown.kinks)


def test_a_linear_program_jumps_or_bends() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    simplex = [y >= 0, cp.sum(y) <= 1]
    jumps = hf.Problem(hf.Minimize(clients=y[0] + 2 * y[1]), hf.ArgMin(y, -y[0] - x * y[1], simplex))
    shown = jumps.implicit.slice(0.4, radius=0.9, points=40, progress=False)
    (jump,) = shown.kinks.jumps
    assert jump.t == pytest.approx(0.6, abs=1e-6) and (jump.left, jump.right) == pytest.approx((1, 2), abs=1e-6)
    assert len(shown.kinks) == 0 and "jumps" in str(shown)
    bends = hf.Problem(
        hf.Minimize(clients=y[0] - y[1]), hf.ArgMin(y, -2 * y[0] - y[1], [*simplex, y[0] <= x]), [x >= 0]
    )
    shown = bends.implicit.slice(0.7, radius=0.7, points=41, progress=False)
    np.testing.assert_allclose(places(shown), [0.3], atol=1e-6)
    np.testing.assert_allclose(slopes(shown), [[2, 0]], atol=1e-5)


def test_atoms_of_the_upper_level_and_their_rows() -> None:
    """E |u'x - 1| over three samples: a kink where each sample's residual crosses zero."""
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    rows = np.array([[1.0, 0.5], [-2.0, 1.0], [0.5, 3.0]])
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.abs(u @ x - 1)) + cp.max(x)), federation=hf.Federation([hf.Client({u: rows})])
    )
    shown = problem.implicit.slice([0.2, 0.1], [1.0, 0.0], radius=2, progress=False)
    crossing = [(1 - row @ [0.2, 0.1]) / row[0] for row in rows]
    expected = sorted([t for t in crossing if abs(t) < 2] + [-0.1])
    np.testing.assert_allclose(places(shown), expected, atol=1e-6)
    assert {kink.causes[0].row for kink in shown.kinks} == {None, 0, 1, 2}


def test_kinks_of_a_distributions_sample_are_taken_together() -> None:
    x, u = cp.Variable(name="x"), hf.Sample(name="u")
    law = hf.Federation([hf.Client({u: scipy.stats.norm()})])
    shown = hf.Problem(hf.Minimize(clients=hf.E(cp.abs(x - u)) + cp.abs(x - 0.5)), federation=law).implicit.slice(
        0.0, radius=1, progress=False
    )
    np.testing.assert_allclose(places(shown), [0.5], atol=1e-6)
    assert shown.kinks.sampled is not None and shown.kinks.sampled.count > 100
    assert "quasi-random" in str(shown)


def test_a_kink_across_the_line_is_not_one_of_the_slice() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.abs(x[1]) + cp.square(x[0])))
    assert len(problem.implicit.slice([0.0, 0.0], [1, 0], progress=False).kinks) == 0
    (kink,) = problem.implicit.slice([0.3, 0.0], [0, 1], progress=False).kinks
    assert (kink.left_slope, kink.right_slope) == pytest.approx((-1, 1), abs=1e-6)


def test_a_norm_that_touches_zero_and_a_function_without_switches() -> None:
    x = cp.Variable(3, name="x")
    centre = np.array([0.3, -0.2, 0.5])
    norm = hf.Problem(hf.Minimize(clients=cp.norm(x - centre)))
    (kink,) = norm.implicit.slice(centre + 0.123 * np.ones(3), np.ones(3), progress=False).kinks
    assert kink.t == pytest.approx(-0.123 * np.sqrt(3), abs=1e-6) and kink.right_slope == pytest.approx(1, abs=1e-5)
    inner = hf.Function(lambda x: jnp.abs(x[0] - 0.2) + x[1] ** 2, x, shape=())
    shown = hf.Problem(hf.Minimize(clients=inner)).implicit.slice(np.zeros(3), [1, 0, 0], progress=False)
    assert places(shown) == pytest.approx([0.2], abs=1e-6)
    assert shown.kinks[0].causes == () and shown.kinks.resolution.opaque


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-1.8, 1.8), min_size=1, max_size=5, unique_by=lambda b: round(b, 2)), st.floats(-1, 1))
def test_piecewise_functions_of_one_variable(breaks: list[float], tilt: float) -> None:
    """sum_j (j + 1) |x - b_j| + a smooth part: kinks at the b_j exactly, whatever the grid."""
    x, b = cp.Variable(name="x"), cp.Parameter(5, name="b", value=np.resize(breaks, 5))
    weights = np.array([j + 1.0 if j < len(breaks) else 0.0 for j in range(5)])
    problem = hf.Problem(hf.Minimize(clients=weights @ cp.abs(x - b) + tilt * x + cp.exp(x)))
    shown = problem.implicit.slice(0.0, radius=2, points=101, progress=False)
    np.testing.assert_allclose(places(shown), sorted(breaks), atol=1e-6)
    order = np.argsort(breaks)
    jumps = slopes(shown) @ [-1, 1]
    np.testing.assert_allclose(jumps, 2 * weights[: len(breaks)][order], atol=1e-5)


# --- smooth functions --------------------------------------------------------------------------------------------

SMOOTH: dict[str, Callable[[cp.Variable], cp.Expression]] = {
    "x^4": lambda x: cp.power(x, 4),
    "sqrt(x^2 + 1e-8)": lambda x: cp.norm(cp.hstack([x, 1e-4])),
    "steep softplus": lambda x: cp.logistic(1e4 * x) / 1e4,
    "exp": lambda x: cp.exp(3 * x),
    "huber": lambda x: cp.huber(x, 0.3),
    "|x|^3": lambda x: cp.power(cp.abs(x), 3),
    "max(x, 0)^2": lambda x: cp.square(cp.pos(x)),
    "sine": lambda x: hf.Function(lambda x: jnp.sin(40 * x), x, shape=()),
    "steep tanh": lambda x: hf.Function(lambda x: jnp.tanh(1e3 * x), x, shape=()),
    "kinks that cancel": lambda x: cp.abs(x) + hf.Function(lambda x: -jnp.abs(x) + x**2, x, shape=()),
    "1/(x + 2)": lambda x: cp.inv_pos(x + 2),
    "noise": lambda x: hf.Function(lambda x: x**2 + 1e-13 * jnp.sin(1e9 * x), x, shape=()),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("points", [21, 401])
def test_smooth_functions_have_no_kinks(name: str, points: int) -> None:
    x = cp.Variable(name="x")
    shown = hf.Problem(hf.Minimize(clients=SMOOTH[name](x))).implicit.slice(0.013, points=points, progress=False)
    assert len(shown.kinks) == 0 and not shown.kinks.jumps, str(shown.kinks)


def test_an_envelope_over_a_fixed_set_is_smooth_though_its_constraints_change() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    distance = cp.square(y - x)
    problem = hf.Problem(hf.Minimize(clients=distance), hf.ArgMin(y, distance, [y >= -0.3, y <= 0.4]))
    assert len(problem.implicit.slice(0.0, progress=False).kinks) == 0


# --- gaps, smoothing, runs ---------------------------------------------------------------------------------------


def test_gaps_are_found_and_named() -> None:
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


def test_the_figure_names_what_it_shows() -> None:
    shown = cournot(1.5).implicit.slice(8.0, radius=9, points=101, smoothing=[0.5, 1.0], samples=16, progress=False)
    figure = shown.plot()
    (panel,) = figure.axes
    assert panel.get_xlabel() == "t   (x = 8 + t)"
    named = [text.get_text() for text in panel.get_legend().get_texts()]
    assert "f" in named and "2 kinks" in named and any("η = 0.5" in text for text in named)
    assert any("outside X" in text for text in named)


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


def test_a_point_of_the_grid_on_a_jump_is_not_drawn_across_it() -> None:
    (line, *_) = jumping().implicit.slice(0.3, radius=0.5, points=21, progress=False).plot().axes[0].lines
    t, value = line.get_data()
    (hole,) = np.flatnonzero(np.isnan(value))
    assert np.all(value[:hole] > 0.9) and np.all(value[hole + 1 :] < 0.0) and np.all(np.diff(t) >= 0)


def test_the_axis_says_what_t_is() -> None:
    x, pair = cp.Variable(name="price"), cp.Variable(2, name="x")
    scalar, plane = hf.Problem(hf.Minimize(clients=cp.abs(x))), hf.Problem(hf.Minimize(clients=cp.norm1(pair)))

    def label(problem: hf.Problem, center: Any, direction: Any) -> str:
        return problem.implicit.slice(center, direction, points=5, progress=False).plot().axes[0].get_xlabel()

    assert label(scalar, 0.3, None) == "t   (price = 0.3 + t)"
    assert label(scalar, 0.0, -2.0) == "t   (price = −t)"
    assert label(plane, [1.0, 0.5], [0, 1]) == "t   (x[1] = 0.5 + t, the rest fixed)"
    assert label(plane, [1.0, 0.5], [1, 1]) == "t   (x = centre + t · direction)"


def test_reasons_of_gaps_can_be_told_apart() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y), [cp.sum(y) == x, y >= 0])
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower, [x <= 0.7])
    panel = problem.implicit.slice(0.5, points=21, progress=False).plot().axes[0]
    looks = {(patch.get_facecolor(), patch.get_hatch()) for patch in panel.patches}
    assert len(panel.patches) == 2 and len(looks) == 2


def test_the_middle_of_the_window_is_its_centre() -> None:
    problem = hf.Problem(hf.Minimize(clients=cp.Variable(name="x")))
    for radius, points in ((1.8, 101), (0.7, 31), (1 / 3, 401)):
        t = problem.implicit.slice(0.0, radius=radius, points=points, progress=False).t
        assert t[points // 2] == 0 and (t[0], t[-1]) == (-radius, radius)
        np.testing.assert_allclose(t, np.linspace(-radius, radius, points), atol=1e-14)


def test_the_response_is_in_double_precision() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    shown = hf.Problem(hf.Minimize(clients=y), hf.ArgMin(y, cp.square(3 * y - x))).implicit.slice(1.0, points=5)
    assert shown.response().dtype == np.float64 and shown.response(y)[2].item() == pytest.approx(1 / 3, abs=1e-15)


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"direction": [0.0, 0.0]}, hf.SettingError, "direction is zero"),
        ({"direction": [1.0, 0.0, 0.0]}, hf.DataError, "direction"),
        ({"radius": 0}, hf.SettingError, "radius"),
        ({"radius": -1}, hf.SettingError, "radius"),
        ({"points": 2}, hf.SettingError, "points"),
        ({"smoothing": 0.0}, hf.SettingError, "smoothing"),
        ({"smoothing": "wide"}, hf.SettingError, "smoothing"),
        ({"smoothing": [0.1, float("nan")]}, hf.SettingError, "smoothing"),
        ({"tolerance": "x"}, hf.SettingError, "tolerance='x'"),
        ({"tolerance": -1}, hf.SettingError, "tolerance=-1"),
        ({"tolerance": 0.0}, hf.SettingError, "tolerance=0.0"),
        ({"seed": "x"}, hf.SettingError, "seed='x'"),
        ({"seed": -1}, hf.SettingError, "seed=-1"),
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
    shown, y = jumping().implicit.slice(0.1, points=5, progress=False), cp.Variable(name="z")
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: shown.response(3), "variable=3: a variable of the lower level, here y"),
        (lambda: shown.response(y), "variable=z: a variable of the lower level, here y"),
        (lambda: shown.active(99), "place=99: an index of the slice's 5 points, 0 to 4"),
        (lambda: shown.active(1.0), "place=1.0"),  # type: ignore[arg-type]
        (lambda: shown.plot(ax=3), "ax=3: axes of matplotlib"),
        (lambda: shown.plot(nonsense=1), "nonsense= is no style keyword .* color, linestyle"),
        (lambda: shown.problem.implicit.smoothed(0.1, 0.1, seed="a"), "seed='a'"),  # type: ignore[arg-type]
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


@pytest.mark.parametrize("length", [1e200, 1e-200, 1e-310])
def test_a_direction_of_any_length(length: float) -> None:
    """f = 1 along (1, 1) from 0 on, and falls before it."""
    shown = nonsmooth_toy(2).implicit.slice(np.zeros(2), np.full(2, length), points=41, progress=False)
    np.testing.assert_allclose(shown.direction, np.full(2, np.sqrt(0.5)), rtol=1e-15)
    np.testing.assert_allclose(places(shown), [0.0], atol=1e-6)
    np.testing.assert_allclose(slopes(shown), [[np.sqrt(2), 0]], atol=1e-6)


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


def test_a_search_for_kinks_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, bool]] = []
    counted: list[int] = []

    class Watched(RunProgress):
        def __init__(self, total: int, what: str, progress: bool, unit: str) -> None:
            said.append((what, progress))
            super().__init__(total, what, False, unit)

        def advance(self, count: int) -> None:
            counted.append(count)

    monkeypatch.setattr("hierfl.inspect.implicit.points.RunProgress", Watched)
    line = nonsmooth_toy(1).implicit.slice(np.zeros(1), points=41)
    plane = nonsmooth_toy(2).implicit.surface([0.01, 0.02], points=5, progress=False)
    before = len(counted)
    assert len(line.kinks) == 1 and len(plane.kink_points) == 10
    assert said == [("slice", True), ("surface", False), ("kinks", True), ("kinks", False)]
    assert sum(counted[before:]) > 41


def test_tangents_that_are_upright_are_not_drawn() -> None:
    x = cp.Variable(name="x")
    shown = hf.Problem(hf.Minimize(server=cp.sqrt(cp.pos(x)))).implicit.slice(0.0, points=41, progress=False)
    panel = shown.plot().axes[0]
    assert all(np.isfinite(line.get_ydata()).all() for line in panel.lines) and len(panel.lines) == 3
