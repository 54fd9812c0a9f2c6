"""Hinges of one argument are one: the same function, whatever they look like, and others are left alone."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.analysis.hoist import instantiate
from hierfl.compiler.lower_level.on_host.joined_hinges import with_joined_hinges

Y = cp.Variable(2, name="y")
D = hf.Sample(2, name="d")
C = hf.ClientParameter(name="c", nonneg=True)
W = cp.Variable(name="w")
A = cp.abs(D[0])

SUMS: dict[str, tuple[list[Any], int]] = {  # parts, and how many are left
    "newsvendor": ([2 * cp.pos(D[0] - Y[0]), cp.pos(Y[0] - D[0])], 1),
    "newsvendors, with a client's price": ([C * cp.sum(cp.pos(D - Y)), 0.5 * cp.sum(cp.pos(Y - D))], 1),
    "size and hinge": ([cp.abs(D[0] - Y[0]), 3 * cp.pos(D[0] - Y[0])], 1),
    "negative parts": ([cp.neg(Y[0] - D[0]), -cp.minimum(D[0] - Y[0], 0), cp.pos(Y[1])], 2),
    "written otherwise": ([cp.pos(2 * (Y[0] - D[0])), cp.pos(2 * D[0] - 2 * Y[0])], 1),
    "moved with x": ([W**2 * cp.pos(Y[0] - W), cp.pos(W - Y[0])], 1),
    "concave": ([-2 * cp.pos(D[0] - Y[0]), -cp.pos(Y[0] - D[0])], 1),
    "others": ([cp.pos(Y[0]), cp.pos(Y[0] + 1), cp.pos(2 * Y[0]), cp.max(Y)], 4),
    "data with pieces": ([cp.pos(cp.abs(D[0]) - Y[0]), cp.pos(Y[0] - D[0])], 2),  # they agree for positive data
    "the same data with pieces": ([2 * cp.pos(Y[0] - A), cp.abs(Y[0] - A)], 2),
    "of other shapes": ([cp.sum(cp.pos(Y)), cp.pos(Y[0])], 2),
    "larger floors": ([cp.maximum(Y[0], 1), cp.maximum(-Y[0], 1)], 2),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_sum_is_the_same(name: str) -> None:
    parts, left = SUMS[name]
    joined = with_joined_hinges(parts, {Y.id})
    assert len(joined) == left
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = {leaf: rng.normal(size=leaf.shape) for leaf in (Y, D, C, W)}
        before, after = (instantiate([sum(some)], values)[0].value for some in (parts, joined))
        assert float(after) == pytest.approx(float(before), rel=1e-12, abs=1e-12)


def test_data_of_either_sign() -> None:
    """|d| and d are the same for positive data alone: y is where 2 P(|d| > y) - P(d < y) meets (y - x) / 10."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    rows = np.array([-3.0, -1.0, 2.0, 5.0])
    lower = hf.ArgMin(y, hf.E(2 * cp.pos(cp.abs(d) - y) + cp.pos(y - d)) + 0.05 * cp.square(y - x))
    implicit = hf.Problem(hf.Minimize(clients=y), lower, federation=hf.Federation([hf.Client({d: rows})])).implicit
    for at in (0.0, 3.0, -5.0, 20.0):
        answer = float(implicit.response(at))
        side = [
            -2 * np.mean(np.abs(rows) > answer + s) + np.mean(rows < answer + s) + 0.1 * (answer - at)
            for s in (-1e-9, 1e-9)
        ]
        assert side[0] <= 1e-9 and side[1] >= -1e-9


def test_quantiles_have_gradients_in_the_company_of_others() -> None:
    """Both hinges hold at a row of data: what is left has one multiplier, and slopes along a line are those of each point alone."""
    rng = np.random.default_rng(1)
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    data = rng.normal(size=80)
    lower = hf.ArgMin(y, hf.E(3 * cp.pos(d - y) + cp.pos(y - d)) + x * y + 0.05 * cp.square(y))
    problem = hf.Problem(hf.Minimize(clients=y), lower, federation=hf.Federation([hf.Client({d: data})]))
    slope = problem.implicit.slice(0.0, radius=0.5, points=41)
    for kink in slope.kinks:
        sides = sorted((kink.left_slope, kink.right_slope))
        assert sides == pytest.approx(
            [-10.0, 0.0], abs=1e-6
        )  # between two rows of data the curvature 1/10 alone is left
    assert len(slope.kinks) > 20
    places = np.linspace(-0.5, 0.5, 23)
    alone = [float(problem.implicit.gradient(at)) for at in places]
    assert {round(slope, 6) for slope in alone} <= {-10.0, 0.0, -0.0}
