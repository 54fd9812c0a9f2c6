"""Semidefinite programs that end at vertices: no slack at all, a positive definite multiplier; y is then the constraint's own matrix."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.lower_level.choice import method_asked_for
from hierfl.compiler.lower_level.exact_lower import ExactLower
from tests.compiler.parametric import random_vertices

METHODS = ["default", "parametric program"]
WEIGHTS = np.array([[1.0, 2.0, -0.5], [2.0, 0.3, 1.0], [-0.5, 1.0, 3.0]])


def matrix(x: np.ndarray, order: int) -> np.ndarray:
    return np.diag(np.r_[x[0], x[1], np.ones(order - 2)]) + 0.3 * x[0] * np.ones((order, order))


def declared(cost: str, order: int, method: str) -> tuple[hf.Problem, cp.Constraint]:
    """The least Y, by its trace or its squares, that is above a matrix of x, and above 0."""
    x, y = cp.Variable(2, name="x"), cp.Variable((order, order), symmetric=True, name="y")
    ones = [1.0] * (order - 2)
    above = y - cp.diag(cp.hstack([x[0], x[1], *ones])) - 0.3 * x[0] * np.ones((order, order)) >> 0
    below = cp.trace(y) if cost == "trace" else cp.sum_squares(y)
    weights = WEIGHTS[:order, :order]
    lower = hf.ArgMin(y, below, [above] if cost == "trace" else [above, y >> 0])
    problem = hf.Problem(hf.Minimize(clients=cp.sum(cp.multiply(weights, y)) + 0.5 * cp.sum_squares(y)), lower)
    return by(method, problem), above


def by(method: str, problem: hf.Problem) -> hf.Problem:
    """The problem with its lower level solved by a method."""
    if method != "default":
        compiled = problem.compile()
        asked = method_asked_for(method, compiled.exact.method.structure)
        object.__setattr__(compiled, "exact", ExactLower(compiled.exact.oracles, asked, asked))
    return problem


def value(x: np.ndarray, order: int) -> float:
    y = matrix(x, order)
    return float(np.sum(WEIGHTS[:order, :order] * y) + 0.5 * np.sum(y * y))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("cost", ["trace", "squares"])
def test_value_and_gradient_are_those_of_the_constraints_matrix(cost: str, order: int, method: str) -> None:
    problem, _ = declared(cost, order, method)
    at = np.array([0.8, 1.3])
    assert float(problem.implicit(at)) == pytest.approx(value(at, order), abs=1e-8)
    slopes = [(value(at + e, order) - value(at - e, order)) / 2e-4 for e in 1e-4 * np.eye(2)]
    np.testing.assert_allclose(problem.implicit.gradient(at), slopes, atol=1e-6)


def test_a_slice_past_vertices_has_no_kinks() -> None:
    problem, _ = declared("trace", 2, "default")
    found = problem.implicit.slice(np.array([0.8, 1.3]), np.array([1.0, 0.5]), radius=0.5, points=21, progress=False)
    assert not len(found.kinks) and not found.kinks.jumps
    unit = np.array([1.0, 0.5]) / np.hypot(1.0, 0.5)
    expected = [value(np.array([0.8, 1.3]) + t * unit, 2) for t in found.t]
    np.testing.assert_allclose(found.value, expected, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_where_an_eigenvalue_leaves_the_cone_the_gradient_is_refused(method: str) -> None:
    """diag(x), x_2 = 0: Y is diag(x_1, max(x_2, 0))."""
    x, y = cp.Variable(2, name="x"), cp.Variable((2, 2), symmetric=True, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y), [y - cp.diag(x) >> 0, y >> 0])
    problem = by(method, hf.Problem(hf.Minimize(clients=cp.sum(y)), lower))
    for at, slope in ((0.4, 1.0), (-0.4, 0.0)):
        assert float(problem.implicit(np.array([1.0, at]))) == pytest.approx(1.0 + max(at, 0), abs=1e-6)
        np.testing.assert_allclose(problem.implicit.gradient(np.array([1.0, at])), [1.0, slope], atol=1e-5)
    with pytest.raises(hf.errors.NoGradientError):
        problem.implicit.gradient(np.array([1.0, 0.0]))


@pytest.mark.parametrize("seed", [*range(8), 46])  # every kind, and eigenvalues that coincide
def test_random_levels_are_those_of_closed_forms(seed: int) -> None:
    assert random_vertices.faults(random_vertices.draw(seed)) == []


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
