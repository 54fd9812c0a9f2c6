"""Stationarity of implicit functions against closed forms and brute force."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import hierfl as hf
from hierfl.models import nonsmooth_toy
from tests.inspect.known_functions import problem_of


def picture(objective: Any, at: Any, eta: float, *constraints: Any, **asked: Any) -> Any:
    return problem_of(objective, *constraints).implicit.stationarity(at, eta, progress=False, **asked)


t, pair, slopes = cp.Variable(name="t"), cp.Variable(2, name="x"), np.array([1.0, 2.0])
DISTANCES: list[tuple[Any, Any, float, list[Any], float, float]] = [  # f, x, eta, X, the distance of 0 from its gradients and normals, and an error
    (cp.norm1(pair) + 0.3 * pair[0], [0.0, 0.0], 0.1, [], 0.0, 1e-6),  # gradients around a kink surround 0
    (cp.norm1(pair) + 0.3 * pair[0], [1.0, 1.0], 0.1, [], np.hypot(1.3, 1.0), 1e-6),
    (cp.sum(pair), -np.ones(2) / np.sqrt(2), 0.05, [cp.norm(pair) <= 1], 0.0, 1e-4),
    (cp.sum(pair), [1.0, 0.0], 0.05, [cp.norm(pair) <= 1], np.sqrt(2), 1e-4),
    (cp.sum(pair), [1.0, 1.0], 0.1, [pair == 1], 0.0, 1e-12),
    (t, 1e-9, 1e-3, [t >= 0], 0.0, 1e-12),  # normals count within eta, and no further
    (t, 1e-7, 1e-10, [t >= 0], 1.0, 1e-12),
    (t, 0.0, 1e-10, [t >= 0], 0.0, 1e-12),
    (slopes @ pair, [0.0, 0.2], 0.1, [pair >= 0], 2.0, 1e-12),  # the other side is 0.2 away
    (slopes @ pair, [0.08, 0.07], 0.1, [pair >= 0], 1.0, 1e-9),  # the corner is 0.106 away, and where x_2 = 0 only the 1 is left
    (slopes @ pair + cp.abs(pair[0] - pair[1]), [0.05, 0.03], 0.1, [pair >= 0], 0.0, 1e-12),  # all normals of a corner within eta
]


@pytest.mark.parametrize("place", range(len(DISTANCES)))
def test_distances_by_hand(place: int) -> None:
    objective, at, eta, constraints, distance, error = DISTANCES[place]
    found = picture(objective, np.array(at), eta, *constraints)
    assert found.distance == pytest.approx(distance, abs=error) and found.verdict.startswith("stationary") == (distance == 0)
    assert found.weights.min() >= 0 and found.weights.sum() == pytest.approx(1)


def test_what_is_maximised_has_normals_too() -> None:
    up = hf.Problem(hf.Maximize(clients=cp.sum(pair)), constraints=[pair <= 1]).implicit
    assert up.stationarity([1.0, 1.0], 0.05, progress=False).distance < 1e-8
    assert up.stationarity([1.0, 0.0], 0.05, progress=False).distance == pytest.approx(1, abs=1e-6)


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


@pytest.mark.parametrize(
    ("step", "size", "slope"),
    [
        (lambda x: cp.sign(x), 2, 10),  # (f(0.15) - f(-0.05)) / 0.2
        (lambda x: cp.ceil(x), 1, 5),
        (lambda x: cp.floor(10 * x), 1, 10),
        (lambda x: 10 * x - 1e-3 * cp.sign(x), 2e-3, 9.99),
        (lambda x: cp.abs(x) + 1e-5 * cp.sign(x), 2e-5, 0.5001),
    ],
)
def test_nothing_is_certified_across_a_jump(step: Any, size: float, slope: float) -> None:
    x = cp.Variable(name="x")
    found = picture(step(x), 0.05, 0.1)
    assert found.distance == np.inf and found.jump.size == pytest.approx(size, rel=1e-3) and found.jump.apart < 1e-7
    assert found.verdict.startswith("not certified: f jumps within 0.1 of x")
    low, high = found.smoothed_interval
    assert found.smoothed_norm == pytest.approx(slope, rel=1e-9)
    assert low <= slope <= high and high - low < 1e-6 * slope


def test_a_jumping_answer_is_seen_as_a_jump_of_f() -> None:
    """y(x) = -sign(x), the end of an interval that a linear program takes."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(server=y), lower=hf.ArgMin(y, x * y, [y >= -1, y <= 1]))
    found = problem.implicit.stationarity(-0.05, 0.1, progress=False)
    assert found.jump.size == pytest.approx(2) and found.distance == np.inf and "f jumps" in str(found)
    assert found.smoothed_norm == pytest.approx(10)
    beside = problem.implicit.stationarity(-0.3, 0.1, progress=False)
    assert beside.jump is None and beside.distance < 1e-12


