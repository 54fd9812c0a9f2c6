"""Levels drawn at random against CVXPY, flows over networks against enumeration, and the same bits after any other questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.bilevel_answers import quadratic_answer
from tests.bilevel_case import gradient_by_differences, is_smooth
from tests.bilevel_models import incidence
from tests.compiler.parametric.engines import Engine, near
from tests.compiler.parametric.random_declarations import draw, faults


@pytest.mark.parametrize("seed", [*range(8), 40, 100])  # of the last two interior points leave NaN beside a rough answer
def test_a_declaration_drawn_at_random_is_answered_right(seed: int) -> None:
    assert not faults(draw(seed), Counter())


STEP = 1e-4


def arcs(rng: np.random.Generator) -> list[tuple[str, str]]:
    """The path 1, 2, 3, 4, two shortcuts, perhaps a second road along it, and arcs out of 0, which no arc enters."""
    forward = [("1", "3"), ("1", "4"), ("2", "4"), ("2", "3"), ("3", "4")]
    chosen = [forward[k] for k in rng.choice(5, 2, replace=False)]
    unreached = [("0", str(k)) for k in rng.choice([1, 2, 3, 4], rng.integers(1, 3), replace=False)]
    found = [("1", "2"), ("2", "3"), ("3", "4"), *chosen, *unreached]
    return [found[k] for k in rng.permutation(len(found))]


@pytest.mark.parametrize("seed", range(24))
def test_values_responses_and_gradients(seed: int, engine: Engine) -> None:
    rng = np.random.default_rng(seed)
    conserve, sent = incidence(tuple(arcs(rng)), "01234"), np.array([0, 1.0, 0, 0, -1])
    size = conserve.shape[1]
    weights = rng.standard_normal(size)

    def flows(x: np.ndarray) -> np.ndarray:
        return quadratic_answer(np.eye(size), x, -np.eye(size), np.zeros(size), equal=conserve, totals=sent)

    def value(x: np.ndarray) -> float:
        return float(np.sum(flows(x) ** 2) + weights @ flows(x))

    x, y = cp.Variable(size, name="x"), cp.Variable(size, name="y")
    below = hf.ArgMin(y, 0.5 * cp.sum_squares(y) + x @ y, [conserve @ y == sent, y >= 0])
    problem = engine(hf.Problem(hf.Minimize(clients=cp.sum_squares(y) + weights @ y), lower=below))
    drawn = (0.6 * rng.standard_normal(size) for _ in range(100))
    for at in islice((at for at in drawn if is_smooth(value, at, STEP)), 4):
        near(problem.implicit.response(at), flows(at))
        near(problem.implicit(at), value(at))
        near(problem.implicit.gradient(at), gradient_by_differences(value, at, STEP), 1e-8)


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
