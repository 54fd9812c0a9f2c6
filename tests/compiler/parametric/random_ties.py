"""Random linear and quadratic levels with ties, under objectives of many kinds, held against the vertices of their solution sets.

More than the few of the tests: ``python -m tests.compiler.parametric.random_ties 300``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np

import hierfl as hf
from tests.random_trials import trials

SCOPES = ("federation", "client", "sample")
SELECTIONS = (None, "optimistic", "pessimistic")
FEW = 2  # scalars of x
NEAR, TOLD = 2e-6, 1e-5  # of f, up to which values agree, and from which solutions are told apart
STEP = 1e-4
EXACT: dict[str, Any] = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}

# convex F of (y, targets c, a matrix m)
CONVEX: dict[str, Callable[..., Any]] = {
    "linear": lambda y, c, m: c @ y,
    "size": lambda y, c, m: cp.abs(c @ y - 0.3),
    "l1": lambda y, c, m: cp.norm1(m @ y - c),
    "norm": lambda y, c, m: cp.norm(y - c),
    "largest size": lambda y, c, m: cp.norm_inf(m @ y - c),
    "largest": lambda y, c, m: cp.max(m @ y),
    "two": lambda y, c, m: cp.maximum(c @ y, y[0] - 0.2),
    "huber": lambda y, c, m: cp.sum(cp.huber(y - c, 0.3)),
    "squares": lambda y, c, m: cp.sum_squares(y - c),
    "one square": lambda y, c, m: cp.square(c @ y),
    "hinges": lambda y, c, m: cp.sum(cp.pos(m @ y - c)),
    "largest two": lambda y, c, m: cp.sum_largest(cp.multiply(c, y), 2),
    "quartic": lambda y, c, m: cp.power(c @ y, 4),
    "exponential": lambda y, c, m: cp.sum(cp.exp(m @ y)),
    "logistic": lambda y, c, m: cp.sum(cp.logistic(m @ y)),
    "mixed": lambda y, c, m: cp.norm1(y - c) + 0.5 * cp.sum_squares(m @ y) + c @ y,
    "nothing": lambda y, c, m: 0 * y[0],
    "entropy": lambda y, c, m: -cp.sum(cp.entr(y + 3)),
}


class Drawn(NamedTuple):
    """min  |r y|^2 / 2 + (q + Q x + s)'y  over  a y <= b + B x, for every shift s; F is ``sign`` times the convex one of name."""

    r: np.ndarray
    q: np.ndarray
    moved: np.ndarray
    a: np.ndarray
    b: np.ndarray
    widened: np.ndarray
    shifts: np.ndarray
    targets: np.ndarray
    m: np.ndarray
    scope: str
    selection: str | None
    name: str
    sign: float
    at: np.ndarray

    @property
    def size(self) -> int:
        return len(self.q)

    def upper(self, y: Any) -> Any:
        """F of (y, one column a point)."""
        whole = self.scope == "federation"
        parts = [self.sign * CONVEX[self.name](y, c, self.m) for c in (self.targets if whole else self.targets[:1])]
        return sum(parts) / len(parts)

    def vertices(self, shift: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Those of the solution set: points of active sets whose multipliers are positive."""
        force, right, found = self.q + self.moved @ x + shift, self.b + self.widened @ x, []
        hessian = self.r.T @ self.r
        for size in range(self.size + 1):
            for held in map(list, combinations(range(len(right)), size)):
                rows = self.a[held]
                system = np.block([[hessian, rows.T], [rows, np.zeros((size, size))]])
                if np.linalg.cond(system) > 1e9:
                    continue
                both = np.linalg.solve(system, np.concatenate([-force, right[held]]))
                y = both[: self.size]
                if (self.a @ y <= right + 1e-9).all() and (both[self.size :] >= -1e-9).all():
                    found.append(y)
        return np.unique(np.round(found, 10), axis=0)

    def ends(self, vertices: np.ndarray) -> tuple[float, float]:
        """(the least, the largest) value of F over their hull."""
        share = cp.Variable(len(vertices), nonneg=True)
        convex = self.sign * self.upper(share @ vertices)
        inside = cp.Problem(cp.Minimize(convex), [cp.sum(share) == 1])
        inside.solve("CLARABEL", **EXACT)
        far = max(float(self.sign * self.upper(cp.Constant(v)).value) for v in vertices)
        near = float(inside.value)
        return (near, far) if self.sign > 0 else (-far, -near)

    def f(self, x: np.ndarray) -> tuple[float, bool]:
        """(f, whether solutions have other values)."""
        values, apart = [], False
        for shift in self.shifts:
            vertices = self.vertices(shift, x)
            low, high = self.ends(vertices)
            apart |= high - low > TOLD * (1 + abs(high))
            if self.selection is None:
                values.append(float(self.upper(cp.Constant(shortest(vertices))).value))
            else:
                values.append(low if self.selection == "optimistic" else high)
        return float(np.mean(values)), apart

    def declared(self) -> hf.Problem:
        n = self.size
        x, y = cp.Variable(FEW, name="x"), cp.Variable(n, name="y")
        s, c = (hf.Sample if self.scope == "sample" else hf.ClientParameter)(n, name="s"), None
        cost = (self.q + self.moved @ x) @ y + 0.5 * cp.sum_squares(self.r @ y)
        rows = [self.a @ y <= self.b + self.widened @ x]
        chosen = {} if self.selection is None else {"selection": self.selection}
        if self.scope == "federation":
            c = hf.ClientParameter(n, name="c")
            clients = [hf.Client({}, {c: target}) for target in self.targets]
            lower = hf.ArgMin(y, cost + self.shifts[0] @ y, rows, **chosen)
            term = self.sign * CONVEX[self.name](y, c, self.m)
        else:
            term = self.upper(y)
            lower = hf.ArgMin(y, cost + s @ y, rows, scope=self.scope, **chosen)
            if self.scope == "sample":
                term, clients = hf.E(term), [hf.Client({s: self.shifts})]
            else:
                clients = [hf.Client({}, {s: shift}) for shift in self.shifts]
        return hf.Problem(hf.Minimize(clients=term), lower, federation=hf.Federation(clients))


def shortest(vertices: np.ndarray) -> np.ndarray:
    """The shortest point of a hull."""
    if len(vertices) == 1:
        return np.asarray(vertices[0])
    share = cp.Variable(len(vertices), nonneg=True)
    cost = cp.sum_squares(share @ vertices)
    cp.Problem(cp.Minimize(cost), [cp.sum(share) == 1]).solve("CLARABEL", **EXACT)
    return np.asarray(share.value @ vertices)


def draw(seed: int) -> Drawn:
    """A level with small whole numbers, so that ties are common; every third one's ties pass as x moves."""
    rng = np.random.default_rng(seed)
    n, scope, selection = int(rng.integers(2, 5)), SCOPES[seed % 3], SELECTIONS[seed // 3 % 3]
    name, sign = list(CONVEX)[seed % len(CONVEX)], -1.0 if rng.random() < 0.35 else 1.0
    quadratic = rng.random() < 0.4
    r = rng.integers(-1, 2, (int(rng.integers(1, n)), n)).astype(float) if quadratic else np.zeros((1, n))
    q = rng.integers(-1, 2, n) * 1.0 if not quadratic else -r.T @ rng.integers(0, 2, len(r))
    cut = rng.integers(-1, 2, (int(rng.integers(1, 3)), n))
    cut = cut[np.abs(cut).sum(axis=1) > 0]
    a = np.vstack([np.eye(n), -np.eye(n), cut]).astype(float)
    b = np.concatenate([np.ones(2 * n), rng.integers(0, 2, len(cut)) + 0.5])
    widened = rng.normal(size=(len(b), FEW)) * (rng.random((len(b), 1)) < 0.4) * 0.3
    owners = 1 if scope == "federation" else int(rng.integers(1, 4))
    shifts = rng.integers(-1, 2, (owners, n)) * (rng.random((owners, 1)) < 0.5) * 1.0
    if quadratic and rng.random() < 0.7:
        shifts *= 0.0
    passing = rng.random() < 0.3
    moved = rng.integers(-1, 2, (n, FEW)) * 1.0 if passing else (r.T @ rng.normal(size=(len(r), FEW)))
    at = np.array([0.5, -0.5]) * (rng.integers(-1, 2, FEW)) if passing else rng.uniform(-0.3, 0.3, FEW)
    targets = rng.normal(size=(int(rng.integers(1, 4)) if scope == "federation" else 1, n))
    return Drawn(r, q, moved, a, b, widened, shifts, targets, rng.normal(size=(n, n)), scope, selection, name, sign, at)


def faults(drawn: Drawn, said: Counter[str] | None = None) -> list[str]:
    """What is said that is not so, or not said; ``said`` counts the gradients and the refusals."""
    said = Counter() if said is None else said
    warnings.filterwarnings("ignore", "Solution may be inaccurate")  # of CVXPY's, at these tolerances
    wrong, (f, apart) = [], drawn.f(drawn.at)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        implicit = drawn.declared().implicit
        try:
            value = float(implicit(drawn.at))
        except hf.errors.NotConvexError:
            return [] if drawn.size > 3 else ["the choice is refused"]
        try:
            gradient = np.asarray(implicit.gradient(drawn.at))
        except hf.NoGradientError:
            gradient = None
    if not abs(value - f) <= NEAR * (1 + abs(f)):
        wrong.append(f"f is {value} for {f}")
    warned = any("several solutions" in str(w.message) for w in heard)
    if warned is not (apart and drawn.selection is None):
        wrong.append(f"warned: {warned}, differs: {apart}")
    beside = [[drawn.f(drawn.at + s * e)[0] for s in (-1, 1)] for e in STEP * np.eye(FEW)]
    left, right = (f - np.array([b for b, _ in beside])) / STEP, (np.array([b for _, b in beside]) - f) / STEP
    smooth = np.abs(left - right).max() <= 2e-2 * (1 + np.abs(left).max())
    said["gradients" if gradient is not None else "refused, smooth" if smooth else "refused, rightly"] += 1
    if gradient is not None and not np.abs(gradient - (left + right) / 2).max() <= 1e-2 * (1 + np.abs(gradient).max()):
        wrong.append(f"gradient {gradient} for {left} and {right}")
    if gradient is not None and not smooth:
        wrong.append(f"a gradient {gradient}, slopes are {left} and {right}")
    if gradient is None and smooth and said is not None:
        said[f"smooth but refused: {drawn.selection} {'LP' if not drawn.r.any() else 'QP'}"] += 1
    return wrong


if __name__ == "__main__":
    trials(draw, faults, lambda drawn: (drawn.scope, drawn.selection, drawn.name, drawn.sign, drawn.size, bool(drawn.r.any())), told=True)
