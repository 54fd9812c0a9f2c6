"""Newton's method on the host against roots found by bracketing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from hierfl.compiler.host.cone_solution import FAILED, SOLVED
from hierfl.compiler.host.smooth.newton import NewtonMethod
from hierfl.compiler.host.standard_form import NONNEGATIVE, Cone

STEEP = st.floats(0.01, 100)


def solve(force: object, start: float) -> object:
    return NewtonMethod(force, np.zeros((0, 1)), np.zeros(0), [], 1).solve(np.array([start]))  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None)
@given(a=STEEP, b=STEEP, c=st.floats(0.1, 10), start=st.floats(-2, 2))
@example(a=0.1, b=0.10000000000000002, c=0.25, start=1.0)
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


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 4))
def test_an_answer_of_zeros(seed: int, size: int) -> None:
    """All of y is held at zero: what steps leave of it is rounding, however large that is beside y."""
    rng = np.random.default_rng(seed)
    matrix, pull = rng.standard_normal((4, size)), rng.uniform(5, 9, size)
    cones, a = [Cone(NONNEGATIVE, size + 1)], np.vstack([np.eye(size), -np.ones((1, size))])
    b = np.append(np.zeros(size), 2.0)
    pull += np.abs(matrix).sum(axis=0)

    def force(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steep = np.exp(matrix @ u)
        return matrix.T @ steep + pull, (matrix.T * steep) @ matrix + 0.1 * np.eye(size)

    answer = NewtonMethod(force, a, b, cones, size).solve(rng.uniform(0, 2 / size, size))
    assert answer.status == SOLVED and answer.error <= 1e-12
    np.testing.assert_allclose(answer.u, 0.0, atol=1e-13)
