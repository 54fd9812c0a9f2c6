"""The implicit function of a federation: clients' tables of any length, weights, laws and means, against NumPy."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf


def ragged(weights: object) -> tuple[hf.Problem, list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((n, 3)) for n in (1, 5, 17)]
    x, y, u = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - y) + hf.E(cp.square(u @ x))),
        lower=hf.ArgMin(y, hf.E(0.5 * cp.sum_squares(y - u)) + 0.5 * cp.sum_squares(y - x), scope="client"),
        federation=hf.Federation([hf.Client({u: d}) for d in data], weights=weights),
    )
    return problem, data, rng.standard_normal(3)


@pytest.mark.parametrize(
    ("weights", "w"),
    [("uniform", np.ones(3) / 3), ("samples", np.array([1, 5, 17]) / 23), ([0.2, 0.5, 0.1], np.array([0.2, 0.5, 0.1]))],
)
def test_ragged_clients_and_the_three_weightings(weights: object, w: np.ndarray) -> None:
    problem, data, x = ragged(weights)
    answers = [(d.mean(axis=0) + x) / 2 for d in data]
    expected = sum(w_i * (np.sum((x - y) ** 2) + np.mean((d @ x) ** 2)) for w_i, y, d in zip(w, answers, data))
    assert problem.implicit(x) == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(problem.implicit.response(x), answers, atol=1e-9)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_any_ragged_sizes(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = [rng.standard_normal(n) for n in sizes]
    x, s = cp.Variable(name="x"), hf.Sample(name="s")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(x - s)) + hf.total(x * s)),
        federation=hf.Federation([hf.Client({s: d}) for d in data]),
    )
    expected = np.mean([np.mean((0.7 - d) ** 2) + 0.7 * d.sum() for d in data])
    assert problem.implicit(0.7) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_a_sample_that_stands_only_in_the_lower_constraints(weights: str) -> None:
    demand = [np.array([0.5, 2.0, -1.0]), np.array([1.5])]
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(3 * y) + cp.square(x)),
        lower=hf.ArgMin(y, cp.sum_squares(y), [y >= d - x], scope="sample"),
        federation=hf.Federation([hf.Client({d: rows}) for rows in demand], weights=weights),
    )
    means = [np.maximum(rows - 1.0, 0).mean() for rows in demand]
    w = np.array([0.5, 0.5] if weights == "uniform" else [0.75, 0.25])
    assert problem.implicit(1.0) == pytest.approx(3 * w @ means + 1, abs=1e-8)
    kinks = problem.implicit.slice(1.0, radius=1.25).kinks
    np.testing.assert_allclose([kink.t + 1.0 for kink in kinks], [0.5, 1.5, 2.0], atol=1e-6)


def test_training_and_validation_tables_of_different_lengths() -> None:
    rng = np.random.default_rng(2)
    train, valid = rng.standard_normal((11, 2)), rng.standard_normal((4, 2))
    x, y = cp.Variable(nonneg=True, name="x"), cp.Variable(2, name="y")
    u, v = hf.Sample(2, name="u"), hf.Sample(2, name="v")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(v @ y - 1))),
        lower=hf.ArgMin(y, hf.E(cp.square(u @ y - 1)) + x * cp.sum_squares(y), scope="client"),
        federation=hf.Federation([hf.Client([{u: train}, {v: valid}]), hf.Client([{u: valid}, {v: train}])]),
    )

    def ridge(a: np.ndarray) -> np.ndarray:
        return np.linalg.solve(a.T @ a / len(a) + 0.5 * np.eye(2), a.mean(axis=0))

    expected = (np.mean((valid @ ridge(train) - 1) ** 2) + np.mean((train @ ridge(valid) - 1) ** 2)) / 2
    assert problem.implicit(0.5) == pytest.approx(expected, abs=1e-8)


def test_federation_scope_is_the_weighted_mean_and_intersects_private_bounds() -> None:
    x, y, u, cap = (
        cp.Variable(name="x"),
        cp.Variable(2, name="y"),
        hf.Sample(2, name="u"),
        hf.ClientParameter(name="cap"),
    )
    clients = [
        hf.Client({u: np.array([[1.0, 5.0]])}, {cap: 2.0}),
        hf.Client({u: np.array([[3.0, 1.0], [5.0, 1.0]])}, {cap: 3.0}),
    ]
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum(y) * 1.0 + 0 * x, server=cp.square(x) + cp.sum(y)),
        lower=hf.ArgMin(y, hf.E(cp.sum_squares(y - u)) + cp.square(x) * 0, [y <= cap]),
        federation=hf.Federation(clients),
    )
    np.testing.assert_allclose(problem.implicit.response(1.0), np.minimum([2.5, 3.0], 2.0), atol=1e-9)
    assert problem.implicit(1.0) == pytest.approx(4.0 + 1.0 + 4.0)


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
