"""Flows over random networks with nodes that nothing reaches, against enumeration: one equation is redundant, flows are forced to 0."""

from __future__ import annotations

from itertools import islice

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.bilevel_answers import quadratic_answer
from tests.bilevel_case import gradient_by_differences, is_smooth
from tests.bilevel_models import incidence
from tests.compiler.parametric.engines import Engine, near

STEP = 1e-4


def arcs(rng: np.random.Generator) -> list[tuple[str, str]]:
    """The path 1, 2, 3, 4, two shortcuts, perhaps a second road along it, and arcs out of 0, which no arc enters."""
    forward = [("1", "3"), ("1", "4"), ("2", "4"), ("2", "3"), ("3", "4")]
    chosen = [forward[k] for k in rng.choice(5, 2, replace=False)]
    unreached = [("0", str(k)) for k in rng.choice([1, 2, 3, 4], rng.integers(1, 3), replace=False)]
    found = [("1", "2"), ("2", "3"), ("3", "4"), *chosen, *unreached]
    return [found[k] for k in rng.permutation(len(found))]


@pytest.mark.parametrize("seed", range(40))
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
