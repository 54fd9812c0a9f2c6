"""Semidefinite programs that end at vertices: no slack at all, a positive definite multiplier; y is then the constraint's own matrix."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.compiler.parametric import random_vertices


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
