"""Boxes with a few rows against HiGHS for emptiness, and what characterises a projection."""

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from hierfl.projections import polyhedron
from tests.projections.reference import check_projection

pytestmark = pytest.mark.usefixtures("x64")
PROJECT, GAP = jax.jit(polyhedron.project), jax.jit(polyhedron.gap)
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
KINDS = ["plain", "equations", "integer", "integer vertex", "dependent", "unbounded", "opposite", "vertex"]
N, K = 8, 4


def example(rng, kind, n=N, k=K):
    """A nonempty set (matrix, low, high, lower, upper) around a point, which may be a vertex of the box."""
    matrix, lower, upper = rng.standard_normal((k, n)), -rng.random(n), rng.random(n)
    if "integer" in kind:
        matrix, lower, upper = np.round(matrix), np.round(2 * lower), np.round(2 * upper)
    if "dependent" in kind:
        matrix[-1] = 2 * matrix[0] - matrix[1]
    inside = lower + (upper - lower) * (rng.integers(0, 2, n) if "vertex" in kind else rng.random(n))
    if "unbounded" in kind:
        lower[rng.random(n) < 0.6], upper[rng.random(n) < 0.6] = -np.inf, np.inf
    value = matrix @ inside
    low, high = value - rng.random(k) * (rng.random(k) < 0.5), value + rng.random(k) * (rng.random(k) < 0.5)
    if "equations" in kind or "dependent" in kind:
        low = high = value
    if "plain" in kind:
        low[0], high[1] = -np.inf, np.inf
    if "opposite" in kind:  # an equation written as two inequalities
        matrix[1], low[0], low[1] = -matrix[0], -np.inf, -np.inf
        high[0], high[1] = value[0], -value[0]
    return matrix, low, high, lower, upper


def violation(matrix, low, high, lower, upper):
    sizes = np.maximum(np.linalg.norm(matrix, axis=1), 1e-300)

    def of(y):
        rows = np.maximum(matrix @ y - high, low - matrix @ y) / sizes
        return max(rows.max(), (lower - y).max(), (y - upper).max())

    return of


@ANY
@given(
    st.integers(0, 10**6), st.sampled_from(KINDS), st.sampled_from([1e-8, 1.0, 1e8]), st.sampled_from([1e-3, 1.0, 1e3])
)
def test_is_the_projection(seed, kind, scale, distance):
    rng = np.random.default_rng(seed)
    matrix, *bounds = example(rng, kind)
    bounds = (10.0 ** rng.integers(-8, 9) * matrix, *(scale * bound for bound in bounds))
    bounds = (
        bounds[0],
        *(np.linalg.norm(bounds[0]) / np.linalg.norm(matrix) * bound for bound in bounds[1:3]),
        *bounds[3:],
    )
    points = scale * distance * rng.standard_normal((15, N))
    projected = check_projection(lambda z: PROJECT(z, *bounds)[0], violation(*bounds), points)
    _, residuals = jax.vmap(lambda z: PROJECT(z, *bounds))(points)
    sizes = 1 + np.linalg.norm(points, axis=1)
    assert (residuals * sizes <= 1e-10 * (sizes + np.linalg.norm(projected, axis=1))).all()
    assert float(GAP(*bounds)) <= 1e-9 * scale


@pytest.mark.parametrize(("n", "k"), [(2000, 20), (500, 50), (100, 3)])
@pytest.mark.parametrize("far", [0.1, 1.0, 100.0])
def test_large_sets(n, k, far):
    """Optimality conditions: z - p = A'm + (normal of the box), to 1e-10, by least squares on the entries off their bounds."""
    rng = np.random.default_rng(n + k)
    matrix, low, high, lower, upper = example(rng, "slack", n, k)
    z = far * rng.standard_normal(n)
    p, residual = map(np.asarray, PROJECT(z, matrix, low, high, lower, upper))
    size = 1 + np.linalg.norm(z)
    assert float(residual) <= 1e-14
    assert violation(matrix, low, high, lower, upper)(p) <= 1e-12 * size
    free = (p > lower + 1e-9) & (p < upper - 1e-9)
    values = matrix @ p
    at_low, at_high = values - low < 1e-9, high - values < 1e-9
    active = at_low | at_high
    m, *_ = np.linalg.lstsq(matrix[active][:, free].T, (z - p)[free], rcond=None)
    remainder = z - p - matrix[active].T @ m
    assert np.abs(remainder[free]).max() <= 1e-11 * size
    assert (remainder[p <= lower + 1e-9] <= 1e-11 * size).all() and (
        remainder[p >= upper - 1e-9] >= -1e-11 * size
    ).all()
    only_high, only_low = (at_high & ~at_low)[active], (at_low & ~at_high)[active]
    assert (m[only_high] >= -1e-11 * size).all() and (m[only_low] <= 1e-11 * size).all()


