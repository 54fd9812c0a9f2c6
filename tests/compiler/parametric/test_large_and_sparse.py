"""Levels whose matrices are large and sparse: right, and never written out."""

from __future__ import annotations

import cvxpy as cp
import jax
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import hierfl as hf
from hierfl.analysis.enclosure import enclose
from hierfl.atoms.intervals import Interval
from hierfl.compiler.expressions.program import Program
from tests.memory import memory_below

SIDE = 3_000


def sparse(seed: int, rows: int = SIDE, columns: int = SIDE) -> sp.csr_array:
    return sp.random_array((rows, columns), density=2e-3, rng=np.random.default_rng(seed), data_sampler=np.random.default_rng(seed).normal).tocsr()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("columns", [None, 2])
def test_products_with_sparse_matrices_are_those_of_scipy(turned: bool, columns: int | None) -> None:
    matrix, draw = sparse(0), np.random.default_rng(1)
    y = cp.Variable(SIDE if columns is None else (columns, SIDE) if turned else (SIDE, columns))
    at, wide = draw.normal(size=y.shape), draw.uniform(0, 1, y.shape)
    expression = y @ matrix if turned else matrix @ y
    expected = at @ matrix if turned else matrix @ at
    with jax.enable_x64(True):
        np.testing.assert_allclose(Program([expression])({y.id: at})[0], expected, atol=1e-12)
    wide[draw.uniform(size=y.shape) < 0.1] = np.inf
    within, dense = Interval(at - wide, at + wide), cp.Constant(matrix.toarray())
    found, plain = (enclose(e, {y.id: within}) for e in (expression, y @ dense if turned else dense @ y))
    np.testing.assert_allclose(found.lo, plain.lo, atol=1e-12)
    np.testing.assert_allclose(found.hi, plain.hi, atol=1e-12)


def test_a_level_over_a_long_chain_takes_memory_as_its_entries_do() -> None:
    """y_j - y_(j+1) <= 1/2 and sum y = x, beside CVXPY; written out the matrix alone would be 200 megabytes."""
    n = 5_000
    steps = sp.diags_array([np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n)).tocsr()
    centre = np.random.default_rng(0).normal(size=n)
    x, y = cp.Variable(name="x"), cp.Variable(n, name="y")
    level = hf.ArgMin(y, 0.5 * cp.sum_squares(y - centre - x), [steps @ y <= 0.5, cp.sum(y) == 10 * x])
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(y - 1) / n), level)
    with memory_below(150_000_000):
        value = problem.implicit(0.3)
    z = cp.Variable(n)
    cp.Problem(cp.Minimize(0.5 * cp.sum_squares(z - centre - 0.3)), [steps @ z <= 0.5, cp.sum(z) == 3.0]).solve(cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    assert value == pytest.approx(np.mean((z.value - 1) ** 2), rel=1e-8)


def test_what_is_checked_of_thousands_of_moving_rows_is_said() -> None:
    """All subsets of 1,100 rows that move are more than a float can count."""
    n = 1_100
    steps = sp.diags_array([np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n)).tocsr()
    x, y = cp.Variable(name="x"), cp.Variable(n, name="y")
    problem = hf.Problem(hf.Minimize(server=cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y - x), [steps @ y <= 0.5 + 0.1 * x]), [cp.abs(x) <= 1])
    assert f"sets of {n - 1} rows" in problem.check(progress=False).details


@pytest.mark.parametrize("sense", [hf.ArgMin, hf.ArgMax])
def test_a_long_linear_cost_moves_as_it_is_written(sense: type) -> None:
    """Shares of 1,500 things at costs that x and client data move: the least cost by linprog, the gradient by what is taken."""
    n, draw = 1_500, np.random.default_rng(2)
    base, pull, own = draw.normal(size=n), draw.normal(size=(n, 2)), draw.normal(size=(2, n))
    x, y, price = cp.Variable(2, name="x"), cp.Variable(n, name="y"), hf.ClientParameter(n, name="price")
    sign = 1.0 if sense is hf.ArgMin else -1.0
    cost = sign * ((base + pull @ x) @ y + cp.sum(cp.multiply(price, y)) + 3.0)
    level = sense(y, cost, [cp.sum(y) == 10, y >= 0, y <= 1], scope="client")
    clients = hf.Federation([hf.Client(parameters={price: one}) for one in own])
    problem = hf.Problem(hf.Minimize(clients=pull.T[0] @ y * x[1]), level, federation=clients)
    at = np.array([0.3, -0.2])
    answers = [linprog(base + pull @ at + one, A_eq=np.ones((1, n)), b_eq=[10], bounds=(0, 1), method="highs").x for one in own]
    worth = np.mean([pull[:, 0] @ answer for answer in answers])
    assert problem.implicit(at) == pytest.approx(worth * at[1], abs=1e-9)
    np.testing.assert_allclose(problem.implicit.gradient(at), [0.0, worth], atol=1e-9)


