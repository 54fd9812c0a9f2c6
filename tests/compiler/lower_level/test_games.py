"""Games, compiled: equilibria against SciPy, best responses and closed forms."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import hierfl as hf
from hierfl.compiler.lower_level.player_convexity import player_evidence
from hierfl.errors import NotConvexError


def two_players(rows: int = 3, columns: int = 2) -> tuple[hf.Problem, Any, Any, dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    u, v, upper = cp.Variable(rows, name="u"), cp.Variable((columns, 2), name="v"), cp.Variable(2, name="x")
    given = {
        "Q": np.diag([2.0, 3.0, 4.0]),
        "C": rng.standard_normal((rows, columns)),
        "D": rng.standard_normal((columns, rows)),
    }
    first = 0.5 * cp.quad_form(u, given["Q"]) + u @ (given["C"] @ v @ upper) - cp.sum(u)
    second = cp.sum_squares(v) + cp.sum(cp.multiply(v, cp.outer(given["D"] @ u, upper)))
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(u) + cp.sum_squares(v) + cp.sum_squares(upper)),
        hf.Nash(hf.Player(u, first, [u >= -1, u <= 1]), hf.Player(v, cp.Minimize(second), [cp.norm(v, "fro") <= 1])),
    )
    return problem, u, v, given


def test_two_players_of_different_shapes_answer_each_other() -> None:
    problem, u, v, given = two_players()
    upper = np.array([0.6, -0.8])
    answer = problem.implicit.response(upper)
    mine, yours = np.zeros(3), np.zeros((2, 2))
    for _ in range(500):  # best responses in turn, in closed form: the independent answer
        mine = np.clip((1 - given["C"] @ yours @ upper) / np.diag(given["Q"]), -1, 1)
        free = -0.5 * np.outer(given["D"] @ mine, upper)
        yours = free / max(1.0, np.linalg.norm(free))
    np.testing.assert_allclose(answer[u], mine, atol=1e-7)
    np.testing.assert_allclose(answer[v], yours, atol=1e-7)
    assert all(e.proof == "by CVXPY's rules" for e in player_evidence(problem.compile().exact))


def test_a_saddle_point_is_a_game_of_two() -> None:
    rng = np.random.default_rng(5)
    matrix, upper = rng.standard_normal((3, 4)), cp.Variable(3, name="x")
    u, v = cp.Variable(3, name="u"), cp.Variable(4, name="v")
    payoff = u @ matrix @ v + 0.5 * cp.sum_squares(u - upper) - 0.5 * cp.sum_squares(v)
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(u) + cp.sum(v) + cp.sum_squares(upper)),
        hf.Nash(hf.Player(u, cp.Minimize(payoff), [cp.norm(u) <= 1]), hf.Player(v, cp.Maximize(payoff), [v >= 0])),
    )
    point = np.array([0.5, -1.0, 0.3])
    answer = problem.implicit.response(point)
    # v maximises (A'u)'v - v'v/2 over v >= 0, so u minimises |u - x|^2/2 + |max(A'u, 0)|^2/2 over the ball
    w = cp.Variable(3)
    value = 0.5 * cp.sum_squares(w - point) + 0.5 * cp.sum_squares(cp.pos(matrix.T @ w))
    cp.Problem(cp.Minimize(value), [cp.norm(w) <= 1]).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
    )
    np.testing.assert_allclose(answer[u], w.value, atol=1e-6)
    np.testing.assert_allclose(answer[v], np.maximum(matrix.T @ np.asarray(w.value), 0), atol=1e-6)


def test_a_total_counts_the_samples_of_terms_that_no_sample_changes() -> None:
    s, u, upper = hf.Sample(name="s"), cp.Variable(name="u"), cp.Variable(name="x")
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(u) + cp.square(upper)),
        hf.Nash(hf.Player(u, hf.total(0.5 * cp.square(u) + s) - upper * u)),
        federation=hf.Federation([hf.Client({s: np.arange(8.0)})]),
    )
    assert float(problem.implicit.response(np.array(2.0))) == pytest.approx(2.0 / 8, abs=1e-9)


def test_a_player_that_turns_out_concave_is_refused_with_a_witness() -> None:
    u, v, upper = cp.Variable(2, name="u"), cp.Variable(2, name="v"), cp.Variable(name="x")
    matrix = np.array([[1.0, 0.0], [0.0, -1.0]])
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(upper) + cp.sum_squares(u)),
        hf.Nash(
            hf.Player(u, u @ (matrix @ u) + u @ v, [cp.abs(u) <= 1]),
            hf.Player(v, cp.sum_squares(v) - upper * cp.sum(u) * cp.sum(v)),
        ),
    )
    with pytest.raises(NotConvexError, match=r"player 'u' must be convex in u.*curvature there is -2 at x = .*u, v = "):
        problem.compile()


def test_a_player_that_is_concave_in_one_of_its_samples_is_refused() -> None:
    u, upper, bend = cp.Variable(name="u"), cp.Variable(name="x"), hf.Sample(name="bend")
    level = hf.Nash(hf.Player(u, bend * cp.square(u) - upper * u, [cp.abs(u) <= 1]), scope="sample")
    data = hf.Federation([hf.Client({bend: np.array([2.0, 3.0, -1.0])})])
    with pytest.raises(NotConvexError, match="player 'u' must be convex in u.*curvature there is -2"):
        hf.Problem(hf.Minimize(clients=hf.E(cp.square(u)) + cp.square(upper)), level, federation=data).compile()


def test_a_player_is_looked_at_where_every_clients_own_bounds_allow_x() -> None:
    u, v, upper, least = cp.Variable(2, name="u"), cp.Variable(name="v"), cp.Variable(name="x"), hf.ClientParameter(name="least")
    level = hf.Nash(hf.Player(u, upper * cp.sum_squares(u) - cp.sum(u) * v), hf.Player(v, cp.square(v - 2)))
    clients = hf.Federation([hf.Client(parameters={least: bound}) for bound in (0.5, 1.0)])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(u) + cp.square(upper)), level, [upper >= least], clients)
    assert problem.implicit(np.array(2.0)) == pytest.approx(2 * 0.5**2 + 4)  # u = v / (2 x)


def test_a_product_with_itself_is_accepted_on_evidence() -> None:
    u, upper = cp.Variable(2, name="u"), cp.Variable(2, name="x")
    matrix = np.array([[2.0, 1.0], [0.0, 3.0]])
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(upper) + cp.sum_squares(u)),
        hf.Nash(hf.Player(u, u @ (matrix @ u) - u @ upper)),
    )
    (evidence,) = player_evidence(problem.compile().exact)
    symmetric = matrix + matrix.T
    assert evidence.smallest == pytest.approx(np.linalg.eigvalsh(symmetric)[0], abs=1e-9)
    assert "supported by sampling" in str(evidence)
    assert "player u: symbolic; convex" in str(problem.explain())
    by_jax = hf.Nash(hf.Player(u, cp.log_sum_exp(u) + cp.sum_squares(u - upper)))
    assert "symbolic, with JAX's derivative of log_sum_exp" in str(hf.Problem(hf.Minimize(cp.sum_squares(upper)), by_jax).explain())
    point = np.array([1.0, -2.0])
    np.testing.assert_allclose(problem.implicit.response(point), np.linalg.solve(symmetric, point), atol=1e-8)


SMOOTHED = {  # terms of y with kinks inside that have a continuous gradient, with that gradient
    "a square of what is positive": (lambda y: cp.square(cp.pos(y)), lambda t: 2 * max(t, 0.0)),
    "a power of what is positive": (lambda y: cp.power(cp.pos(y), 1.5), lambda t: 1.5 * max(t, 0.0) ** 0.5),
    "a power of a size": (lambda y: cp.power(cp.abs(y), 1.5), lambda t: 1.5 * np.sign(t) * abs(t) ** 0.5),
    "a norm that is never 0": (lambda y: cp.norm(cp.hstack([y, 1])), lambda t: t / np.sqrt(1 + t * t)),
    "a huber of a size": (lambda y: cp.huber(cp.abs(y)), lambda t: 2 * np.clip(t, -1, 1)),
}


@pytest.mark.parametrize("name", SMOOTHED)
def test_a_player_whose_kinks_are_flattened(name: str) -> None:
    """y and z solve 0 = g(y) + 2 (y - x) + 0.3 z and 0 = 2 (z - 1) + 0.2 y, a root of one increasing function of y."""
    x, y, z = (cp.Variable(name=n) for n in "xyz")
    term, slope = SMOOTHED[name]
    game = hf.Nash(hf.Player(y, term(y) + cp.square(y - x) + 0.3 * y * z), hf.Player(z, cp.square(z - 1) + 0.2 * y * z))
    problem = hf.Problem(hf.Minimize(clients=y + cp.square(x)), game)

    def answer(at: float) -> float:
        return float(
            scipy.optimize.brentq(
                lambda t: slope(t) + 2 * (t - at) + 0.3 * (1 - 0.1 * t), -50, 50, xtol=1e-15, rtol=1e-14
            )
        )

    for at in (-0.5, 0.1499, 0.15, 0.1501, 0.5, 3.0):  # y(0.15) = 0, where the kinks are
        assert float(problem.implicit.response(at)[y]) == pytest.approx(answer(at), abs=1e-9)
        assert problem.implicit(at) == pytest.approx(answer(at) + at**2, abs=1e-9)
    for at in (-0.5, 0.5, 3.0):
        by_differences = (answer(at + 1e-5) - answer(at - 1e-5)) / 2e-5 + 2 * at
        assert float(problem.implicit.gradient(at)) == pytest.approx(by_differences, rel=1e-6)