@pytest.mark.parametrize(
    "steep",
    [
        lambda x: 1e3 * cp.norm1(x),
        lambda x: cp.logistic(1e6 * x[0]),
        lambda x: cp.sqrt(cp.sum_squares(x) + 1e-10),
        lambda x: cp.sqrt(cp.abs(x[0])),
        lambda x: cp.max(1e6 * x),
        lambda x: cp.sum_squares(x + 1e5) - 2e5 * cp.sum(x) - 2e10,
    ],
)
def test_steep_slopes_kinks_and_rounding_are_no_jumps(steep: Any) -> None:
    x = cp.Variable(2, name="x")
    problem = problem_of(steep(x))
    for seed in range(3):
        assert problem.implicit.stationarity([0.03, 0.0], 0.1, seed=seed, progress=False).jump is None


def test_the_interval_allows_for_rare_pieces() -> None:
    """10 max(x - 0.098, 0) at 0, eta = 0.1: of one x the difference quotient, of two the share of a disc beyond 0.98."""
    t, v = cp.Variable(name="t"), cp.Variable(2, name="v")
    line, plane = problem_of(10 * cp.pos(t - 0.098)), problem_of(10 * cp.pos(v[0] - 0.098))
    for seed in range(5):
        low, high = line.implicit.stationarity(0.0, 0.1, seed=seed, progress=False).smoothed_interval
        assert low <= 0.1 <= high and high - low < 1e-6
    angle = np.arccos(0.98)
    truth = 10 * (angle - np.sin(angle) * 0.98) / np.pi
    covered = 0
    for seed in range(40):
        low, high = plane.implicit.stationarity(np.zeros(2), 0.1, seed=seed, progress=False).smoothed_interval
        covered += low <= truth <= high
    assert covered >= scipy.stats.binom.ppf(1e-6, 40, 0.95)


def test_the_gradient_of_a_smoothed_jump_is_that_of_its_values() -> None:
    """sign(x_1) in the disc: twice the density of u_1 at 0, which is 2 / pi, over eta."""
    v = cp.Variable(2, name="v")
    low, high = picture(cp.sign(v[0]), np.zeros(2), 0.1).smoothed_interval
    assert low <= 40 / np.pi <= high and high - low < 20


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"eta": 0}, "eta=0: a finite number above 0"),
        ({"eta": 1e-14}, "eta=1e-14: at this x at least 2e-12"),
        ({"tolerance": -1}, "tolerance=-1: a finite number of at least 0"),
        ({"seed": "a"}, "seed='a': a whole number of at least 0"),
        ({"samples": 1}, "samples=1: a whole number of at least 2"),
    ],
)
def test_settings_of_stationarity_are_named(asked: dict, named: str) -> None:
    with pytest.raises(hf.SettingError, match=named):
        nonsmooth_toy(1).implicit.stationarity([1.0], **({"eta": 0.1, "progress": False} | asked))


@pytest.mark.parametrize("samples", [None, 2, 3])
def test_conventions_of_derivatives_at_kinks_certify_nothing(samples: int | None) -> None:
    """2 max(t, 0) - |t| is t, whatever an automatic derivative at 0 says; on t >= 0 most projections are 0 as well."""
    t, x = cp.Variable(name="t"), cp.Variable(2, name="x")
    assert picture(2 * cp.pos(t) - cp.abs(t), 0.0, 0.1, samples=samples).distance == pytest.approx(1, abs=1e-12)
    falling = cp.abs(t) - 2 * cp.pos(t)  # is -t: it falls into t >= 0
    assert picture(falling, 0.0, 0.1, t >= 0, samples=samples).distance == pytest.approx(1, abs=1e-12)
    face = 2 * cp.pos(x[0]) - cp.abs(x[0]) + x[1]  # is x_1 + x_2
    for constraints in ([x[0] >= 0], [x[0] == 0]):
        assert picture(face, np.zeros(2), 0.1, *constraints, samples=samples).distance == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("slope", "at", "eta"), [(0.1, 1.0, 0.2), (1e-3, 1.0, 0.01)])
