"""The shortest combination of gradients and normals, against CVXPY and by its optimality conditions."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.inspect.implicit.points import Points
from hierfl.inspect.implicit.stationarity import Neighbourhood, shortest
from tests.inspect.known_functions import problem_of


def by_cvxpy(gradients: np.ndarray, cone: Any) -> float:
    """The distance of 0 from conv(gradients) + cone, ``cone`` a function from a vector to constraints on it."""
    size = np.max(np.linalg.norm(gradients, axis=1))
    weights, normal = cp.Variable(len(gradients), nonneg=True), cp.Variable(gradients.shape[1])
    distance = cp.norm(weights @ (gradients / size) + normal)
    return size * float(cp.Problem(cp.Minimize(distance), [cp.sum(weights) == 1, *cone(normal)]).solve(cp.CLARABEL))


def test_the_shortest_combination_is_cvxpys(x64: None) -> None:
    """Random gradients over polyhedra, lines included, and balls, their normal cones known only by projections."""
    rng, eta = np.random.default_rng(0), 1e-7
    x = cp.Variable(4, name="x")
    rows, at = rng.standard_normal((5, 4)), rng.standard_normal(4)
    unit = at / np.linalg.norm(at)
    active = np.arange(5) < 3

    def rays(n: cp.Variable) -> list:
        weights = cp.Variable(3, nonneg=True)
        return [n == weights @ rows[active]]

    def edge(n: cp.Variable) -> list:
        share = cp.Variable(2)
        return [n == share[0] * rows[0] + share[1] * rows[1], share[1] >= 0]

    radial = cp.Variable(nonneg=True)
    cases = [
        ([rows @ x <= rows @ at + np.where(active, 0, 1)], rays),
        ([rows[0] @ x == rows[0] @ at, rows[1] @ x <= rows[1] @ at], edge),
        ([cp.norm(x) <= np.linalg.norm(at)], lambda n: [n == radial * unit]),
    ]
    positive = 0
    for constraints, cone in cases:
        near = Neighbourhood.of(Points(problem_of(cp.sum(x), *constraints).compile()), at, eta)
        around = at + eta * unit * np.linspace(-1, 1, 8)[:, None]
        for scale in (1e-6, 1e-3, 1.0, 1e4, 1e8) * 2:
            gradients = scale * (rng.standard_normal((12, 4)) + 1.5 * rng.standard_normal(4))
            normals, found = near.shortest(gradients, around)
            assert found.length == pytest.approx(by_cvxpy(gradients, cone), rel=1e-5, abs=1e-6 * scale)
            rest = found.weights @ gradients + found.multipliers @ normals
            np.testing.assert_allclose(rest, found.rest, atol=1e-9 * scale)
            positive += found.length > 0.1 * scale
    assert positive >= 10  # zero is not the answer everywhere


seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(1, 20), st.integers(0, 6), st.floats(-8, 8), st.floats(0, 6))
def test_nothing_is_shorter(seed: int, size: int, count: int, rays: int, power: float, spread: float) -> None:
    """Optimality against every gradient and normal, at all scales and with gradients of very unequal lengths."""
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((count, size)) * 10 ** rng.uniform(-spread, 0, (count, 1)) * 10**power
    normals = rng.standard_normal((rays, size)) * 10 ** rng.uniform(-3, 3, (rays, 1))
    found, longest = shortest(gradients, normals), np.linalg.norm(gradients, axis=1).max()
    assert found.weights.min() >= 0 and found.weights.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(
        found.weights @ gradients + found.multipliers @ normals, found.rest, atol=1e-12 * longest
    )
    if found.length > 1e-9 * longest:
        assert (gradients @ found.rest).min() / found.length >= found.length - 1.1e-9 * longest
        units = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        assert (units @ found.rest).min(initial=0.0) >= -1.1e-9 * longest


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 6), st.floats(-8, 8))
def test_zero_in_the_hull_is_found(seed: int, size: int, power: float) -> None:
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((2 * size, size))
    gradients = np.concatenate([gradients, -rng.dirichlet(np.ones(2 * size))[None] @ gradients]) * 10**power
    assert shortest(gradients, np.zeros((0, size))).length <= 1e-9 * 10**power


def test_a_failing_solver_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def uniform(matrix: np.ndarray, _: np.ndarray, maxiter: int) -> tuple[np.ndarray, float]:
        return np.ones(matrix.shape[1]), 0.0

    monkeypatch.setattr(scipy.optimize, "nnls", uniform)
    with pytest.raises(hf.SettingError, match="optimality conditions are violated"):
        shortest(np.array([[1.0, 0.0], [5.0, 1.0]]), np.zeros((0, 2)))

    def tired(*_: Any, **__: Any) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(scipy.optimize, "nnls", tired)
    with pytest.raises(hf.SettingError, match="Maximum number"):
        shortest(np.array([[1.0, 0.0], [5.0, 1.0]]), np.zeros((0, 2)))