def test_the_transportation_polytope():
    """Doubly stochastic matrices: dependent equations, and degenerate vertices from far points (permutations)."""
    size = 6
    matrix = np.concatenate([np.kron(np.eye(size), np.ones(size)), np.kron(np.ones(size), np.eye(size))])
    bounds = (matrix, np.ones(2 * size), np.ones(2 * size), np.zeros(size * size), np.full(size * size, np.inf))
    rng = np.random.default_rng(3)
    points = np.concatenate([far * rng.standard_normal((5, size * size)) for far in (0.3, 3.0, 1e3, 1e6)])
    projected = check_projection(lambda z: PROJECT(z, *bounds)[0], violation(*bounds), points)
    assert set(np.round(projected[-1], 9)) == {0.0, 1.0}


@ANY
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([1e-8, 1.0, 1e8]))
def test_emptiness_agrees_with_linear_programming(seed, integer, scale):
    rng = np.random.default_rng(seed)
    matrix, low, high, lower, upper = example(rng, "integer" if integer else "slack")
    shift = rng.standard_normal(K) * rng.choice([0.1, 1.0])
    low, high = low + shift, high + shift
    # the least violation t of the rows: the set is empty when t > 0
    cost = np.r_[np.zeros(N), 1.0]
    rows = np.block([[matrix, -np.ones((K, 1))], [-matrix, -np.ones((K, 1))]])
    answer = linprog(cost, rows, np.r_[high, -low], bounds=[*zip(lower, upper), (0, None)])
    gap = float(GAP(matrix, scale * low, scale * high, scale * lower, scale * upper))
    if answer.fun > 1e-7:
        assert gap > 0
    elif answer.fun < 1e-12:
        assert gap <= 1e-9 * scale
    p, _ = PROJECT(scale * rng.standard_normal(N), matrix, scale * low, scale * high, scale * lower, scale * upper)
    assert np.isfinite(p).all()


@pytest.mark.parametrize("seed", range(30))
def test_emptiness_of_rows_over_entries_without_bounds(seed):
    """The proofs, few in directions, have to be orthogonal to the columns of all entries that have no bounds."""
    rng = np.random.default_rng(seed)
    matrix, proof = np.round(2 * rng.standard_normal((4, 3))), rng.uniform(0.1, 1.0, 4)
    matrix[~matrix.any(axis=1)] = 1.0  # a row of nothing below 0 is no set, whatever the others say
    matrix[3] = -proof[:3] @ matrix[:3] / proof[3]  # proof' matrix = 0
    high = rng.standard_normal(4)
    high[3] = -(proof[:3] @ high[:3] + 0.1) / proof[3]
    without = np.full(3, np.inf)
    assert float(GAP(matrix, np.full(4, -np.inf), high, -without, without)) > 0
    high[3] += 0.2 / proof[3]
    assert float(GAP(matrix, np.full(4, -np.inf), high, -without, without)) <= 0


@pytest.mark.parametrize(
    "bounds",
    [
        (np.ones((2, N)), np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.full(N, -np.inf), np.full(N, np.inf)),
        (np.zeros((1, N)), np.ones(1), np.full(1, np.inf), np.full(N, -np.inf), np.full(N, np.inf)),
        (np.ones((1, N)), np.full(1, -np.inf), np.full(1, -1e-7), np.zeros(N), np.full(N, np.inf)),
        (np.ones((1, N)), np.zeros(1), np.ones(1), np.ones(N), np.zeros(N)),
        (np.ones((1, N)), np.ones(1), np.zeros(1), np.zeros(N), np.ones(N)),
        (np.array([[1.0] * N, [1.0, -1.0] * (N // 2)]), np.zeros(2), np.array([0.0, 9.0]), np.r_[1e-6, np.zeros(N - 1)],
         np.full(N, np.inf)),
    ],
)  # fmt: skip
def test_an_empty_set_has_a_positive_gap_a_residual_and_a_finite_point(bounds):
    assert float(GAP(*bounds)) > 0
    p, residual = PROJECT(np.linspace(-1, 1, N), *bounds)
    assert np.isfinite(p).all() and float(residual) > 1e-9