def test_normals_of_different_points_do_not_add_up(slope: float, at: float, eta: float) -> None:
    """f = v_1 in a wedge around the v_1-axis falls all the way to the tip; a point of one side leaves cos(angle), one inside 1."""
    v = cp.Variable(2, name="v")
    wedge = [v[1] <= slope * v[0], v[1] >= -slope * v[0], v[0] <= 5]
    problem = problem_of(v[0], *wedge)
    middle = problem.implicit.stationarity([at, 0.0], eta, progress=False)
    least = np.cos(np.arctan(slope))
    assert least - 1e-9 <= middle.distance <= 1 + 1e-9 and middle.verdict.startswith("not certified")
    assert middle.multipliers.sum() <= 1
    tip = problem.implicit.stationarity(
        [0.5 * eta, 0.0], eta, progress=False
    )  # its normals are at one point, and it is within eta
    assert tip.distance < 1e-12


@pytest.mark.parametrize("eta", [1e-2, 1e-6, 1e-9])
def test_normals_of_curved_sets_are_those_near_x(eta: float) -> None:
    """At (1, 0) of the unit disc the normals within eta make an angle of at most 2 arcsin(eta / 2) with (1, 0)."""
    x, slope = cp.Variable(2, name="x"), np.array([-1.0, 1.0])
    found = picture(slope @ x, np.array([1.0, 0.0]), eta, cp.norm(x) <= 1)
    least = np.sin(np.pi / 4 - 2 * np.arcsin(eta / 2)) * np.sqrt(2)
    assert least - 1e-12 <= found.distance <= 1 + 1e-6
    assert np.abs(np.arctan2(found.normals[:, 1], found.normals[:, 0])).max() <= 2 * np.arcsin(eta / 2) + 1e-12


def test_the_certificate_can_be_checked_by_hand() -> None:
    x = cp.Variable(2, name="x")
    found = (
        hf.Problem(hf.Maximize(clients=x[0] - 2 * cp.abs(x[1])), constraints=[x[0] <= 1])
        .implicit.stationarity([1.0, 0.0], 0.1, progress=False)
    )  # fmt: skip
    assert found.weights.sum() == pytest.approx(1) and min(found.weights.min(), found.multipliers.min()) >= 0
    rest = -found.weights @ found.gradients + found.multipliers @ found.normals
    assert np.linalg.norm(rest) == pytest.approx(found.distance, abs=1e-12) and found.distance < 1e-12
    np.testing.assert_allclose(found.normals, [[1, 0]], atol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1e6, 1e8])
def test_the_distance_scales_with_f(scale: float) -> None:
    x, target = cp.Variable(2, name="x"), np.array([1.0, -0.5])
    flat = picture(scale * cp.sum_squares(x - 1), np.ones(2), 1e-3)
    assert flat.distance <= 1e-12 * scale
    kink = picture(scale * cp.norm1(x - 1), np.array([1.001, 0.999]), 0.1)
    assert kink.distance <= 1e-12 * scale
    f = cp.norm1(x) + 0.5 * cp.sum_squares(x - target)
    one, other = (picture(c * f, np.array([0.3, 0.0]), 0.2, x[0] <= 0.3) for c in (1.0, scale))
    assert one.distance > 0.1 and other.distance == pytest.approx(scale * one.distance, rel=1e-9)


def test_the_verdict_says_what_it_compares() -> None:
    x = cp.Variable(2, name="x")
    found = picture(1e6 * cp.sum(x), np.zeros(2), 0.1, tolerance=5.0)
    assert "above the tolerance (tolerance=5, an absolute slope in units of f per unit of x" in found.verdict
    assert "the longest gradient has 1.41e+06" in found.verdict
    assert picture(cp.sum(x), np.zeros(2), 0.1, tolerance=2.0).verdict.startswith("stationary")
    assert "points of X within 0.001 of x, plus a normal of X at one such point" in picture(t, 1e-9, 1e-3, t >= 0).verdict
