"""Published optima of the models by which BilevelJuMP is tested (Dias Garcia, Bodin and Street, 2024), from their mathematics: conditions on y, prices, cones, ties.

Those of them that BOLIB has too are in ``tests/benchmarks/bolib.py``. Minimised, with x of the first size and y of the second; a value is that of the published point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.inspect.proved.test_proof import proved

Model = tuple[float, tuple[int, int], Callable[[Any, Any], tuple[Any, list[Any], Any, list[Any]]]]  # value, sizes, (f, constraints, lower objective, its rows)
COSTS, WEIGHTS = np.array([-4.0, -40, -4, 0, 0, 0]), np.array([1.0, 1, 2, 0, 0, 0])
CLAUSES = ((1, 2, 3), (-1, -4, 3), (7, -6, 4), (5, 6, 7))


def slack_rows(x: Any, y: Any) -> list[Any]:
    sums = [-y[0] + y[1] + y[2] + y[3], -y[0] + 2 * y[1] - 0.5 * y[2] + y[4] + 2 * x[0], 2 * y[0] - y[1] - 0.5 * y[2] + y[5] + 2 * x[1]]
    return [y >= 0, *(each == 1 for each in sums)]


def satisfiable(x: Any, y: Any) -> tuple[Any, list[Any], Any, list[Any]]:
    """Clauses of three literals: -1 if and only if some truth satisfies them all."""
    true, false, z = x[:7], x[7:14], x[14]
    clauses = [sum(true[i - 1] if i > 0 else false[-i - 1] for i in clause) >= z for clause in CLAUSES]
    return cp.sum(y) - z, [x >= 0, x <= 1, true + false == 1, *clauses], -cp.sum(y), [y >= 0, y <= true, y <= false]


def efficient_point(x: Any, y: Any) -> tuple[Any, list[Any], Any, list[Any]]:
    rows = [
        -x[0] + 0.2 * x[1] + x[4] + 2 * x[5] - 4 * y[0] + 2 * y[1] + y[2] <= 12,
        x[0] + x[2] - 2 * x[3] - 4 * y[1] + y[2] <= 10,
        5 * x[0] + x[3] + 3.2 * x[5] + 2 * y[0] + 2 * y[1] <= 15,
        -3 * x[1] - x[3] + x[4] - 2 * y[0] <= 12,
        -2 * x[0] - x[1] - y[1] + y[2] <= -2,
        -y[0] - 2 * y[1] - y[2] <= -2,
        -2 * x[1] - 3 * x[2] - x[4] <= -3,
        y >= 0,
    ]
    return np.array([-2, 1, 1, -2, -1, 3.5]) @ x + np.array([1, 1.5, -3]) @ y, [x >= 0], np.array([-3.0, 1, 4]) @ y, rows


def cournot(x: Any, y: Any) -> tuple[Any, list[Any], Any, list[Any]]:
    """Two followers of a leader, by their potential (Siddiqui and Gabriel, 2013)."""
    own = cp.square(y[0]) + cp.square(y[1]) + y[0] * 0
    potential = 0.5 * own + 0.5 * cp.square(y[0] + y[1]) - (12 - x) * cp.sum(y)
    return -(12 - x - cp.sum(y)) * x, [x >= 0], potential, [y >= 0]


MODELS: dict[str, Model] = {
    "Dempe 3.2": (
        11.5 * 8 / 15,
        (1, 1),
        lambda x, y: (3 * y + x, [y <= 5, x <= 8, x >= 0], -y, [x + y <= 8, x + 4 * y >= 8, x + 2 * y <= 13, 2 * y <= 7 * x]),
    ),
    "three-literal clauses": (-1, (15, 7), satisfiable),
    "Dempe 5.1, above": (0, (1, 1), lambda x, y: (cp.square(y) + x, [x + y >= 0], y, [y >= 0])),
    "Dempe 5.1, below": (-0.25, (1, 1), lambda x, y: (cp.square(y) + x, [], y, [x + y >= 0, y >= 0])),
    "Mersha and Dempe, all below": (-22, (1, 1), lambda x, y: (-x - 2 * y, [], -y, [2 * x - 3 * y >= -12, x + y <= 14, y - 3 * x <= -3, 3 * x + y <= 30])),
    "two answers": (1.95, (1, 2), lambda x, y: (0.5 * x - y[0] + 3 * y[1], [], -cp.sum(y), [x + y[0] <= 1.2, y[0] - x <= 1, y[1] <= 1, y[1] >= 0])),
    "Floudas 9.2.4": (-29.2, (2, 6), lambda x, y: (COSTS @ y + 8 * y[0] - 8 * x[0] - 4 * x[1], [x >= 0, y >= 0], WEIGHTS @ y, slack_rows(x, y))),
    "Floudas 9.3.7, its book's value beaten": (
        -2.5,
        (2, 2),
        lambda x, y: (cp.sum_squares(x) + cp.sum_squares(y) - 3 * cp.sum(y), [], cp.sum_squares(y - x), [y >= 0.5, y <= 1.5]),
    ),
    "Floudas 9.3.9": (1.5, (1, 1), lambda x, y: (-(4 * x - 3) * y + 2 * x + 1, [x >= 0, x <= 1], (4 * x - 1) * y, [y >= 0, y <= 1])),
    "Floudas 9.3.10": (2, (1, 2), lambda x, y: (x + y[1], [x >= 0], 2 * y[0] + x * y[1], [cp.sum(y) >= x + 4, y >= 0])),
    "joint rows, below too": (1, (1, 1), lambda x, y: (x, [x >= 1, y >= x, y >= -x], y, [y >= -x, y >= x])),
    "joint rows, both": (-2, (1, 1), lambda x, y: (-x, [x >= 1, x <= 2, y <= 100, y >= x - 2], y, [y >= -x, y >= x - 2])),
    "an efficient point": (-41.2, (6, 3), efficient_point),
    "a leader and its potential": (-12, (1, 2), cournot),
    "a disc above": (-2, (1, 1), lambda x, y: (-(x - 3 * y), [x >= 0, cp.square(x) <= 4, cp.power(x, 3) + 18 * y >= 1, x * y <= 1], y, [y >= 0])),
    "an answer by the apex": (0, (3, 3), lambda x, y: (x[0], [cp.SOC(x[0], x[1:])], y[0], [cp.SOC(y[0], y[1:])])),
    "Chi, Wan and Hao 2": (
        6,
        (1, 2),
        lambda x, y: (
            x + 2 * cp.sum(y),
            [cp.sum(y) <= 3, x >= 0, x <= 6],
            -cp.sum(y),
            [y[0] >= 0, y[1] <= 0, x + cp.sum(y) <= 8, x + 3 * cp.sum(y) >= 8, cp.sum(y) <= x, cp.SOC(y[0], y[1:])],
        ),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_published_optima_are_proved(name: str) -> None:
    value, sizes, levels = MODELS[name]
    x, y = (cp.Variable(*(() if size == 1 else (size,)), name=letter) for size, letter in zip(sizes, "xy"))
    upper, constraints, lower, rows = levels(x, y)
    found = proved(hf.Problem(hf.Minimize(server=upper), hf.ArgMin(y, lower, rows), constraints))
    assert found.value == pytest.approx(value, abs=1e-6)


def test_a_choice_whose_published_optimum_is_none() -> None:
    """Of x = 0 and x = 1 the answers are (230/3, 215/9) and (75, 65/3): the value of the first is lower than the published second."""
    x, y = cp.Variable(name="x", boolean=True), cp.Variable(2, name="y")
    level = hf.ArgMin(y, -60 * y[0] - 8 * y[1], [10 * x + 2 * y[0] + 3 * y[1] <= 225, 5 * x + 3 * y[0] <= 230, 5 * x + y[1] <= 85])
    found = proved(hf.Problem(hf.Minimize(server=x - 2 * y[0] + y[1]), level, [y >= 0, y <= 100]))
    assert found.value == pytest.approx(-460 / 3 + 215 / 9, abs=1e-6) and found.value < 1 - 150 + 65 / 3


@pytest.mark.parametrize("told", ["rent", "multiplier"])
def test_an_investment_that_is_paid_by_the_price(told: str) -> None:
    """Conejo, Baringo, Kazempour and Siddiqui, Investment in Electricity Generation and Transmission, 2016: -190,000 with 50 built."""
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    balance = cp.sum(y) == 200
    market = hf.ArgMin(y, np.array([10.0, 12, 15]) @ y, [balance, y[0] <= x, y[1] <= 150, y[2] <= 100, y >= 0])
    price = hf.ShadowPrice(balance) if told == "rent" else -hf.Dual(balance)
    found = proved(hf.Problem(hf.Minimize(server=40_000 * x + 8760 * (10 * y[0] - price * y[0])), market, [x >= 0, x <= 250]))
    assert found.value == pytest.approx(-190_000, rel=1e-9) and found.x == pytest.approx(50, rel=1e-8)
