"""The implicit function of a federation: clients' tables of any length, weights, laws and means, against NumPy."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf


@pytest.mark.parametrize(
    ("weights", "w"),
    [("uniform", np.ones(3) / 3), ("samples", np.array([1, 5, 17]) / 23), ([0.2, 0.5, 0.1], np.array([0.2, 0.5, 0.1]))],
)
def test_ragged_clients_and_the_three_weightings(weights: object, w: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    data, at = [rng.standard_normal((n, 3)) for n in (1, 5, 17)], rng.standard_normal(3)
    x, y, u = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    implicit = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - y) + hf.E(cp.square(u @ x))),
        lower=hf.ArgMin(y, hf.E(0.5 * cp.sum_squares(y - u)) + 0.5 * cp.sum_squares(y - x), scope="client"),
        federation=hf.Federation([hf.Client({u: d}) for d in data], weights=weights),
    ).implicit
    answers = [(d.mean(axis=0) + at) / 2 for d in data]
    expected = sum(w_i * (np.sum((at - y) ** 2) + np.mean((d @ at) ** 2)) for w_i, y, d in zip(w, answers, data))
    assert implicit(at) == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(implicit.response(at), answers, atol=1e-9)


def test_recourse_cost_in_y_alone_may_stand_under_the_mean() -> None:
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    data = np.random.default_rng(0).standard_normal((5, 2))
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x) + hf.E(cp.sum(y)) + hf.total(cp.sum_squares(y))),
        lower=hf.ArgMin(y, cp.sum_squares(y - x - u), [y >= 0], scope="sample"),
        federation=hf.Federation([hf.Client({u: data})]),
    )
    point = np.array([0.2, -0.3])
    answers = np.maximum(point + data, 0)
    expected = point @ point + answers.sum(axis=1).mean() + (answers**2).sum()
    assert problem.implicit(point) == pytest.approx(expected, abs=1e-9)


def test_weights_by_samples_count_the_lower_table() -> None:
    x, y, u, v = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="u"), hf.Sample(name="v")
    clients = [hf.Client([{u: np.zeros(3)}, {v: np.ones(9)}]), hf.Client([{u: np.ones(1)}, {v: np.zeros(9)}])]
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(y - v)) + 0 * x),
        lower=hf.ArgMin(y, hf.E(cp.square(y - u)), scope="client"),
        federation=hf.Federation(clients, weights="samples"),
    )
    assert problem.implicit(0.0) == pytest.approx(0.75 * 1 + 0.25 * 1)
