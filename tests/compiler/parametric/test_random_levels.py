"""Levels drawn at random against CVXPY, and the same bits after any other questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.compiler.parametric.random_declarations import draw, faults


@pytest.mark.parametrize("seed", [*range(8), 40, 100])  # of the last two interior points leave NaN beside a rough answer
def test_a_declaration_drawn_at_random_is_answered_right(seed: int) -> None:
    assert not faults(draw(seed), Counter())


Draw = np.random.Generator
Level = Callable[[Draw, cp.Variable, cp.Variable], hf.ArgMin]


def lasso(draw: Draw, x: cp.Variable, y: cp.Variable) -> hf.ArgMin:
    rows, noise = draw.normal(size=(30, y.size)), draw.normal(size=30)
    return hf.ArgMin(y, 0.1 * cp.sum_squares(rows @ y - noise - x[0]) + 0.5 * cp.norm1(y))


def over_rows(draw: Draw, x: cp.Variable, y: cp.Variable) -> hf.ArgMin:
    rows = draw.normal(size=(8, y.size))
    return hf.ArgMin(y, 0.5 * cp.sum_squares(y - x[1]), [rows @ y <= 1 + 0.1 * x[0], y >= -0.3, cp.sum(y) == x[0]])


def linear(draw: Draw, x: cp.Variable, y: cp.Variable) -> hf.ArgMin:
    cost = draw.uniform(1, 2, y.size) + draw.normal(size=(y.size, 2)) @ x
    return hf.ArgMin(y, cost @ y, [cp.sum(y) == 3, y >= 0, y <= 1])


def with_ties(draw: Draw, x: cp.Variable, y: cp.Variable) -> hf.ArgMin:
    return hf.ArgMin(y, cp.sum(cp.pos(y - x[0])) + cp.max(y + x[1]), [y >= -1, cp.sum(y) >= 0])


@pytest.mark.parametrize("level", [lasso, over_rows, linear, with_ties], ids=lambda level: level.__name__)
def test_answers_are_the_same_bits_after_any_others(level: Level) -> None:
    """Along a line with kinks, as far apart as a run's points are and as near as a slice's."""

    def asked(points: np.ndarray) -> list[tuple[np.ndarray, float]]:
        x, y = cp.Variable(2, name="x"), cp.Variable(12, name="y")
        problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 0.2) + x @ x), lower=level(np.random.default_rng(0), x, y))
        return [(problem.implicit.response(at), problem.implicit(at)) for at in points]

    near = np.array([0.2, -0.1]) + 1e-9 * np.arange(-3, 4)[:, None]
    line = np.concatenate([np.linspace(-1, 1, 41)[:, None] * [1.0, 0.4], near])
    ahead, back = asked(line), asked(line[::-1])[::-1]
    alone = {k: asked(line[k : k + 1])[0] for k in range(0, len(line), 12)}
    for (y, value), (other, another) in [*zip(ahead, back), *((ahead[k], one) for k, one in alone.items())]:
        assert np.array_equal(y, other)
        assert value == another
