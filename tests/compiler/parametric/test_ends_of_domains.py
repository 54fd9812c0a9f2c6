"""Terms that end: reciprocals and quotients have values beyond their domain, and slopes are infinite at it, where answers are not to be looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

import hierfl as hf

END = np.log(4.0)

# the term, itself as a function of a number, where its domain ends, and whether that is above
TERMS: dict[str, tuple[Callable[[Any], Any], Callable[[float], float], float, bool]] = {
    "reciprocal": (lambda y: cp.inv_pos(4 - cp.exp(y)), lambda y: 1 / (4 - np.exp(y)), END, True),
    "odd power": (lambda y: cp.power(4 - cp.exp(y), -3), lambda y: (4 - np.exp(y)) ** -3.0, END, True),
    "even power": (lambda y: cp.power(4 - cp.exp(y), -2), lambda y: (4 - np.exp(y)) ** -2.0, END, True),
    "quotient": (
        lambda y: cp.quad_over_lin(cp.exp(y), 4 - cp.exp(y)),
        lambda y: np.exp(2 * y) / (4 - np.exp(y)),
        END,
        True,
    ),
    "affine": (lambda y: cp.inv_pos(4 - y), lambda y: 1 / (4 - y), 4.0, True),
    "entropy": (lambda y: -cp.entr(y), lambda y: y * np.log(y) if y > 0 else 0.0, 0.0, False),
    "relative entropy": (lambda y: cp.rel_entr(y, 2.0), lambda y: y * np.log(y / 2) if y > 0 else 0.0, 0.0, False),
}


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("scope", ["federation", "client"])
def test_beside_a_square(name: str, scope: str) -> None:
    term, value, end, above = TERMS[name]
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, term(y) + cp.square(y - x), scope=scope)  # type: ignore[arg-type]
    implicit = hf.Problem(hf.Minimize(clients=y), lower).implicit
    low, high = (end - 40, end - 1e-12) if above else (end, end + 40)
    for at in (-1.0, 0.3, 1.0, 5.0, 10.0):
        truth = minimize_scalar(
            lambda v, at=at: value(v) + (v - at) ** 2, bounds=(low, high), method="bounded", options={"xatol": 1e-11}
        ).x
        assert implicit(at) == pytest.approx(truth, abs=1e-6)
        step = 1e-6
        slope = (implicit(at + step) - implicit(at - step)) / (2 * step)
        assert implicit.gradient(at) == pytest.approx(slope, abs=1e-6)


def test_delays_on_average() -> None:
    """1 / (d - y) over rows d: a queue's delay, which ends at the least row."""
    d = hf.Sample(name="d")
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    rows = np.array([4.0, 5.0, 6.0])
    lower = hf.ArgMin(y, hf.E(cp.inv_pos(d - y)) + 0.5 * cp.square(y - x))
    implicit = hf.Problem(hf.Minimize(clients=y), lower, federation=hf.Federation([hf.Client({d: rows})])).implicit
    for at in (0.0, 3.9, 10.0, 100.0):
        truth = brentq(lambda v, at=at: np.mean((rows - v) ** -2.0) + v - at, -50, 4 - 1e-9, xtol=1e-14)
        assert implicit(at) == pytest.approx(truth, rel=1e-11)
        assert implicit.gradient(at) == pytest.approx(1 / (1 + np.mean(2 * (rows - truth) ** -3.0)), rel=1e-9)


def test_owners_do_not_share_a_bound() -> None:
    """Rows of uneven clients, each with its own limit: 2 c (y - x) y = 1 where the limit is above, in sample scope."""
    a, c = hf.Sample(name="a"), hf.ClientParameter(name="c", nonneg=True)
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    federation = hf.Federation(
        [hf.Client({a: np.array([0.3, -1.0, 2.0])}, {c: 1.0}), hf.Client({a: np.array([1.0, 1.0])}, {c: 0.5})]
    )
    cost = -cp.log(cp.minimum(y, a + 3)) + c * cp.square(y - x)
    lower = hf.ArgMin(y, cost, [y >= 0.1, y <= 2 + c], scope="sample")
    implicit = hf.Problem(hf.Minimize(clients=hf.E(y)), lower, federation=federation).implicit
    roots = [(0.7 + np.sqrt(0.49 + 2 / weight)) / 2 for weight in (1.0, 0.5)]
    assert np.concatenate(implicit.response(0.7)) == pytest.approx([roots[0]] * 3 + [roots[1]] * 2, rel=1e-11)
    slopes = [(1 + 0.7 / np.sqrt(0.49 + 2 / weight)) / 2 for weight in (1.0, 0.5)]
    assert implicit.gradient(0.7) == pytest.approx(np.mean(slopes), rel=1e-9)
