"""Semidefinite levels that end at vertices, against closed forms and CVXPY: no slack at all, a positive definite multiplier.

More random levels than the suite draws: ``python -m tests.compiler.parametric.test_semidefinite_vertices 100``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.random_trials import trials

FEW = 2  # scalars of x
NEAR, STEP = 2e-7, 1e-4  # of values, and between those of differences
KINDS = (
    "largest eigenvalue",  # min t over t I >= M(x)
    "above",  # min <c, Y> over Y >= M(x), c positive definite: no slack
    "positive part",  # min |Y - M(x)|^2 over Y >= 0
    "trace above two",  # min tr Y over Y >= M(x), Y >= 0
    "least eigenvector",  # min <M(x), Y> over tr Y = 1, Y >= 0
    "two blocks",  # min <c, Y> + s t over Y >= M(x), t I >= Y, with two slacks at their ends
)


class Drawn(NamedTuple):
    """M(x) = m_0 + x_1 m_1 + x_2 m_2 + shift of an owner; f is the mean of <w, Y> + |Y|^2 / 2 over owners."""

    kind: str
    scope: str
    m: np.ndarray
    shifts: np.ndarray
    c: np.ndarray
    w: np.ndarray
    at: np.ndarray

    @property
    def order(self) -> int:
        return len(self.c)

    def matrix(self, x: np.ndarray, shift: np.ndarray) -> np.ndarray:
        return np.asarray(self.m[0] + x[0] * self.m[1] + x[1] * self.m[2] + shift)

    def closed(self, x: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """y in one row."""
        matrix = self.matrix(x, shift)
        values, vectors = np.linalg.eigh(matrix)
        if self.kind == "largest eigenvalue":
            return values[-1:]
        if self.kind == "above":
            return matrix
        if self.kind in ("positive part", "trace above two"):
            return (vectors * np.maximum(values, 0)) @ vectors.T
        if self.kind == "least eigenvector":
            return np.outer(vectors[:, 0], vectors[:, 0])
        return np.concatenate([matrix.ravel(), values[-1:]])

    def parts(self, y: Any, matrix: Any) -> tuple[Any, list[Any]]:
        """(cost, constraints) of a level with M(x) as a number or an expression."""
        one = np.eye(self.order)
        if self.kind == "largest eigenvalue":
            return cp.sum(y), [y[0] * one - matrix >> 0]
        if self.kind == "above":
            return cp.sum(cp.multiply(self.c, y)), [y - matrix >> 0]
        if self.kind == "positive part":
            return cp.sum_squares(y - matrix), [y >> 0]
        if self.kind == "trace above two":
            return cp.trace(y), [y - matrix >> 0, y >> 0]
        if self.kind == "least eigenvector":
            return cp.sum(cp.multiply(matrix, y)), [y >> 0, cp.trace(y) == 1]
        below, top = y
        return cp.sum(cp.multiply(self.c, below)) + 0.1 * cp.sum(top), [below - matrix >> 0, top[0] * one - below >> 0]

    def unknown(self) -> Any:
        n = self.order
        if self.kind == "largest eigenvalue":
            return cp.Variable(1, name="t")
        below = cp.Variable((n, n), symmetric=True, name="y")
        return [below, cp.Variable(1, name="t")] if self.kind == "two blocks" else below

    def upper(self, y: np.ndarray) -> float:
        y = y.ravel()
        return float(self.w[: y.size] @ y + 0.5 * y @ y)

    def f(self, x: np.ndarray) -> float:
        return float(np.mean([self.upper(self.closed(x, shift)) for shift in self.shifts]))

    def declared(self) -> tuple[hf.Problem, list[Any]]:
        x, y, n = cp.Variable(FEW, name="x"), self.unknown(), self.order
        leaf = (hf.Sample if self.scope == "sample" else hf.ClientParameter)((n, n), name="s")
        matrix = self.m[0] + x[0] * self.m[1] + x[1] * self.m[2]
        matrix = matrix + (self.shifts[0] if self.scope == "federation" else (leaf + leaf.T) / 2)
        cost, rows = self.parts(y, matrix)
        flat = cp.hstack([cp.vec(part, order="C") for part in (y if isinstance(y, list) else [y])])
        upper = self.w[: flat.size] @ flat + 0.5 * cp.sum_squares(flat)
        if self.scope == "federation":
            return hf.Problem(hf.Minimize(server=upper), hf.ArgMin(y, cost, rows)), rows
        lower = hf.ArgMin(y, cost, rows, scope=self.scope)
        if self.scope == "sample":
            clients, upper = [hf.Client({leaf: self.shifts})], hf.E(upper)
        else:
            clients = [hf.Client({}, {leaf: shift}) for shift in self.shifts]
        return hf.Problem(hf.Minimize(clients=upper), lower, federation=hf.Federation(clients)), rows

    def multiplier(self) -> np.ndarray | None:
        """That of the first constraint, where it is known, of the federation."""
        values, vectors = np.linalg.eigh(self.matrix(self.at, self.shifts[0]))
        if self.kind == "largest eigenvalue" and values[-1] - values[-2] > 1e-6:
            return np.outer(vectors[:, -1], vectors[:, -1])
        return self.c if self.kind == "above" else None


def draw(seed: int) -> Drawn:
    """Every fourth one has eigenvalues that coincide, or that vanish."""
    rng = np.random.default_rng(seed)
    n, kind, scope = int(rng.integers(2, 5)), KINDS[seed % len(KINDS)], ("federation", "client", "sample")[seed % 3]

    def symmetric() -> np.ndarray:
        a = rng.normal(size=(n, n))
        return (a + a.T) / 2

    m = np.array([symmetric() for _ in range(1 + FEW)])
    owners = 1 if scope == "federation" else int(rng.integers(1, 4))
    shifts = np.array([symmetric() for _ in range(owners)])
    a = rng.normal(size=(n, n))
    at = rng.normal(size=FEW)
    if rng.random() < 0.25:  # M(at) is diagonal, with small whole numbers
        shifts = np.repeat(np.diag(rng.integers(-1, 2, n))[None] * 1.0, owners, axis=0)
        m[0] = -at[0] * m[1] - at[1] * m[2]
        if rng.random() < 0.5:
            m[1:] = np.einsum("i,jk->ijk", rng.normal(size=FEW), np.eye(n))
            m[0] = -at[0] * m[1] - at[1] * m[2]
    return Drawn(kind, scope, m, shifts, a @ a.T + np.eye(n), rng.normal(size=n * n + 1), at)


def faults(drawn: Drawn, said: Counter[str] | None = None) -> list[str]:
    """What is said that is not so; ``said`` counts the gradients and the refusals."""
    said = Counter() if said is None else said
    problem, rows = drawn.declared()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        value = float(problem.implicit(drawn.at))
        try:
            gradient = np.asarray(problem.implicit.gradient(drawn.at))
        except hf.NoGradientError:
            gradient = None
        known = drawn.multiplier() if drawn.scope == "federation" else None
        multiplier = None if known is None else problem.implicit.multipliers(drawn.at)[rows[0]]
    warned = any("several solutions" in str(w.message) for w in heard)
    f, wrong = drawn.f(drawn.at), []
    if not abs(value - f) <= NEAR * (1 + abs(f)) and not warned:
        wrong.append(f"f is {value} for {f}")
    if multiplier is not None and not np.abs(np.reshape(multiplier, known.shape) - known).max() <= 1e-5:
        wrong.append(f"multiplier {multiplier} for {known}")
    beside = np.array([[drawn.f(drawn.at + s * e) for s in (-1, 1)] for e in STEP * np.eye(FEW)])
    left, right = (f - beside[:, 0]) / STEP, (beside[:, 1] - f) / STEP
    rounding = NEAR * (1 + abs(f)) / STEP
    smooth = np.abs(left - right).max() <= 2 * rounding + (2e-2 + 10 * STEP) * (1 + np.abs(left).max())
    said["gradients" if gradient is not None else "refused, smooth" if smooth else "refused, rightly"] += 1
    if gradient is not None and not np.abs(gradient - (left + right) / 2).max() <= rounding + 1e-2 * (
        1 + np.abs(gradient).max()
    ):
        wrong.append(f"gradient {gradient} for {left} and {right}")
    if gradient is not None and not smooth:
        wrong.append(f"a gradient {gradient}, slopes are {left} and {right}")
    return wrong


def test_a_slice_past_vertices_has_no_kinks() -> None:
    """The least Y by its trace that is above a matrix of x is that matrix."""
    x, y = cp.Variable(2, name="x"), cp.Variable((2, 2), symmetric=True, name="y")
    weights, centre, unit = np.array([[1.0, 2.0], [2.0, 0.3]]), np.array([0.8, 1.3]), np.array([1.0, 0.5]) / np.hypot(1.0, 0.5)
    lower = hf.ArgMin(y, cp.trace(y), [y - cp.diag(x) - 0.3 * x[0] * np.ones((2, 2)) >> 0])
    problem = hf.Problem(hf.Minimize(clients=cp.sum(cp.multiply(weights, y)) + 0.5 * cp.sum_squares(y)), lower)
    found = problem.implicit.slice(centre, unit, radius=0.5, points=21, progress=False)
    assert not len(found.kinks) and not found.kinks.jumps
    answers = [np.diag(at) + 0.3 * at[0] for at in centre + found.t[:, None] * unit]
    np.testing.assert_allclose(found.value, [np.sum(weights * y) + 0.5 * np.sum(y * y) for y in answers], atol=1e-7)


def test_where_an_eigenvalue_leaves_the_cone_the_gradient_is_refused() -> None:
    """diag(x), x_2 = 0: Y is diag(x_1, max(x_2, 0))."""
    x, y = cp.Variable(2, name="x"), cp.Variable((2, 2), symmetric=True, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y), [y - cp.diag(x) >> 0, y >> 0])
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower)
    for at, slope in ((0.4, 1.0), (-0.4, 0.0)):
        assert float(problem.implicit(np.array([1.0, at]))) == pytest.approx(1.0 + max(at, 0), abs=1e-6)
        np.testing.assert_allclose(problem.implicit.gradient(np.array([1.0, at])), [1.0, slope], atol=1e-5)
    with pytest.raises(hf.errors.NoGradientError):
        problem.implicit.gradient(np.array([1.0, 0.0]))


@pytest.mark.parametrize("seed", range(9))  # every kind, and eigenvalues that coincide
def test_random_levels_are_those_of_closed_forms(seed: int) -> None:
    assert faults(draw(seed)) == []


@pytest.mark.parametrize("attribute", ["symmetric", "PSD", "NSD"])
@pytest.mark.parametrize(
    "term",
    [
        lambda s: cp.lambda_sum_largest(s, 1),
        lambda s: cp.lambda_sum_largest(s, 2),
        lambda s: -cp.lambda_sum_smallest(s, 2),
        lambda s: -cp.von_neumann_entr(s + 9 * np.eye(3)),
        lambda s: cp.matrix_frac(np.ones(3), s + 9 * np.eye(3)),
    ],
)
def test_matrices_that_cvxpy_brings_in_keep_their_attributes(attribute: str, term: Any) -> None:
    """Sums of eigenvalues are told with a semidefinite matrix of CVXPY's own: without that these levels seemed to fall without end."""
    middle = np.array([[1.0, -2.0, 0.5], [-2.0, 0.3, 1.0], [0.5, 1.0, -0.7]])
    x, s, own = cp.Variable(name="x"), cp.Variable((3, 3), name="s", **{attribute: True}), cp.Variable((3, 3), **{attribute: True})
    cp.Problem(cp.Minimize(cp.sum_squares(own - 0.5 * middle) + term(own))).solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    implicit = hf.Problem(hf.Minimize(clients=cp.sum_squares(s)), hf.ArgMin(s, cp.sum_squares(s - x * middle) + term(s)), [cp.abs(x) <= 1]).implicit
    np.testing.assert_allclose(implicit.response(0.5), own.value, atol=2e-6)
    if attribute == "symmetric":  # others may end where an entropy has no curvature, and are refused
        assert implicit.gradient(0.5) == pytest.approx((implicit(0.5 + 1e-4) - implicit(0.5 - 1e-4)) / 2e-4, abs=1e-4)


if __name__ == "__main__":
    trials(draw, faults, lambda drawn: (drawn.kind, drawn.scope, drawn.order, len(drawn.shifts)), told=True)
