"""Lipschitz constants and moving sets, against analytic values, NumPy norms and finite differences."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
import hierfl.analysis.lipschitz as lipschitz
from hierfl.analysis.lipschitz import gradient_bound, mixed_bound, one_sample
from hierfl.atoms.intervals import Interval

A = np.array([[1.0, 2.0], [0.0, 1.0]])


@pytest.fixture
def pair():
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    return x, y, {x.id: Interval(-np.ones(2), np.ones(2)), y.id: Interval(-np.ones(2), np.array([2.0, 2.0]))}


def test_mixed_derivatives_that_vary_are_bounded_on_the_boxes(pair):
    x, y, known = pair
    found = mixed_bound([cp.sum(cp.multiply(1 + x, cp.square(y)))], [x], known, [y])
    np.testing.assert_allclose(found, 4.0, rtol=1e-9)  # the largest |2 y_j|
    assert mixed_bound([cp.sum(cp.multiply(1 + x, cp.square(y)))], [x], {}, [y]) == np.inf


def test_one_sample_of_a_mean_and_a_total(pair):
    _, y, known = pair
    a = hf.Sample(2, name="a")
    known = {**known, a.id: Interval(np.zeros(2), np.array([3.0, 4.0]))}
    assert gradient_bound(one_sample(hf.E(a @ y), lambda _: 7), [y], known) == pytest.approx(5)
    assert gradient_bound(one_sample(hf.total(a @ y), lambda _: 7), [y], known) == pytest.approx(35)


# --- Bounds on mixed derivatives of mappings with many rows, by hand.


@pytest.mark.parametrize("limit", [lipschitz.ENTRY_LIMIT, 10])
def test_affine_maps_of_any_size_have_a_bound(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lipschitz, "ENTRY_LIMIT", limit)
    rng = np.random.default_rng(0)
    x, y = cp.Variable(5, name="x"), cp.Variable(300, name="y")
    matrix = rng.standard_normal((300, 5))
    known = {x.id: Interval(-np.ones(5), np.ones(5)), y.id: Interval(np.full(300, -np.inf), np.full(300, np.inf))}
    bound = mixed_bound([matrix @ x + cp.square(y) + cp.sum(y)], [x], known)
    exact = np.linalg.norm(matrix, 2 if limit > 10 else "fro")
    assert exact <= bound <= exact * (1 + 1e-9)


def test_what_is_not_affine_has_none() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(300, name="y")
    known = {x.id: Interval(np.array(0.0), np.array(1.0)), y.id: Interval(np.zeros(300), np.ones(300))}
    assert mixed_bound([cp.multiply(cp.exp(x), y)], [x], known) == np.inf


def test_a_bound_on_gradients_whose_squares_are_no_numbers():
    x = cp.Variable(2)
    for size in (1e-200, 1e200):
        assert size * np.sqrt(2) <= gradient_bound(size * cp.sum(x), [x], {}) <= size * 1.4143
