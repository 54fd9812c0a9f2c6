"""Random levels with a singular Hessian, held against pseudo-inverses: y, the gradient, and whether another solution is told.

More than the few of the tests: ``python -m tests.compiler.parametric.random_flat_levels 300``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np

import hierfl as hf
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


class Upper(NamedTuple):
    """F of y in CVXPY, in NumPy, and its gradient."""

    said: Callable[[Any], Any]
    value: Callable[[np.ndarray], float]
    slope: Callable[[np.ndarray], np.ndarray]


def uppers(c: np.ndarray, basis: np.ndarray) -> dict[str, Upper]:
    """F of the kinds; of the last one the rows of ``basis``, those of all owners, decide."""

    def soft(y: np.ndarray) -> np.ndarray:
        power = np.exp(y - y.max())
        return power / power.sum()

    n, first = len(c), np.eye(len(c))[0]
    return {
        "linear": Upper(lambda y: c @ y, lambda y: c @ y, lambda y: c),
        "an entry": Upper(lambda y: y[0], lambda y: y[0], lambda y: first),
        "squares": Upper(lambda y: cp.sum_squares(y - c), lambda y: np.sum((y - c) ** 2), lambda y: 2 * (y - c)),
        "norm": Upper(
            lambda y: cp.norm(y - c), lambda y: np.linalg.norm(y - c), lambda y: (y - c) / np.linalg.norm(y - c)
        ),
        "l1": Upper(lambda y: cp.norm1(y - c), lambda y: np.abs(y - c).sum(), lambda y: np.sign(y - c)),
        "largest": Upper(lambda y: cp.max(y), lambda y: y.max(), lambda y: np.eye(n)[np.argmax(y)]),
        "huber": Upper(
            lambda y: cp.sum(cp.huber(y - c, 0.5)),
            lambda y: np.where(np.abs(y - c) < 0.5, (y - c) ** 2, np.abs(y - c) - 0.25).sum(),
            lambda y: np.clip(2 * (y - c), -1, 1),
        ),
        "logistic": Upper(
            lambda y: cp.sum(cp.logistic(y)), lambda y: np.logaddexp(0, y).sum(), lambda y: 1 / (1 + np.exp(-y))
        ),
        "log-sum-exp": Upper(
            lambda y: cp.log_sum_exp(y), lambda y: y.max() + np.log(np.exp(y - y.max()).sum()), lambda y: soft(y)
        ),
        "concave": Upper(lambda y: -cp.sum_squares(y) + c @ y, lambda y: -y @ y + c @ y, lambda y: -2 * y + c),
        "hinges": Upper(lambda y: cp.sum(cp.pos(y - c)), lambda y: np.maximum(y - c, 0).sum(), lambda y: (y > c) * 1.0),
        "fit": Upper(
            lambda y: cp.sum_squares(basis @ y), lambda y: np.sum((basis @ y) ** 2), lambda y: 2 * basis.T @ (basis @ y)
        ),
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
    upper: Upper
    size: int
    rows: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]]  # (a, b, d) of every client's samples
    g: np.ndarray
    k: np.ndarray
    at: np.ndarray

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
        upper = self.upper.said(y)
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
    f = np.mean([np.mean([drawn.upper.value(y) for y, _, _ in client]) for client in answers])
    slope = np.mean([np.mean([j.T @ drawn.upper.slope(y) for y, j, _ in client], axis=0) for client in answers], axis=0)
    if not abs(value - f) <= NEAR * (1 + abs(f)):
        wrong.append(f"f is {value} for {f}")
    if not np.abs(found - slope).max() <= 10 * NEAR * (1 + np.abs(slope).max()):
        wrong.append(f"gradient {found} for {slope}")
    owners = [owner for client in answers for owner in client]
    one = all(others.shape[1] == 0 for _, _, others in owners)
    differ = [
        np.ptp([drawn.upper.value(y + others @ v) for v in TRIED[:, : others.shape[1]]]) for y, _, others in owners
    ]
    apart = bool(max(differ) > 1e-6 * (1 + abs(f)))
    warned = any("several solutions" in str(w.message) for w in heard)
    if told.unique is not one or warned is not apart:
        wrong.append(f"unique: {told.unique} for {one}, warned: {warned} for {apart}")
    return wrong


if __name__ == "__main__":
    trials(draw, faults, lambda drawn: (*drawn[:5], drawn.size, [len(rows) for rows in drawn.rows]))
