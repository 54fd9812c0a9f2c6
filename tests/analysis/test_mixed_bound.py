"""Bounds on mixed derivatives of mappings with many rows, by hand."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl.analysis.lipschitz as lipschitz
from hierfl.analysis.lipschitz import mixed_bound
from hierfl.atoms.intervals import Interval


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
