"""Local SGDA against a plain-NumPy transcription of its paper, where it is right, and where it is not."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.models import coupled_minimax
from hierfl.solvers import LocalSGDA
from tests.draws import fold_in as fold
from tests.solvers.replayed import BATCH, DATA, ROUNDS, START, cohort, minibatch, round_key, solve

STEPS = [3, 1, 2]


def game(
    server: Any = None, scope: str = "federation", bonus: Any = 0.0, limit: float = np.inf, **parameters: Any
) -> hf.Problem:
    """min over x of max over y <= limit of E ||x - u||^2 / 2 + x'y - ||y||^2 / 2; ``bonus * sum(y)`` is for the lower level alone."""
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    payoff = hf.E(0.5 * cp.sum_squares(x - u)) + x @ y - 0.5 * cp.sum_squares(y)
    return hf.Problem(
        hf.Minimize(clients=payoff, server=None if server is None else server(x, y)),
        lower=hf.ArgMax(y, payoff + bonus * cp.sum(y), [y <= limit] if limit < np.inf else [], scope=scope),
        federation=hf.Federation([hf.Client({u: rows}) for rows in DATA[:2]]),
        **parameters,
    )


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_agrees_with_its_paper(participation: float, x64: None) -> None:
    """Deng and Mahdavi (2021), Algorithm 1, y projected on Y(x) = {-0.4 <= y <= x + 0.3} at the x of its gradient."""
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    payoff = hf.E(0.5 * cp.square(u @ x - 1) + cp.multiply(u @ y, cp.sum(x))) - 0.5 * cp.sum_squares(y)
    problem = hf.Problem(
        hf.Minimize(clients=payoff),
        lower=hf.ArgMax(y, payoff, [y >= -0.4, y <= x + 0.3]),
        constraints=[x <= 0.35, x >= -0.5],
        federation=hf.Federation([hf.Client({u: rows}) for rows in DATA]),
    )
    result = solve(problem, LocalSGDA(0.1, STEPS, participation, batch_size=BATCH, ascent_step=0.2))

    def on_set(z: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.clip(z, -0.4, at + 0.3)

    a, b = START, on_set(np.zeros(2), START)
    for r in range(ROUNDS):
        present, ends = cohort(r, participation), []
        for i in present:
            own_a, own_b = a, b
            for t in range(STEPS[i]):
                rows = minibatch(fold(round_key(r), i), i, t)
                slope_a = rows.T @ (rows @ own_a - 1) / BATCH + np.mean(rows @ own_b)
                slope_b = rows.mean(axis=0) * np.sum(own_a) - own_b
                own_a, own_b = own_a - 0.1 * slope_a, on_set(own_b + 0.2 * slope_b, own_a)
            ends.append((own_a, own_b))
        mean_a, mean_b = np.mean(ends, axis=0)
        a = np.clip(mean_a, -0.5, 0.35)
        b = on_set(mean_b, a)
    np.testing.assert_allclose(result.iterate, a, atol=1e-10)
    assert result.communication["scalars_up_per_round"] == 4 * len(present)


def test_a_server_term_in_x_takes_part() -> None:
    mean = np.mean([rows.mean(axis=0) for rows in DATA[:2]], axis=0)
    problem = game(server=lambda x, y: 0.5 * cp.sum_squares(x))
    result = solve(problem, LocalSGDA(0.1, 1, batch_size=None, ascent_step=0.1), rounds=300)
    np.testing.assert_allclose(result.x, mean / 3, atol=1e-8)


def test_moving_sets_are_not_seen_as_the_documentation_says() -> None:
    """x^2 + y over y <= -x has its minimax at 1/2; the derivative in x alone leads to 0. The other order comes out right."""
    solver = LocalSGDA(0.1, 2, ascent_step=0.1)
    assert solve(coupled_minimax(), solver, rounds=200, x0=0.4).x == pytest.approx(0, abs=1e-3)
    reverse = solve(coupled_minimax(reversed_order=True), solver, rounds=200, x0=0.0)
    assert reverse.x == pytest.approx(1, abs=1e-3)
    assert reverse.y == pytest.approx(-1, abs=1e-3)


def test_other_problems_are_refused() -> None:
    x, cap = cp.Variable(2, name="x"), hf.ClientParameter(name="cap")
    clients = [hf.Client({}, {cap: bound}) for bound in (0.0, 1.0)]
    y = cp.Variable(2, name="y")
    payoff = x @ y - 0.5 * cp.sum_squares(y)
    federation = hf.Federation(clients)
    cases = [
        (hf.Problem(hf.Minimize(clients=cp.sum_squares(x))), "no lower level.*FedAvg"),
        (game(scope="client"), "client scope.*ZOHFL.*scope=.federation. would be another problem"),
        (game(bonus=1.0), "different objectives in y.*FedRZO"),
        (
            hf.Problem(
                hf.Minimize(clients=payoff), lower=hf.ArgMax(y, payoff + cap * cp.sum(y)), federation=federation
            ),
            "different objectives in y",
        ),
        (
            hf.Problem(
                hf.Minimize(clients=payoff), lower=hf.ArgMax(y, payoff), constraints=[x <= cap], federation=federation
            ),
            "private constraints",
        ),
        (game(server=lambda x, y: cp.sum(x) + cp.sum(y)), "server term mentions it"),
        (
            hf.Problem(hf.Minimize(clients=payoff + hf.BlackBox(lambda z: float(z[0]), x)), lower=hf.ArgMax(y, payoff)),
            "BlackBox",
        ),
    ]
    for problem, reason in cases:
        with pytest.raises(hf.IncompatibleSolverError, match=f"LocalSGDA .*{reason}"):
            solve(problem, LocalSGDA())


def test_terms_without_y_may_differ_between_the_levels() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(x - 1) + x * y - 0.5 * cp.square(y)), lower=hf.Equilibrium(y, y - x)
    )
    result = solve(problem, LocalSGDA(0.1, 2, ascent_step=0.3), rounds=150, x0=0.0)
    assert result.x == pytest.approx(2 / 3, abs=1e-6)


def test_an_empty_set_is_named() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(clients=x + y), lower=hf.ArgMax(y, x + y, [y >= 1, y <= x]), constraints=[x <= 3])
    with pytest.raises(hf.EmptyLowerSetError, match="y <= x"):
        solve(problem, LocalSGDA(0.5, 3), x0=2.0)