def test_a_large_dense_linear_program_is_at_a_vertex() -> None:
    """What is solved by interior points first is as exact as what is not: against SciPy's dual simplex method, with its multipliers."""
    rng = np.random.default_rng(4)
    a, price = rng.uniform(0.2, 1.0, (220, 250)), rng.uniform(1.0, 2.0, 250)
    x, y = cp.Variable(name="x"), cp.Variable(250, name="y")
    level = hf.ArgMax(y, price @ y, [a @ y <= 10 + x * np.arange(220) / 220, y >= 0, y <= 1])
    implicit = hf.Problem(hf.Maximize(server=price @ y), level, [cp.abs(x) <= 1]).implicit
    told = linprog(-price, a, 10 + 0.3 * np.arange(220) / 220, bounds=(0, 1), method="highs-ds")
    assert implicit(0.3) == pytest.approx(-told.fun, rel=1e-12)
    assert implicit.gradient(0.3) == pytest.approx(-told.ineqlin.marginals @ np.arange(220) / 220, rel=1e-9)


def test_many_small_softmaxes_over_a_wide_y_meet_their_conditions() -> None:
    """Blocks of curvature along the diagonal of a sparse form; |y - c - x|^2 / 2 + sum_k log_sum_exp(y_k) + 0.3 |y|_1."""
    n = 249
    c = 2 * np.random.default_rng(0).normal(size=n)
    x, y = cp.Variable(name="x"), cp.Variable(n, name="y")
    below = 0.5 * cp.sum_squares(y - c - x) + sum(cp.log_sum_exp(y[k : k + 3]) for k in range(0, n, 3)) + 0.3 * cp.norm1(y)
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, below))
    found = problem.implicit.response(0.5)
    shares = np.exp(found).reshape(-1, 3)
    slope = found - c - 0.5 + (shares / shares.sum(axis=1, keepdims=True)).ravel()
    zero = np.abs(found) < 1e-12
    assert 0 < zero.sum() < n and np.abs(slope[zero]).max() <= 0.3
    np.testing.assert_allclose(slope[~zero], -0.3 * np.sign(found[~zero]), atol=1e-12)
    difference = (problem.implicit(0.5 + 1e-5) - problem.implicit(0.5 - 1e-5)) / 2e-5
    assert problem.implicit.gradient(0.5) == pytest.approx(difference, rel=1e-7)


def test_thousands_of_cones_have_a_gradient() -> None:
    """Groups that shrink by e^x: y_g = (1 - e^x / |b_g|)+ b_g, of which some are 0."""
    groups = np.random.default_rng(2).normal(size=(5_000, 3))
    x, y = cp.Variable(name="x"), cp.Variable((5_000, 3), name="y")
    level = hf.ArgMin(y, 0.5 * cp.sum_squares(y - groups) + cp.exp(x) * cp.sum(cp.norm(y, axis=1)))
    implicit = hf.Problem(hf.Minimize(server=0.5 * cp.sum_squares(y)), level).implicit
    left = np.maximum(np.linalg.norm(groups, axis=1) - 1.2, 0.0)
    assert 500 < (left == 0).sum() < 4_500
    with memory_below(150_000_000):
        assert implicit(np.log(1.2)) == pytest.approx(0.5 * np.sum(left**2), rel=1e-10)
        assert implicit.gradient(np.log(1.2)) == pytest.approx(-1.2 * left.sum(), rel=1e-8)


def test_a_large_matrix_has_a_gradient() -> None:
    """The sparse inverse of a covariance: 400 entries, of which most are 0; its zeros stay, and the others solve T^-1 = S + e^x sign(T)."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(20, 20)) * (rng.uniform(size=(20, 20)) < 0.2)
    covariance = np.linalg.inv(factors @ factors.T + np.eye(20))
    x, t = cp.Variable(name="x"), cp.Variable((20, 20), PSD=True, name="t")
    level = hf.ArgMin(t, cp.trace(covariance @ t) - cp.log_det(t) + cp.exp(x) * cp.sum(cp.abs(t)))
    implicit = hf.Problem(hf.Minimize(server=cp.trace(t)), level).implicit
    t_at = implicit.response(-3.0)
    kept = np.abs(t_at) > 1e-8
    inverse, signs = np.linalg.inv(t_at), np.sign(np.where(kept, t_at, 0.0))
    np.testing.assert_allclose((inverse - covariance)[kept], np.exp(-3.0) * signs[kept], atol=1e-8)
    place = np.flatnonzero(kept)  # - T^-1 dT T^-1 = e^x sign(T) dx where T is not 0
    moves = np.linalg.solve(-np.kron(inverse, inverse)[np.ix_(place, place)], np.exp(-3.0) * signs.ravel()[place])
    assert implicit.gradient(-3.0) == pytest.approx(moves @ np.eye(20).ravel()[place], rel=1e-6)
