"""Prices at which those below do what is best above: found where there are any, and nowhere else."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.descent.shared_best import shared_best

CAP = np.array([1.0, 2.0, 3.0])


def priced(target: np.ndarray, low: float = -20.0, moves_rows: bool = False, bent: bool = False) -> hf.Problem:
    """Shares of three goods, each with a cap and a price; above, they should be near a target."""
    price, y = cp.Variable(3, name="price"), cp.Variable(3, name="y")
    charged = cp.square(price) if bent else price
    rows = [y >= 0, y <= (CAP + 0.1 * price if moves_rows else CAP), cp.sum(y) == 2.0]
    return hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - target)),
        hf.ArgMin(y, np.array([3.0, 1.0, 0.0]) @ y + 0.05 * cp.sum(cp.power(y, 4)) + charged @ y, rows),
        [price >= low, price <= 20.0],
    )


def nearest(target: np.ndarray) -> np.ndarray:
    y = cp.Variable(3)
    cp.Problem(cp.Minimize(cp.sum_squares(y - target)), [y >= 0, y <= CAP, cp.sum(y) == 2.0]).solve(solver="CLARABEL")
    return np.asarray(y.value)


@pytest.mark.parametrize("target", [np.array([0.5, 0.7, 0.4]), np.array([4.0, 0.1, 0.1]), np.array([0.0, 0.0, 9.0])])
def test_prices_bring_what_is_best_above(target: np.ndarray) -> None:
    """Inside, and at bounds."""
    problem = priced(target)
    found = shared_best(problem.compile(), np.zeros(3))
    assert found is not None
    np.testing.assert_allclose(problem.implicit.response(found), nearest(target), atol=1e-5)
    best = problem.solve(progress=False)
    assert best.value == pytest.approx(float(np.sum((nearest(target) - target) ** 2)), abs=1e-8)


def test_what_no_price_brings_is_not_claimed() -> None:
    """The first good is dear, and may not be subsidised: prices of others are limited as well."""
    assert shared_best(priced(np.array([1.0, 0.5, 0.5]), low=0.0).compile(), np.zeros(3)) is not None  # others may be dear
    price, y = cp.Variable(name="price"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, 5.0 * y[0] + cp.sum_squares(y) + price * y[1], [y >= 0, cp.sum(y) == 1])
    problem = hf.Problem(hf.Minimize(clients=cp.square(y[0] - 1.0)), level, [price >= 0, price <= 1])
    assert shared_best(problem.compile(), np.zeros(1)) is None


@pytest.mark.parametrize("settings", [{"moves_rows": True}, {"bent": True}])
def test_other_kinds_are_left_alone(settings: dict[str, bool]) -> None:
    """Where x moves the rows, or prices are no affine function of x."""
    assert shared_best(priced(np.array([0.5, 0.7, 0.4]), **settings).compile(), np.ones(3)) is None


def test_what_is_not_convex_together_is_left_alone() -> None:
    price, y = cp.Variable(2, nonneg=True, name="price"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum(cp.power(y, 4)) + price @ y, [y >= 0, cp.sum(y) >= 1])
    assert shared_best(hf.Problem(hf.Maximize(clients=price @ y), level, [price <= 3]).compile(), np.zeros(2)) is None
