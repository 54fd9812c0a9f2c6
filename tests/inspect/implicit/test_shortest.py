"""The shortest combination of gradients and normals, against CVXPY and by its optimality conditions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.inspect.implicit.stationarity import shortest

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
