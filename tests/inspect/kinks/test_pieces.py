"""Slices that follow y between their kinks: places and slopes by hand, and how few points are solved at."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.inspect.implicit.points import Points
from tests.inspect.known_functions import places, slopes

SIZE, POINTS = 160, 41  # more unknowns than are solved many at once
MIXED = np.tril(np.ones((SIZE, SIZE)))  # of y, so that no projection has a formula


def _sliced(level: Any, rows: Any, upper: Any, x: cp.Variable, y: cp.Variable, radius: float = 1.0) -> Any:
    problem = hf.Problem(hf.Minimize(clients=upper), hf.ArgMin(y, level, rows), constraints=[cp.abs(x) <= 3])
    return problem.implicit.slice(0.0, direction=1.0, radius=radius, points=POINTS, progress=False)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many points each question solved the lower level at."""
    counts: list[int] = []
    asked = Points._pieces

    def counted(self: Points, name: Any, one: Any, points: np.ndarray, *more: np.ndarray, **named: Any) -> Any:
        if name not in ("slopes of answers", "switches of answers"):
            counts.append(len(points))
        return asked(self, name, one, points, *more, **named)

    monkeypatch.setattr(Points, "_pieces", counted)
    return counts


def test_pieces_on_a_simplex_are_found_from_a_point_each(looked_at: list[int]) -> None:
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
    assert sum(looked_at) <= POINTS + 2 * len(expected)


def test_many_kinks_between_two_points_take_a_point_for_each_piece(looked_at: list[int]) -> None:
    """y_i = clip(x - s_i) with sixty s_i between two neighbouring points of the slice."""
    s = np.concatenate([np.linspace(0.011, 0.039, 60), np.full(SIZE - 60, 5.0)])
    weights = np.random.default_rng(1).uniform(1, 2, SIZE)
    x, y = cp.Variable(name="x"), cp.Variable(SIZE, name="y")
    shown = _sliced(0.5 * cp.sum_squares(MIXED @ y - x + s), [MIXED @ y >= 0], weights @ (MIXED @ y), x, y)
    np.testing.assert_allclose(places(shown), s[:60], atol=1e-10)
    steps = np.cumsum(weights[:60])
    np.testing.assert_allclose(slopes(shown), np.stack([steps - weights[:60], steps], axis=1), atol=1e-7)
    assert sum(looked_at) <= POINTS + 2 * 60


def test_curved_pieces_are_followed_to_their_ends() -> None:
    """y_i = clip(exp(x) - s_i, 0): a kink at log(s_i), with slopes from 0 to s_i."""
    s = np.exp(np.linspace(-0.83, 0.77, SIZE))
    x, y = cp.Variable(name="x"), cp.Variable(SIZE, name="y")
    seen = MIXED @ y
    shown = _sliced(0.5 * cp.sum_squares(seen - cp.exp(x) + s), [seen >= 0], cp.sum(seen[::40]), x, y)
    np.testing.assert_allclose(places(shown), np.log(s[::40]), atol=1e-10)
    bends = np.diff(slopes(shown), axis=1)[:, 0]
    np.testing.assert_allclose(bends, s[::40], atol=1e-7)


def test_a_jump_between_vertices_is_where_the_prices_are_alike() -> None:
    """min (x - 0.3) sum(y) over a box whose rows are mixed: y leaps from 1 to 0 at x = 0.3."""
    x, y = cp.Variable(name="x"), cp.Variable(SIZE, name="y")
    shown = _sliced((x - 0.3) * cp.sum(MIXED @ y), [MIXED @ y >= 0, MIXED @ y <= 1], cp.sum(MIXED @ y), x, y)
    (jump,) = shown.kinks.jumps
    assert jump.t == pytest.approx(0.3, abs=1e-9)
    assert (jump.left, jump.right) == pytest.approx((SIZE, 0.0))
    assert not len(shown.kinks)


def test_a_kink_a_rounding_beside_a_point_is_not_lost_to_the_next_one() -> None:
    """Kinks within rounding of a point of the slice, and others before the next point."""
    spacing = 2.0 / (POINTS - 1)
    s = np.concatenate([spacing * np.arange(1, 8) + np.array([-3, -1, -0.3, 0, 0.3, 1, 3]) * 1e-13, spacing * (np.arange(1, 8) + 0.3), np.full(SIZE - 14, 5.0)])
    x, y = cp.Variable(name="x"), cp.Variable(SIZE, name="y")
    shown = _sliced(0.5 * cp.sum_squares(MIXED @ y - x + s), [MIXED @ y >= 0], cp.sum(MIXED @ y), x, y)
    np.testing.assert_allclose(places(shown), np.sort(s[:14]), atol=1e-10)
    np.testing.assert_allclose(slopes(shown), np.stack([np.arange(14.0), np.arange(1, 15.0)], axis=1), atol=1e-7)
