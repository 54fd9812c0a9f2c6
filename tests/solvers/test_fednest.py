"""FedNest against a plain-NumPy transcription of its paper, at solutions known by formula, and on its repository's minimax problem."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import FedNest
from tests.draws import fold_in as fold
from tests.draws import row_numbers, split
from tests.solvers.replayed import BATCH, DATA, ROUNDS, START, cohort, minibatch, server_key, solve

STEPS, INNER = [2, 1, 3], [3, 1, 2]


def ridge(sizes: int = 3, **given: Any) -> hf.Problem:
    """Upper: E (u'y - 1)^2 / 2 + x'y / 4 + |x|^2 / 2; lower: E (u'y)^2 / 2 + |y - x|^2 / 2."""
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    return hf.Problem(
        hf.Minimize(clients=hf.E(0.5 * cp.square(u @ y - 1)) + 0.25 * (x @ y) + 0.5 * cp.sum_squares(x)),
        lower=hf.ArgMin(y, hf.E(0.5 * cp.square(u @ y)) + 0.5 * cp.sum_squares(y - x)),
        federation=hf.Federation([hf.Client({u: rows}) for rows in DATA[:sizes]]),
        **given,
    )


def batch(key: jax.Array, i: int, step: int = 0) -> np.ndarray:
    """A client's minibatch of a map that was seeded by ``key``."""
    return minibatch(fold(key, i), i, step)


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_agrees_with_its_paper(participation: float, x64: None) -> None:
    """Algorithms 1 to 4 of Tarzanagh et al. (2022), with minibatches of two rows and uneven local steps; the size of S is 2, or 3."""
    alpha, beta, smooth, calls, terms = 0.05, 0.2, 8.0, 2, 4
    result = solve(ridge(), FedNest(alpha, beta, STEPS, INNER, calls, terms, smooth, participation, BATCH))

    def inner_slope(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return rows.T @ (rows @ y) / BATCH + y - x

    x, y = START, np.zeros(2)
    for r in range(ROUNDS):
        present = cohort(r, participation)
        inner_key, series_key, *_ = split(server_key(r), 4)  # what h and the moves of x draw cancels here
        for t in range(calls):  # FedInn
            first, second = split(fold(inner_key, t))
            q = np.mean([inner_slope(x, y, batch(first, i)) for i in present], axis=0)
            ends = []
            for i in present:
                own = y
                for step in range(INNER[i]):
                    rows = batch(second, i, step)
                    own = own - beta * (inner_slope(x, own, rows) - inner_slope(x, y, rows) + q)
                ends.append(own)
            y = np.mean(ends, axis=0)
        first, other, cut_key = split(series_key, 3)  # FedIHGP
        slopes = []
        for i in present:
            rows = batch(first, i)
            slopes.append(rows.T @ (rows @ y - 1) / BATCH + 0.25 * x)
        p = terms / smooth * np.mean(slopes, axis=0)
        for n in range(row_numbers(cut_key, 1, terms)[0]):
            products = []
            for i in present:
                rows = batch(fold(other, n), i)
                products.append(rows.T @ (rows @ p) / BATCH + p)
            p = p - np.mean(products, axis=0) / smooth
        h = np.mean([0.25 * y + x + p for _ in present], axis=0)  # FedOut; grad_xy g = -I
        ends = []
        for i in present:
            own = x
            for _ in range(STEPS[i]):
                own = own - alpha * ((0.25 * y + own) - (0.25 * y + x) + h)
            ends.append(own)
        x = np.mean(ends, axis=0)
    np.testing.assert_allclose(result.iterate, x, atol=1e-10)


def test_drift_does_not_bias_clients_that_differ() -> None:
    """In a minimax problem nothing is random: many local steps of clients that differ end where one does, at the saddle point.

    That of the repository's problem, f_i = -|y|^2 / 2 - b_i'y + y'A_i x + 0.1 |x|^2 / 2 with A_i = t_i I: x is the regularised least
    squares solution (t^2 + 0.1)^-1 t b of the means, y = t x - b.
    """
    rng = np.random.default_rng(2)
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    t, b = hf.ClientParameter(nonneg=True, name="t"), hf.ClientParameter(3, name="b")
    payoff = -0.5 * cp.sum_squares(y) - b @ y + t * cp.sum(cp.multiply(y, x)) + 0.05 * cp.sum_squares(x)
    own = [(rng.uniform(0, 2), rng.standard_normal(3)) for _ in range(5)]
    problem = hf.Problem(
        hf.Minimize(clients=payoff),
        lower=hf.ArgMax(y, payoff),
        federation=hf.Federation([hf.Client({}, {t: slope, b: shift}) for slope, shift in own]),
    )
    slope, shift = np.mean([s for s, _ in own]), np.mean([s for _, s in own], axis=0)
    best = slope * shift / (slope**2 + 0.1)
    solver = FedNest(0.1, 0.3, local_steps=4, inner_steps=5, inner_rounds=4)
    result = solve(problem, solver, rounds=150, x0=np.ones(3))
    np.testing.assert_allclose(result.x, best, atol=1e-8)
    np.testing.assert_allclose(result.y, slope * best - shift, atol=1e-8)
    assert result.history["lower_residual"][-1] < 1e-8
    # q up, moves of y up, h and the moves of x: no p in a minimax problem
    assert result.communication["scalars_up_per_round"] == 5 * (4 * (3 + 3) + 3 + 3)
