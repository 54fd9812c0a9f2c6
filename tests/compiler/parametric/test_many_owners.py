"""Owners whose programs are solved together, against each owner's own program by CVXPY, and differences."""

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

A = np.random.default_rng(5).uniform(0.2, 1.0, size=(3, 4))
COST = np.array([1.0, 1.7, 1.2, 2.3])


def recourse(demand: np.ndarray, quadratic: bool) -> hf.Problem:
    """Demands of samples are met at least cost; a linear program for each, or a quadratic one."""
    x, y, d = cp.Variable(name="x"), cp.Variable(4, name="y"), hf.Sample(3, name="d")
    cost = COST @ y + (0.3 * cp.sum_squares(y) if quadratic else 0.0)
    below = hf.ArgMin(y, cost, [A @ y >= d - x, y >= 0, y <= 9], scope="sample")
    federation = hf.Federation([hf.Client({d: part}) for part in np.split(demand, [1, 3])])
    return hf.Problem(hf.Minimize(clients=hf.E(COST @ y) + cp.square(x)), below, federation=federation)


def by_cvxpy(demand: np.ndarray, quadratic: bool, x: float) -> float:
    values = []
    for d in demand:
        y = cp.Variable(4)
        cost = COST @ y + (0.3 * cp.sum_squares(y) if quadratic else 0.0)
        cp.Problem(cp.Minimize(cost), [A @ y >= d - x, y >= 0, y <= 9]).solve(cp.CLARABEL)
        values.append(float(COST @ np.asarray(y.value)))
    parts = np.split(np.asarray(values), [1, 3])
    return float(np.mean([part.mean() for part in parts])) + x**2


@pytest.mark.parametrize("quadratic", [False, True])
def test_many_samples_have_the_answers_of_each(quadratic: bool) -> None:
    demand = np.random.default_rng(1).uniform(0.3, 1.6, size=(300, 3))
    problem = recourse(demand, quadratic)
    assert float(problem.implicit(0.1)) == pytest.approx(by_cvxpy(demand, quadratic, 0.1), rel=1e-6)
    step = 1e-6
    ahead, back = (float(problem.implicit(0.1 + way)) for way in (step, -step))
    assert float(problem.implicit.gradient(0.1)) == pytest.approx((ahead - back) / (2 * step), rel=1e-5)


def test_an_owner_without_an_answer_is_named() -> None:
    demand = np.full((60, 3), 1.0)
    demand[40] = 1e3
    with pytest.raises(hf.EmptyLowerSetError, match="client 2, sample 37"):
        recourse(demand, False).implicit(0.1)


def test_many_clients_hold_rows_of_their_own() -> None:
    rng = np.random.default_rng(2)
    x, y, a, b = cp.Variable(2, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="a"), hf.Sample(name="b")
    data = [(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in rng.integers(1, 9, size=80)]
    lower = hf.E(cp.square(a @ y - b)) + cp.exp(x[0]) * cp.sum_squares(y)
    below = hf.ArgMin(y, lower, [y >= x[1], cp.sum(y) <= 0.8], scope="client")
    federation = hf.Federation([hf.Client({a: rows, b: wanted}) for rows, wanted in data])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), below, federation=federation)
    at, values = np.array([0.2, -0.1]), []
    for rows, wanted in data:
        z = cp.Variable(3)
        cost = cp.sum_squares(rows @ z - wanted) / len(wanted) + np.exp(at[0]) * cp.sum_squares(z)
        cp.Problem(cp.Minimize(cost), [z >= at[1], cp.sum(z) <= 0.8]).solve(cp.CLARABEL)
        values.append(np.sum((z.value - 1) ** 2))
    assert float(problem.implicit(at)) == pytest.approx(np.mean(values), rel=1e-6)
    ways = 1e-6 * np.eye(2)
    slopes = [(float(problem.implicit(at + way)) - float(problem.implicit(at - way))) / 2e-6 for way in ways]
    np.testing.assert_allclose(problem.implicit.gradient(at), slopes, rtol=1e-5, atol=1e-7)
