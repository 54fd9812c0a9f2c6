"""Newton's method on the host against roots found by bracketing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from hierfl.compiler.host.cone_solution import FAILED, SOLVED
from hierfl.compiler.host.newton import NewtonMethod

STEEP = st.floats(0.01, 100)


def solve(force: object, start: float) -> object:
    return NewtonMethod(force, np.zeros((0, 1)), np.zeros(0), [], 1).solve(np.array([start]))  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None)
@given(a=STEEP, b=STEEP, c=st.floats(0.1, 10), start=st.floats(-2, 2))
def test_between_two_exponentials(a: float, b: float, c: float, start: float) -> None:
    """At the last digits the steps change no more, whatever share of one is taken: that is an answer, not a failure."""

    def force(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return a * np.exp(u) - b * np.exp(-c * u), np.diag(a * np.exp(u) + b * c * np.exp(-c * u))

    answer = solve(force, start)
    assert answer.status == SOLVED
    assert answer.u[0] == pytest.approx((np.log(b) - np.log(a)) / (1 + c), abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(a=STEEP, b=STEEP, c=STEEP, middle=st.floats(-4, 4))
def test_flat_and_steep_together(a: float, b: float, c: float, middle: float) -> None:
    def force(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bend = np.tanh(c * u)
        return a * (u - middle) ** 3 + b * bend, np.diag(3 * a * (u - middle) ** 2 + b * c * (1 - bend**2))

    root = brentq(lambda t: float(force(np.array([t]))[0][0]), -10, 10, xtol=1e-15, rtol=1e-14)
    answer = solve(force, 0.0)
    assert answer.status == SOLVED and answer.u[0] == pytest.approx(root, abs=1e-9)


def test_an_infimum_at_infinity_is_no_answer() -> None:
    assert solve(lambda u: (np.exp(u), np.diag(np.exp(u))), 0.0).status == FAILED
