"""Levels with many solutions: y is the shortest one, and moves as pseudo-inverses say, of any size, in all scopes and kinds."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ImplicitGradient, LocalSGD
from tests.compiler.parametric import random_flat_levels
from tests.compiler.parametric.engines import near

pytestmark = pytest.mark.filterwarnings("ignore::hierfl.errors.LowerLevelWarning")


def of_rank(rng: np.random.Generator, rows: int, columns: int, rank: int) -> np.ndarray:
    """A matrix whose singular values are between 1 and 2."""
    left, right = (np.linalg.qr(rng.normal(size=(n, rank)))[0] for n in (rows, columns))
    return left * rng.uniform(1, 2, rank) @ right.T


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_moving_null_space_is_differentiated(rank: int) -> None:
    """The matrix itself moves with x and keeps its rank, by factors that scale its columns: differences of the shortest solution."""
    rng = np.random.default_rng(rank)
    a, d, target = of_rank(rng, 5, 6, rank) if rank else np.zeros((5, 6)), rng.normal(size=5), rng.normal(size=6)
    x, y = cp.Variable(6, name="x"), cp.Variable(6, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(a @ cp.multiply(x, y) - d))
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - target)), lower)

    def f(at: np.ndarray) -> float:
        return float(np.sum((np.linalg.pinv(a * at, rcond=1e-10) @ d - target) ** 2))

    at = rng.uniform(0.5, 1.5, 6)
    assert float(problem.implicit(at)) == pytest.approx(f(at), rel=1e-9)
    step = 1e-5 * np.eye(6)
    near(problem.implicit.gradient(at), [(f(at + e) - f(at - e)) / 2e-5 for e in step], 1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_rows_beside_a_flat_objective_cut_the_solution_set(seed: int) -> None:
    """The shortest solution within y >= low(x), by CVXPY twice; the gradient by differences of that."""
    rng = np.random.default_rng(seed)
    a, d, low = of_rank(rng, 4, 7, 3), rng.normal(size=4), rng.normal(size=7) - 1.0
    x, y = cp.Variable(2, name="x"), cp.Variable(7, name="y")
    b = rng.normal(size=(4, 2))
    lower = hf.ArgMin(y, cp.sum_squares(a @ y - b @ x - d), [y >= low])
    target = rng.normal(size=7)
    problem = hf.Problem(hf.Minimize(clients=target @ y), lower)

    def answer(at: np.ndarray) -> np.ndarray:
        v = cp.Variable(7)
        cp.Problem(cp.Minimize(cp.sum_squares(a @ v - b @ at - d)), [v >= low]).solve("CLARABEL")
        forms = a @ v.value
        w = cp.Variable(7)
        cp.Problem(cp.Minimize(cp.sum_squares(w)), [w >= low, a @ w == forms]).solve("CLARABEL")
        return np.asarray(w.value)

    at = rng.normal(size=2)
    near(problem.implicit.response(at), answer(at), 1e-6)
    differences = [target @ (answer(at + e) - answer(at - e)) / 2e-2 for e in 1e-2 * np.eye(2)]
    near(problem.implicit.gradient(at), differences, 1e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "seed", [*range(1, 12), 23, 159, 181, 410]
)  # all scopes and shapes of y; maps that are no gradients, balls that do not bind, uneven clients, an objective that is the same at all solutions
def test_random_levels_move_as_their_pseudo_inverses(seed: int) -> None:
    assert random_flat_levels.faults(random_flat_levels.draw(seed)) == []


@pytest.mark.parametrize("bound", [None, 50.0])
@pytest.mark.parametrize("shares", [1, 2])
def test_rounds_follow_the_y_that_clients_share(shares: int, bound: float | None) -> None:
    """Projected gradient steps by the pseudo-inverse."""
    rng = np.random.default_rng(12)
    a, c = rng.normal(size=(3, 5)), np.linspace(-1, 1, 5)
    inverse = np.linalg.pinv(a)
    x, y = cp.Variable(3, name="x"), cp.Variable(5, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(a @ y - x), [] if bound is None else [cp.abs(y) <= bound])
    federation = hf.Federation([hf.Client({}) for _ in range(shares)])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - c)), lower, federation=federation)
    at = np.ones(3)
    for _ in range(5):
        at = at - 0.05 * 2 * inverse.T @ (inverse @ at - c)
    near(problem.solve(ImplicitGradient(step_size=0.05), rounds=5, x0=np.ones(3), progress=False).x, at, 1e-7)


def test_rounds_that_cannot_follow_say_why() -> None:
    """Steps towards a solution do not tell how the solutions move."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.square(cp.sum(y) - x))
    problem = hf.Problem(hf.Minimize(clients=cp.square(y[0]) + y[1]), lower)
    with pytest.raises(hf.errors.DivergedError, match="one of several solutions.*Exact"):
        problem.solve(ImplicitGradient(lower=LocalSGD(rounds=3, steps=2, step_size=0.1)), rounds=2, progress=False)


@pytest.mark.parametrize("least", [1e-2, 2e-4])
def test_what_the_objective_barely_decides_is_followed(least: float) -> None:
    """Singular values from 1 down to ``least``, whose squares are the curvatures."""
    rng = np.random.default_rng(13)
    left, right = np.linalg.qr(rng.normal(size=(3, 3)))[0], np.linalg.qr(rng.normal(size=(6, 3)))[0]
    a, c = left * np.geomspace(least, 1, 3) @ right.T, rng.normal(size=6)
    x, y = cp.Variable(3, name="x"), cp.Variable(6, name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - c)), hf.ArgMin(y, cp.sum_squares(a @ y - x)))
    inverse, at = np.linalg.pinv(a), rng.normal(size=3)
    near(problem.implicit.gradient(at), 2 * inverse.T @ (inverse @ at - c), 1e-7)


def test_the_one_of_many_owners_that_has_several_solutions_is_named() -> None:
    """All hold the same rows with the same multipliers; only what they weigh tells them apart."""
    x, y, w = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.ClientParameter(name="w", nonneg=True)
    level = hf.ArgMin(y, w * cp.square(y[0] - x) - y[1], [y >= 0.25, y <= 1], scope="client")
    federation = hf.Federation([hf.Client({}, {w: weight}) for weight in (1.0, 0.0, 2.0)])
    implicit = hf.Problem(hf.Minimize(clients=y[0]), level, [cp.abs(x) <= 1], federation).implicit
    with pytest.warns(hf.LowerLevelWarning, match="lower level of client 1 has several solutions"):
        assert implicit.response(0.5) == pytest.approx(np.array([[0.5, 1], [0.25, 1], [0.5, 1]]))
