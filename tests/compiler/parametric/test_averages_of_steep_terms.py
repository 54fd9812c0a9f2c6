"""Averages over data of terms that are smooth inside their domain alone, where they may end steeply, against roots by bracketing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import brentq

import hierfl as hf
from tests.bilevel_case import gradient_by_differences

RNG = np.random.default_rng(8)
ROWS = [RNG.uniform(0.5, 2, (count, 2)) for count in (9, 2, 1)]
CAPS = [3.0, 1.5, 0.8]
POINTS = [np.array([0.3, 0.4]), np.array([1.7, 2.9])]

TERMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[float, np.ndarray], float]]] = {
    "log": (lambda y, d: -cp.sum(cp.multiply(d, cp.log(y))), lambda y, d: -np.mean(d) / y),
    "log(1 + y)": (lambda y, d: -cp.sum(cp.multiply(d, cp.log(1 + y))), lambda y, d: -np.mean(d) / (1 + y)),
    "log1p": (lambda y, d: -cp.sum(cp.multiply(d, cp.log1p(y))), lambda y, d: -np.mean(d) / (1 + y)),
    "entr": (lambda y, d: -cp.sum(cp.multiply(d, cp.entr(y))), lambda y, d: np.mean(d) * (1 + np.log(y))),
    "kl_div": (lambda y, d: cp.sum(cp.kl_div(y, d)), lambda y, d: np.mean(np.log(y / d))),
    "rel_entr": (lambda y, d: cp.sum(cp.rel_entr(d, y)), lambda y, d: -np.mean(d) / y),
    "inv_pos": (lambda y, d: cp.sum(cp.multiply(d, cp.inv_pos(y))), lambda y, d: -np.mean(d) / y**2),
    "sqrt": (lambda y, d: -cp.sum(cp.multiply(d, cp.sqrt(y))), lambda y, d: -np.mean(d) / (2 * np.sqrt(y))),
    "y ** 1.5": (lambda y, d: cp.sum(cp.multiply(d, cp.power(y, 1.5))), lambda y, d: 1.5 * np.mean(d) * np.sqrt(y)),
    "quad_over_lin": (
        lambda y, d: cp.quad_over_lin(d[0], y[0]) + cp.quad_over_lin(d[1], y[1]),
        lambda y, d: -np.mean(d**2) / y**2,
    ),
}


def declared(term: Any, count: int) -> hf.Problem:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y", nonneg=True)
    d, cap = hf.Sample(2, name="d", nonneg=True), hf.ClientParameter(name="cap", nonneg=True)
    below = hf.E(term(y, d)) + (x - 1) @ y
    return hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - 1) + cp.sum(x)),
        hf.ArgMin(y, below, [cp.sum(y) <= cap], scope="client"),
        federation=hf.Federation([hf.Client({d: rows}, {cap: size}) for rows, size in zip(ROWS[:count], CAPS)]),
    )


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function is zero; the end that is nearest where it is not."""
    if rising(low) >= 0:
        return low
    return high if rising(high) <= 0 else float(brentq(rising, low, high, xtol=1e-15, rtol=1e-14))


def response(slope: Callable[[float, np.ndarray], float], x: np.ndarray, data: np.ndarray, cap: float) -> np.ndarray:
    def at_price(price: float) -> np.ndarray:
        def entry(c: float, d: np.ndarray) -> float:
            return root(lambda t: slope(t, d) + c - 1 + price, 1e-12, cap)

        return np.array([entry(c, d) for c, d in zip(x, data.T)])

    return at_price(root(lambda price: cap - at_price(price).sum(), 0.0, 1e3))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("x", POINTS, ids=str)
@pytest.mark.parametrize("name", TERMS)
def test_values_and_gradients(name: str, x: np.ndarray, count: int) -> None:
    term, slope = TERMS[name]
    problem = declared(term, count)

    def of(at: Any) -> float:
        answers = [response(slope, at, data, cap) for data, cap in zip(ROWS[:count], CAPS)]
        return float(np.mean([np.sum((y - 1) ** 2) for y in answers]) + at.sum())

    assert problem.implicit(x) == pytest.approx(of(x), abs=1e-10)
    differences = gradient_by_differences(of, x, 1e-4)
    np.testing.assert_allclose(problem.implicit.gradient(x), differences, rtol=2e-6, atol=2e-6)
    assert problem.implicit.certificate(x).method == "parametric program"
