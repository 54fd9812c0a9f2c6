"""Which expressions have a continuous gradient, compared with one-sided slopes of their values as CVXPY gives them."""

from __future__ import annotations

from itertools import product
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.analysis.convexity import kinked_atom
from hierfl.analysis.enclosure import Enclosure
from hierfl.atoms.intervals import Interval

y, z, v = cp.Variable(name="y"), cp.Variable(name="z"), cp.Variable(2, name="v")
STEP, NARROW = 1e-8, 1e-3  # a power 1.5 turns by the root of the step, 1e-4
WEIGHTS = np.array([1.0, -2.0])

SMOOTH = [
    cp.square(cp.pos(y)),
    cp.power(cp.pos(y), 1.5),
    cp.power(cp.abs(y), 1.5),
    cp.power(cp.norm(y), 1.5),
    cp.square(cp.maximum(y, 0)) * z,
    cp.square(3 * cp.neg(2 * y - 2)),
    cp.square(z * cp.pos(y)),
    cp.square(cp.pos(cp.pos(y))),
    cp.square(cp.square(cp.pos(y)) - 1),
    cp.huber(cp.abs(y)),
    cp.huber(cp.minimum(y, 0), 0.5),
    cp.norm(cp.hstack([y, 1])),
    cp.pnorm(cp.hstack([y, 1]), 3),
    cp.pos(cp.square(y) + 1),
    cp.square(cp.norm(v)),
    cp.square(cp.norm(cp.pos(v - 1))),
    cp.sum_squares(cp.pos(v)),
    cp.sum_squares(cp.hstack([cp.pos(y), z])),
    cp.sum(cp.square(cp.pos(np.array([[1.0, 1.0], [1.0, -1.0]]) @ v))),
    cp.sum_squares(cp.multiply(WEIGHTS, cp.pos(v))),
    cp.quad_over_lin(cp.pos(v), 2.0),
    cp.sqrt(cp.square(y) + 1),
    cp.square(cp.sqrt(cp.sum_squares(v))),
]
KINKED = [
    cp.pos(y),
    cp.square(cp.pos(y) + 1),
    cp.square(cp.maximum(y, 1)),
    cp.square(y + cp.pos(y) + 1),
    cp.square(cp.pos(y)) + cp.abs(y),
    cp.square(cp.sqrt(cp.abs(y))),
    cp.sqrt(cp.square(y)),
    cp.sqrt(cp.sum_squares(v)),
    cp.sqrt(cp.square(cp.sqrt(cp.square(cp.abs(y) + 1)))),
    cp.power(cp.abs(y), 1.0),
    cp.exp(cp.pos(y)),
    cp.huber(cp.pos(y) - 1),
    cp.abs(cp.square(y) - 1),
    cp.square(cp.maximum(y, z)),
    cp.norm(v),
    cp.norm(cp.hstack([y, z])),
    cp.norm(cp.hstack([cp.pos(y) + 1, z])),
    cp.norm1(v),
    cp.square(cp.norm1(v)),
    cp.square(cp.sum(cp.pos(v))),
    cp.square(cp.max(v)),
    cp.quad_form(cp.pos(v), np.ones((2, 2))),
    cp.sum_squares(cp.hstack([cp.maximum(y, 1), z])),
    cp.sum_squares(cp.cumsum(cp.pos(v))),
]


def turns(expression: Any) -> float:
    """The largest difference of the slopes on both sides of a point, at points where terms of these expressions have their kinks."""
    widest, leaves = 0.0, expression.variables()
    for point in product((-2.0, -1.0, 0.0, 0.5, 1.0), repeat=sum(leaf.size for leaf in leaves)):
        for direction in ((1.0, 0.3), (0.7, -1.0)):
            values = []
            for step in (-STEP, 0.0, STEP):
                flat = list(np.array(point) + step * np.resize(direction, len(point)))
                for leaf in leaves:
                    leaf.value = np.reshape([flat.pop(0) for _ in range(leaf.size)], leaf.shape)
                values.append(float(expression.value))
            widest = max(widest, abs(values[0] + values[2] - 2 * values[1]) / STEP)
    return widest


@pytest.mark.parametrize("expression", SMOOTH, ids=str)
def test_expressions_whose_kinks_are_flattened_are_smooth(expression: Any) -> None:
    assert turns(expression) < NARROW
    assert kinked_atom(expression, [y, v], Enclosure()) is None


@pytest.mark.parametrize("expression", KINKED, ids=str)
def test_kinks_that_are_left(expression: Any) -> None:
    assert turns(expression) > 100 * NARROW
    assert kinked_atom(expression, [y, z, v], Enclosure()) is not None


def test_kinks_of_others_and_kinks_that_bounds_rule_out() -> None:
    assert kinked_atom(cp.square(y) + cp.abs(z) * y, [y], Enclosure()) is None
    assert kinked_atom(cp.abs(y), [y], Enclosure({y.id: Interval(np.array(0.5), np.array(2.0))})) is None
    assert (
        kinked_atom(cp.abs(y), [y], Enclosure({y.id: Interval(np.array(0.0), np.array(2.0))})) is not None
    )  # at the end
    assert str(kinked_atom(cp.square(y) + cp.exp(cp.pos(y - 1)), [y], Enclosure())) == "maximum(y + -1.0, 0.0)"


def test_the_player_and_the_atom_are_named() -> None:
    x = cp.Variable(name="x")
    for objective, told in (
        (cp.square(y - x) + cp.abs(y), r"abs\(y\)"),
        (cp.square(y + cp.pos(y)), r"maximum\(y, 0\)"),
    ):
        player = hf.Player(y, objective)
        with pytest.raises(
            hf.DeclarationError,
            match=rf"{told} in the objective of player 'y' is not differentiable.*constraint {told} <= t",
        ):
            hf.Problem(hf.Minimize(clients=cp.square(x)), hf.Nash(player))
