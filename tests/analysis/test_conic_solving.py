"""Conic programs that hierfl poses are judged by hierfl: CVXPY's warnings reach nobody, its inaccurate answers are within 1e-8."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

pytestmark = pytest.mark.filterwarnings("error")


Made = Callable[[cp.Variable, cp.Variable], hf.ArgMin]


@pytest.mark.parametrize(
    ("below", "answer"),
    [
        (  # an entropy: softmax
            lambda x, y: hf.ArgMin(y, -cp.sum(cp.entr(y)) + x @ y, [y >= 0, cp.sum(y) == 1]),
            lambda x: np.exp(-x) / np.exp(-x).sum(),
        ),
        (  # not DPP: a product of two parameters
            lambda x, y: hf.ArgMin(y, cp.norm1(y) + cp.sum_squares(y - x) + x[0] * (cp.sum(y) + x[1])),
            lambda x: np.sign(x - x[0] / 2) * np.maximum(np.abs(x - x[0] / 2) - 0.5, 0),
        ),
        (  # not DPP in a set
            lambda x, y: hf.ArgMin(y, cp.sum_squares(y - x), [cp.power(y[0], 4) + x[0] * (y[0] + x[1]) <= 10]),
            None,
        ),
    ],
)
def test_no_warning_of_cvxpys_reaches_a_user(below: Made, answer: Callable[[np.ndarray], np.ndarray] | None) -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x + 1 - y)), lower=below(x, y), constraints=[x >= 0])
    for point in np.random.default_rng(3).uniform(0, 1.5, (3, 2)):
        response = problem.implicit.response(point)
        assert answer is None or np.abs(response - answer(point)).max() < 1e-6
    problem.check(samples=4, progress=False)
