"""Singular systems of optimality conditions, against least squares."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from hierfl.compiler.programs.saddle import DENSE, Saddle


def system(p: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.block([[p, rows.T], [rows, np.zeros((len(rows),) * 2)]])


def flat(rng: np.random.Generator, width: int, rank: int, rows: int, twice: int) -> tuple[np.ndarray, np.ndarray]:
    """A curvature of this rank, and rows of which some are sums of others."""
    half, a = rng.normal(size=(rank, width)) / np.sqrt(width), rng.normal(size=(rows, width))
    return half.T @ half, np.vstack([a, rng.normal(size=(twice, rows)) @ a])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("width", "rank", "rows", "twice"), [(6, 6, 2, 1), (6, 2, 3, 2), (30, 5, 10, 10), (9, 0, 3, 1)]
)
def test_what_can_be_solved_is_for_dependent_rows_and_flat_objectives(
    width: int, rank: int, rows: int, twice: int, sparse: bool
) -> None:
    rng = np.random.default_rng(width + rank)
    p, a = flat(rng, width, rank, rows, twice)
    right = system(p, a) @ rng.normal(size=width + len(a))
    given = (sp.csr_array(p), sp.csr_array(a)) if sparse else (p, a)
    v, w, left = Saddle(*given).solve(right[:width], right[width:])
    expected = np.linalg.lstsq(system(p, a), right, rcond=1e-11)[0]
    determined = system(p, a) @ np.concatenate([v, w])
    np.testing.assert_allclose(determined, right, atol=1e-11 * np.abs(right).max())
    assert left < 1e-12
    pushed = np.linalg.pinv(system(p, a)) @ system(p, a)  # onto what the system sees
    np.testing.assert_allclose(pushed @ np.concatenate([v, w]), expected, atol=1e-8 * np.abs(expected).max())


def test_a_large_network_with_its_dependent_balances_is_factorised() -> None:
    """Conservation of flow: the balances of all nodes add up to zero."""
    rng, nodes, arcs = np.random.default_rng(3), 120, 500
    ends = np.array([rng.choice(nodes, 2, replace=False) for _ in range(arcs)])
    a = np.zeros((nodes, arcs))
    a[ends[:, 0], np.arange(arcs)], a[ends[:, 1], np.arange(arcs)] = 1.0, -1.0
    p = np.diag(np.where(rng.random(arcs) < 0.3, 0.0, rng.uniform(0.1, 3.0, arcs)))  # some arcs cost nothing
    assert arcs + nodes > DENSE
    right = system(p, a) @ rng.normal(size=arcs + nodes)
    v, w, left = Saddle(sp.csr_array(p), sp.csr_array(a)).solve(right[:arcs], right[arcs:])
    expected = np.linalg.lstsq(system(p, a), right, rcond=None)[0]
    assert left < 1e-12
    np.testing.assert_allclose(a @ v, right[arcs:], atol=1e-11)
    np.testing.assert_allclose(p @ v, p @ expected[:arcs], atol=1e-9)  # what all solutions share
    np.testing.assert_allclose(a.T @ w, a.T @ expected[arcs:], atol=1e-9)


@pytest.mark.parametrize("size", [4, 300])
def test_what_cannot_be_solved_says_how_much_is_left(size: int) -> None:
    p, a = np.diag(np.r_[0.0, np.ones(size - 1)]), np.eye(size)[[1, 1]]
    right = np.r_[1.0, np.zeros(size - 1)]  # along the flat entry, which no row holds
    given = (p, a) if size < DENSE else (sp.csr_array(p), sp.csr_array(a))
    _, _, left = Saddle(*given).solve(right, np.zeros(2))
    assert left > 0.5


def test_what_rows_with_a_single_entry_fix_is_right_in_large_systems() -> None:
    """Bounds that hold beside other rows, some of them twice, and other rows whose entries are all fixed."""
    rng, width = np.random.default_rng(8), 700
    fixed = rng.choice(width, 300, replace=False)
    bounds = np.zeros((305, width))
    bounds[np.arange(305), np.r_[fixed, fixed[:5]]] = rng.choice([-2.0, 1.0, 0.5], 305)
    bounds[300:] = bounds[:5] * 3.0
    others = np.where(rng.random((60, width)) < 0.02, rng.normal(size=(60, width)), 0.0)
    others[0] = 0.0
    others[0, fixed[:2]] = 1.0, -1.0
    a = np.vstack([others[:30], bounds, others[30:]])
    p = np.diag(rng.uniform(0.5, 2.0, width))
    right = system(p, a) @ rng.normal(size=width + len(a))
    v, w, left = Saddle(sp.csr_array(p), sp.csr_array(a)).solve(right[:width], right[width:])
    assert left < 1e-12
    np.testing.assert_allclose(system(p, a) @ np.concatenate([v, w]), right, atol=1e-10 * np.abs(right).max())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("regular", [True, False])
def test_the_transpose_of_a_map_is_solved_by_the_same_factors(regular: bool, sparse: bool) -> None:
    rng = np.random.default_rng(7)
    p, a = rng.normal(size=(7, 7)), rng.normal(size=(3, 7))
    if not regular:
        p, a = flat(rng, 7, 3, 2, 1)
        p = p + np.outer(p[0], p[1])
    whole = system(p, a)
    known = Saddle(*((sp.csr_array(p), sp.csr_array(a)) if sparse else (p, a)), symmetric=False)
    assert known.is_regular == regular
    for matrix, one in ((whole, known), (whole.T, known.turned)):
        right = matrix @ rng.normal(size=10)
        v, w, left = one.solve(right[:7], right[7:])
        assert left < 1e-12
        np.testing.assert_allclose(matrix @ np.concatenate([v, w]), right, atol=1e-10 * np.abs(right).max())
        if regular:
            np.testing.assert_allclose(np.concatenate([v, w]), np.linalg.solve(matrix, right), atol=1e-9)
