"""Levels with many solutions: y is the shortest one, and moves as pseudo-inverses say, of any size, in all scopes and kinds.

More random levels than the suite draws: ``python -m tests.compiler.parametric.test_flat_levels 300``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ImplicitGradient, LocalSGD
from tests.compiler.parametric.engines import near
from tests.random_trials import trials

FEW = 3  # scalars of x
SCOPES = ("federation", "client", "sample")
SIZES = (2, 3, 4, 6, 9, 15, 30)
LARGE = (130, 400, 1500)
NEAR = 1e-7
ILL = 1e-3  # of the largest singular value, which others are not below: gradients may be refused there
FAR = 1e5  # a bound that does not bind
TRIED = np.outer([0.5, 0.5, 50, 50], np.ones(LARGE[-1])) * np.random.default_rng(0).normal(
    size=(4, LARGE[-1])
)  # steps to other solutions


def uppers(c: np.ndarray, basis: np.ndarray) -> dict[str, Callable[[Any], Any]]:
    """F of the kinds; of the last one the rows of ``basis``, those of all owners, decide."""
    return {
        "linear": lambda y: c @ y,
        "an entry": lambda y: y[0],
        "squares": lambda y: cp.sum_squares(y - c),
        "norm": lambda y: cp.norm(y - c),
        "l1": lambda y: cp.norm1(y - c),
        "largest": lambda y: cp.max(y),
        "huber": lambda y: cp.sum(cp.huber(y - c, 0.5)),
        "logistic": lambda y: cp.sum(cp.logistic(y)),
        "log-sum-exp": lambda y: cp.log_sum_exp(y),
        "concave": lambda y: -cp.sum_squares(y) + c @ y,
        "hinges": lambda y: cp.sum(cp.pos(y - c)),
        "fit": lambda y: cp.sum_squares(basis @ y),
    }


class Drawn(NamedTuple):
    """min |a y - b x - d|^2 / 2 of every owner, over g y = 0 for all; f is the mean of ``upper``.

    The mapping of an equilibrium is a' (1 + k) (a y - b x - d), with a skew k.
    """

    scope: str
    kind: str
    shape: str
    bounds: str
    name: str
    upper: Callable[[Any], Any]
    size: int
    rows: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]]  # (a, b, d) of every client's samples
    g: np.ndarray
    k: np.ndarray
    at: np.ndarray

    def value(self, y: np.ndarray) -> float:
        return float(self.upper(cp.Constant(y)).value)

    def slope(self, y: np.ndarray) -> np.ndarray:
        """F's gradient, as CVXPY's atoms tell it."""
        at = cp.Variable(len(y), value=y)
        return np.ravel(self.upper(at).grad[at].toarray())

    def answers(self) -> list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """(y, its Jacobian, directions to the other solutions) of every owner, by client."""
        weighted = [
            tuple(np.concatenate([part / np.sqrt(len(rows)) for part in parts]) for parts in zip(*rows))
            for rows in self.rows
        ]
        if self.scope == "federation":
            owners = [[tuple(np.concatenate(parts) for parts in zip(*weighted))]]
        else:
            owners = self.rows if self.scope == "sample" else [[own] for own in weighted]
        return [[self._shortest(*own) for own in client] for client in owners]

    def _shortest(self, a: np.ndarray, b: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        free = np.linalg.svd(self.g)[2][len(self.g) :].T
        if self.k.any():
            turned = (a @ free).T @ np.kron(np.eye(len(a) // len(self.k)), np.eye(len(self.k)) + self.k)
            jacobian = free @ np.linalg.pinv(turned @ a @ free, rcond=1e-10) @ turned
        else:
            jacobian = free @ np.linalg.pinv(a @ free, rcond=1e-10)
        _, values, others = np.linalg.svd(a @ free)
        others = free @ others[int((values > 1e-10).sum()) :].T
        return jacobian @ (b @ self.at + d), jacobian @ b, others

    def declared(self) -> hf.Problem:
        n, count = self.size, self.rows[0][0][0].shape[0]
        x = cp.Variable(FEW, name="x")
        if self.shape == "matrix":
            below: Any = cp.Variable((n // 2, 2), name="y")
            y = cp.vec(below, order="C")
        elif self.shape == "two":
            below = [cp.Variable(n - 1, name="y"), cp.Variable(1, name="z")]
            y = cp.hstack(below)
        else:
            below = y = cp.Variable(n, name="y")
        if len(self.rows) == 1 and len(self.rows[0]) == 1:  # constants
            (a, b, d), leaves = self.rows[0][0], None
            miss = a @ y - b @ x - d
            turned = a.T @ (miss + self.k @ miss)
        else:
            leaves = hf.Sample((count, n), name="a"), hf.Sample((count, FEW), name="b"), hf.Sample(count, name="d")
            miss = leaves[0] @ y - leaves[1] @ x - leaves[2]
            turned = leaves[0].T @ (miss + self.k @ miss)
        cost = 0.5 * cp.sum_squares(miss)
        average = hf.E if leaves and self.scope != "sample" else lambda term: term
        bounds = {
            "none": [],
            "box": [cp.abs(y) <= FAR],
            "row": [cp.sum(y) <= FAR],
            "ball": [cp.norm(y) <= FAR],
            "equation": [self.g @ y == 0],
            "equation and box": [self.g @ y == 0, y >= -FAR, y <= FAR],
        }[self.bounds]
        scope = self.scope if leaves else "federation"
        lower = {
            "argmin": lambda: hf.ArgMin(below, average(cost), bounds, scope=scope),
            "argmax": lambda: hf.ArgMax(below, -average(cost), bounds, scope=scope),
            "equilibrium": lambda: hf.Equilibrium(below, average(turned), bounds, scope=scope),
        }[self.kind]()
        upper = self.upper(y)
        if not leaves:
            return hf.Problem(hf.Minimize(server=upper), lower)
        clients = [hf.Client({leaf: np.array(v) for leaf, v in zip(leaves, zip(*rows))}) for rows in self.rows]
        upper = hf.E(upper) if scope == "sample" else upper
        return hf.Problem(hf.Minimize(clients=upper), lower, federation=hf.Federation(clients))


def draw(seed: int) -> Drawn:
    rng = np.random.default_rng(seed)
    scope = SCOPES[seed % 3]
    size = int(rng.choice(LARGE if seed % 12 == 0 else SIZES))
    kind = str(rng.choice(["argmin", "argmin", "argmax", "equilibrium"])) if size < 400 else "argmin"
    shape = str(rng.choice(["vector", "vector", "matrix", "two"]))
    shape = "vector" if (shape == "matrix" and size % 2) or kind == "equilibrium" else shape
    bounds = str(rng.choice(["none", "none", "box", "row", "ball", "equation", "equation and box"]))
    bounds = "box" if bounds == "ball" and size > 200 else bounds
    rank = int(rng.integers(1, size)) if size < 100 else int(rng.integers(1, 40))
    counts = rng.choice([1, 1, 2, 5, 12], int(rng.integers(1, 4))) if size < 100 else [1]
    basis, count = rng.normal(size=(rank, size)) / np.sqrt(size), int(rng.integers(1, rank + 3))

    def sample() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        a = rng.normal(size=(count, rank)) @ basis
        values = np.linalg.svd(a, compute_uv=False)[: min(count, rank)]
        enough = values[-1] > ILL * values[0]
        return (a, rng.normal(size=(count, FEW)), rng.normal(size=count)) if enough else sample()

    rows = [[sample() for _ in range(n)] for n in counts]
    g = rng.normal(size=(1, size)) if "equation" in bounds else np.zeros((0, size))
    k = rng.normal(size=(count, count)) * (kind == "equilibrium" and rng.random() < 0.5)
    choices = uppers(rng.normal(size=size), basis)
    name = str(rng.choice(list(choices)))
    return Drawn(scope, kind, shape, bounds, name, choices[name], size, rows, g, k - k.T, rng.normal(size=FEW))


def faults(drawn: Drawn) -> list[str]:
    """What is said that is not so, or not said."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        implicit = drawn.declared().implicit
        told, value = implicit.certificate(drawn.at), float(implicit(drawn.at))
        found = np.asarray(implicit.gradient(drawn.at))
    wrong = []
    answers = drawn.answers()
    f = np.mean([np.mean([drawn.value(y) for y, _, _ in client]) for client in answers])
    slope = np.mean([np.mean([j.T @ drawn.slope(y) for y, j, _ in client], axis=0) for client in answers], axis=0)
    if not abs(value - f) <= NEAR * (1 + abs(f)):
        wrong.append(f"f is {value} for {f}")
    if not np.abs(found - slope).max() <= 10 * NEAR * (1 + np.abs(slope).max()):
        wrong.append(f"gradient {found} for {slope}")
    owners = [owner for client in answers for owner in client]
    one = all(others.shape[1] == 0 for _, _, others in owners)
    differ = [
        np.ptp([drawn.value(y + others @ v) for v in TRIED[:, : others.shape[1]]]) for y, _, others in owners
    ]
    apart = bool(max(differ) > 1e-6 * (1 + abs(f)))
    warned = any("several solutions" in str(w.message) for w in heard)
    if told.unique is not one or warned is not apart:
        wrong.append(f"unique: {told.unique} for {one}, warned: {warned} for {apart}")
    return wrong


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "seed", [*range(1, 12), 23, 159, 181, 410]
)  # all scopes and shapes of y; maps that are no gradients, balls that do not bind, uneven clients, an objective that is the same at all solutions
def test_random_levels_move_as_their_pseudo_inverses(seed: int) -> None:
    assert faults(draw(seed)) == []


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


if __name__ == "__main__":
    trials(draw, faults, lambda drawn: (*drawn[:5], drawn.size, [len(rows) for rows in drawn.rows]))
