"""Kinks of slices against those computed by hand, and smooth functions without any."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.models import nonsmooth_toy
from tests.inspect.known_functions import cournot, places, slopes


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


def test_kinks_of_a_curve_of_a_distributions_sample_are_taken_together() -> None:
    x, u = cp.Variable(name="x"), hf.Sample(name="u")
    term = hf.E(cp.abs(x - cp.exp(u))) + cp.abs(x - 0.5)
    problem = hf.Problem(hf.Minimize(clients=term), federation=hf.Federation([hf.Client({u: scipy.stats.norm()})]))
    shown = problem.implicit.slice(0.0, radius=1, progress=False)
    np.testing.assert_allclose(places(shown), [0.5], atol=1e-6)
    assert shown.kinks.sampled is not None and shown.kinks.sampled.count > 100
    assert "points that stand for a distribution" in str(shown)


def test_a_kink_across_the_line_is_not_one_of_the_slice() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.abs(x[1]) + cp.square(x[0])))
    assert len(problem.implicit.slice([0.0, 0.0], [1, 0], progress=False).kinks) == 0
    (kink,) = problem.implicit.slice([0.3, 0.0], [0, 1], progress=False).kinks
    assert (kink.left_slope, kink.right_slope) == pytest.approx((-1, 1), abs=1e-6)


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
def test_smooth_functions_have_no_kinks(name: str) -> None:
    x = cp.Variable(name="x")
    implicit = hf.Problem(hf.Minimize(clients=SMOOTH[name](x))).implicit
    for points in (21, 401):
        shown = implicit.slice(0.013, points=points, progress=False)
        assert len(shown.kinks) == 0 and not shown.kinks.jumps, str(shown.kinks)


@pytest.mark.parametrize("limit", [40, 2_000, 4_000_000])
def test_kinks_are_all_found_when_few_switches_fit_into_memory(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierfl.inspect.kinks.switch_changes.VALUES_LIMIT", limit)
    draw = np.random.default_rng(3)
    b, d = draw.normal(size=(12, 2)), draw.normal(size=12)
    x, y = cp.Variable(2, name="x"), cp.Variable(12, name="y")
    lower = hf.ArgMin(y, 0.5 * cp.sum_squares(y - b @ x - d), [y >= -0.5, y <= 0.5])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), lower, [cp.abs(x) <= 1])
    line = problem.implicit.slice([0.0, 0.0], direction=[1, 0], radius=1.0, points=21, progress=False)
    ends = np.concatenate([(side - d) / b[:, 0] for side in (-0.5, 0.5)])
    np.testing.assert_allclose([kink.t for kink in line.kinks], np.sort(ends[np.abs(ends) < 1]), atol=1e-9)


# --- Slices that follow y between their kinks: places and slopes by hand.


SIZE, POINTS = 160, 41  # more unknowns than are solved many at once
MIXED = np.tril(np.ones((SIZE, SIZE)))  # of y, so that no projection has a formula


def _sliced(level: Any, rows: Any, upper: Any, x: cp.Variable, y: cp.Variable, radius: float = 1.0) -> Any:
    problem = hf.Problem(hf.Minimize(clients=upper), hf.ArgMin(y, level, rows), constraints=[cp.abs(x) <= 3])
    return problem.implicit.slice(0.0, direction=1.0, radius=radius, points=POINTS, progress=False)


def test_pieces_on_a_simplex_are_all_found() -> None:
    """z = L y is the projection of c + d x on the simplex: entry i comes in, or goes, where it is at the threshold of the others."""
    draw = np.random.default_rng(3)
    c, d, w = draw.normal(size=SIZE), draw.normal(size=SIZE), draw.normal(size=SIZE)
    x, y = cp.Variable(name="x"), cp.Variable(SIZE, name="y")
    z = MIXED @ y
    shown = _sliced(0.5 * cp.sum_squares(z - c - d * x), [z >= 0, cp.sum(z) == 1], w @ z, x, y)

    def held(t: float) -> np.ndarray:
        v = c + d * t
        order = np.sort(v)[::-1]
        thetas = (np.cumsum(order) - 1) / np.arange(1, SIZE + 1)
        return np.asarray(v > thetas[order > thetas][-1])

    def slope(t: float) -> float:
        on = held(t)
        return float(w[on] @ (d[on] - d[on].mean()))

    expected, dense = [], np.linspace(-1, 1, 4001)
    for a, b in pairwise(dense):
        if (held(a) != held(b)).any():
            (i,) = np.flatnonzero(held(a) != held(b))
            on = held(a) & held(b)
            expected.append(-(c[i] - (c[on].sum() - 1) / on.sum()) / (d[i] - d[on].mean()))
    np.testing.assert_allclose(places(shown), expected, atol=1e-12)
    sides = np.array([(slope(t - 1e-6), slope(t + 1e-6)) for t in expected])
    np.testing.assert_allclose(slopes(shown), sides, atol=1e-9)
    assert len(expected) > 4


def test_many_kinks_between_two_points() -> None:
    """y_i = clip(x - s_i) with sixty s_i between two neighbouring points of the slice."""
    s = np.concatenate([np.linspace(0.011, 0.039, 60), np.full(SIZE - 60, 5.0)])
    weights = np.random.default_rng(1).uniform(1, 2, SIZE)
    x, y = cp.Variable(name="x"), cp.Variable(SIZE, name="y")
    shown = _sliced(0.5 * cp.sum_squares(MIXED @ y - x + s), [MIXED @ y >= 0], weights @ (MIXED @ y), x, y)
    np.testing.assert_allclose(places(shown), s[:60], atol=1e-10)
    steps = np.cumsum(weights[:60])
    np.testing.assert_allclose(slopes(shown), np.stack([steps - weights[:60], steps], axis=1), atol=1e-7)


def test_curved_pieces_are_followed_to_their_ends() -> None:
    """y_i = clip(exp(x) - s_i, 0): a kink at log(s_i), with slopes from 0 to s_i, of which f sees every fourth."""
    s = np.concatenate([np.exp(np.linspace(-0.83, 0.77, 16)), np.full(SIZE - 16, 9.0)])
    x, y = cp.Variable(name="x"), cp.Variable(SIZE, name="y")
    seen = MIXED @ y
    shown = _sliced(0.5 * cp.sum_squares(seen - cp.exp(x) + s), [seen >= 0], cp.sum(seen[:16:4]), x, y)
    np.testing.assert_allclose(places(shown), np.log(s[:16:4]), atol=1e-10)
    bends = np.diff(slopes(shown), axis=1)[:, 0]
    np.testing.assert_allclose(bends, s[:16:4], atol=1e-7)


def test_a_kink_a_rounding_beside_a_point_is_not_lost_to_the_next_one() -> None:
    """Kinks within rounding of a point of the slice, and others before the next point."""
    spacing = 2.0 / (POINTS - 1)
    s = np.concatenate([spacing * np.arange(1, 8) + np.array([-3, -1, -0.3, 0, 0.3, 1, 3]) * 1e-13, spacing * (np.arange(1, 8) + 0.3), np.full(SIZE - 14, 5.0)])
    x, y = cp.Variable(name="x"), cp.Variable(SIZE, name="y")
    shown = _sliced(0.5 * cp.sum_squares(MIXED @ y - x + s), [MIXED @ y >= 0], cp.sum(MIXED @ y), x, y)
    np.testing.assert_allclose(places(shown), np.sort(s[:14]), atol=1e-10)
    np.testing.assert_allclose(slopes(shown), np.stack([np.arange(14.0), np.arange(1, 15.0)], axis=1), atol=1e-7)


@pytest.mark.parametrize("shift, points", [(0.0, 20), (1 / 3, 21)])
def test_kinks_beside_which_there_is_no_slope(shift: float, points: int) -> None:
    """At most half of the sum of two sizes is taken off V = diag(x - .2, x + .1): what is left is 0 for x in [-.2, .3], beside which ties leave no gradient."""
    x, y = cp.Variable(name="x"), cp.Variable((2, 2), name="y")
    below = cp.sum_squares(y - (x - shift) * np.eye(2)) + cp.sigma_max(y - np.diag([0.2, -0.1]))
    line = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, below)).implicit.slice(0.0, radius=1.0, points=points)
    assert [kink.t for kink in line.kinks] == pytest.approx([shift - 0.2, shift + 0.3], abs=1e-6) and not line.kinks.jumps
    slopes = [slope for kink in line.kinks for slope in (kink.left_slope, kink.right_slope)]
    assert slopes == pytest.approx([2.0, 0.0, 0.0, 2.0], abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_every_tie_of_the_largest_entries_is_a_kink(seed: int) -> None:
    """y = v - u minimises |y - v|^2 / 2 + the sum of the 2 largest entries, u nearest to v in {0 <= u <= 1, sum u = 2}: piecewise linear in v."""
    rng = np.random.default_rng(seed)
    start, way, weights = rng.normal(size=(3, 4))
    x, y = cp.Variable(name="x"), cp.Variable(4, name="y")
    level = hf.ArgMin(y, 0.5 * cp.sum_squares(y - start - way * x) + cp.sum_largest(y, 2))
    line = hf.Problem(hf.Minimize(clients=weights @ y), level).implicit.slice(0.0, radius=2.0, points=41)
    t = np.linspace(-2.0, 2.0, 40_001)
    v = start + way * t[:, None]
    low, high = v.min(axis=1) - 1, v.max(axis=1)
    for _ in range(60):
        middle = 0.5 * (low + high)
        more = np.clip(v - middle[:, None], 0, 1).sum(axis=1) > 2
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    f = (v - np.clip(v - low[:, None], 0, 1)) @ weights
    bends = np.flatnonzero(np.abs(np.diff(f, 2)) > 1e-9) + 1
    firsts = bends[np.diff(bends, prepend=-9) > 3]
    assert [kink.t for kink in line.kinks] == pytest.approx(t[firsts], abs=3e-4) and len(firsts) > 2


SORTED: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {  # CVXPY's, and that of rows of NumPy
    "dotsort": (lambda y: cp.dotsort(y, np.arange(1.0, 7.0)), lambda y: np.sort(y, axis=1) @ np.arange(1.0, 7.0)),
    "cummax": (lambda y: cp.sum(cp.cummax(y)), lambda y: np.maximum.accumulate(y, axis=1).sum(axis=1)),
    "nuclear norm": (
        lambda y: cp.normNuc(cp.reshape(y, (3, 2), order="F")[:2]),
        lambda y: np.linalg.svd(y.reshape(-1, 2, 3).transpose(0, 2, 1)[:, :2], compute_uv=False).sum(axis=1),
    ),
}


@pytest.mark.parametrize("name", SORTED)
@pytest.mark.parametrize("seed", range(2))
def test_kinks_where_an_order_changes(name: str, seed: int) -> None:
    start, way = np.random.default_rng(seed).normal(size=(2, 6))
    x, y = cp.Variable(name="x"), cp.Variable(6, name="y")
    level = hf.ArgMin(y, cp.sum_squares(y - start - way * x) + 0.2 * cp.norm1(y))
    line = hf.Problem(hf.Minimize(clients=SORTED[name][0](y)), level).implicit.slice(0.0, radius=2.0, points=81)
    t = np.linspace(-2.0, 2.0, 100_001)
    aim = start + way * t[:, None]
    f = SORTED[name][1](np.sign(aim) * np.maximum(np.abs(aim) - 0.1, 0.0))
    bends = np.flatnonzero(np.abs(np.diff(f, 2)) > 3e-7) + 1
    firsts = bends[np.diff(bends, prepend=-9) > 3]
    assert len(line.kinks) >= len(firsts) > 3
    assert np.abs(np.array([kink.t for kink in line.kinks])[:, None] - t[firsts]).min(axis=0).max() < 1e-4


@pytest.mark.parametrize("seed", [4, 13, 16, 39])
def test_few_points_show_the_kinks_that_many_show(seed: int) -> None:
    """Several in a cell, switches that let go and hold again there, and places at which the level has no answer: with the slopes that f has beside them."""
    rng = np.random.default_rng(seed)
    x, y, (c, d, e, g) = cp.Variable(name="x"), cp.Variable(4, name="y"), rng.normal(size=(4, 4))
    cost = 0.3 * cp.square(cp.norm1(y - c * x)) + 0.5 * cp.sum_largest(y - d * x, 2) + 0.1 * cp.sum_squares(y - e)
    level = hf.ArgMin(y, cost, [cp.norm1(y - 0.1 * x) <= 1.5])
    implicit = hf.Problem(hf.Minimize(server=cp.norm1(y - g)), level, [cp.abs(x) <= 1]).implicit
    few, many = (implicit.slice(0.0, radius=0.9, points=points, progress=False).kinks for points in (21, 121))
    np.testing.assert_allclose([kink.t for kink in few], [kink.t for kink in many], atol=1e-6)
    for kink in few:
        for side, slope in ((-1, kink.left_slope), (1, kink.right_slope)):
            near, far = (implicit(kink.t + side * step) for step in (1e-5, 2e-5))
            assert side * (far - near) / 1e-5 == pytest.approx(slope, abs=1e-3)
