"""Values of parameters: whatever is kept from one of them, the next is answered as by a fresh declaration, or by hand."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ImplicitGradient, LocalSGDA


def in_a_box() -> tuple[hf.Problem, cp.Parameter]:
    """f(x) = |x - 2|^2 + |y|_1 with y = x on X = {x <= p}: each entry's minimiser is min(p, 1.5)."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    p = cp.Parameter(nonneg=True, value=1.0, name="p")
    level = hf.ArgMin(y, cp.sum_squares(y - x), [y <= p])
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 2) + cp.norm1(y)), level, [x <= p]), p


def test_references_and_slices_follow_the_set() -> None:
    problem, p = in_a_box()
    for value in (1.0, 2.5, 0.5):
        p.value = value
        best = min(value, 1.5)
        found = problem.reference(progress=False)
        np.testing.assert_allclose(found.x, [best, best], atol=1e-5)
        assert found.value == pytest.approx(2 * ((best - 2) ** 2 + best), abs=1e-6)
        shown = problem.implicit.slice([0.0, 0.0], direction=[1.0, 0.0], radius=4.0, progress=False)
        known = shown.t[np.isfinite(shown.value)]
        assert known[0] == -4 and abs(known[-1] - value) <= 0.02


def test_rounds_project_on_the_set_of_now() -> None:
    problem, p = in_a_box()
    solver = ImplicitGradient(step_size=0.2)
    for value in (1.0, 0.5):
        p.value = value
        np.testing.assert_allclose(problem.solve(solver, rounds=60, progress=False).x, value, atol=1e-6)


def test_gradients_by_the_envelope_only_where_the_levels_coincide() -> None:
    """With p = 1 both levels have the same gradient in y, and a gradient of f needs no second derivatives."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    p = cp.Parameter(nonneg=True, name="p")
    upper = x @ y + cp.sum_squares(y) + cp.sum_squares(x)
    level = hf.ArgMin(y, x @ y + p * cp.sum_squares(y), scope="federation")
    problem = hf.Problem(hf.Minimize(clients=upper), level, federation=hf.Federation([hf.Client(), hf.Client()]))
    at = np.array([1.0, -2.0])
    for value in (1.0, 3.0, 1.0, 0.6):
        p.value = value
        expected = 2 * (1 - 1 / (2 * value) + 1 / (4 * value**2)) * at  # y = -x / (2 p)
        np.testing.assert_allclose(problem.implicit.gradient(at), expected, rtol=1e-8)
        step = problem.solve(ImplicitGradient(0.1), rounds=1, x0=at, progress=False)
        np.testing.assert_allclose(step.x, at - 0.1 * expected, rtol=1e-8)


def test_a_game_may_become_minimax_and_cease_to_be_one() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    p = cp.Parameter(nonneg=True, name="p", value=3.0)
    problem = hf.Problem(
        hf.Minimize(clients=x * y - cp.square(y) + cp.square(x)),
        hf.ArgMax(y, x * y - p * cp.square(y)),
        [x >= -1, x <= 1],
    )
    settings = {"rounds": 3, "x0": 0.5, "progress": False}
    for value, minimax in ((3.0, False), (1.0, True), (3.0, False)):
        p.value = value
        if minimax:
            assert problem.solve(LocalSGDA(0.1, ascent_step=0.1), **settings).x < 0.5
        else:
            with pytest.raises(hf.IncompatibleSolverError, match="minimax"):
                problem.solve(LocalSGDA(0.1, ascent_step=0.1), **settings)


@pytest.mark.parametrize("scope", ["federation", "client", "sample"])
@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (-np.inf, 2.0), (-np.inf, np.inf)])
def test_an_entry_that_nothing_determines_stays_where_it_is(scope: str, bounds: tuple[float, float]) -> None:
    """Entry 1 loses its curvature and its cost; the others answer q_j y_j = x_j / 2, and f is theirs to first order."""
    x, y, u = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    q, cost = (cp.Parameter(3, nonneg=True, name=name, value=np.ones(3)) for name in ("q", "cost"))
    inner = q @ cp.square(y) - cp.multiply(cost, x) @ y
    upper = cp.sum_squares(y - 0.3) + 0.1 * cp.sum_squares(x)
    if scope == "sample":
        inner, upper = inner + cp.sum(cp.multiply(cost, cp.multiply(u, y))), hf.E(upper)
    low, high = bounds
    sets = [y >= low] * (low > -np.inf) + [y <= high] * (high < np.inf)
    clients = [hf.Client({u: np.zeros((count, 3))} if scope == "sample" else {}) for count in (1, 3)]
    problem = hf.Problem(
        hf.Minimize(clients=upper), hf.ArgMin(y, inner, sets, scope=scope), federation=hf.Federation(clients)
    )
    assert "closed form" in str(problem.explain())
    at = np.array([0.3, 0.2, -0.5])
    problem.implicit.gradient(at)
    q.value, cost.value = np.array([1.0, 0.0, 2.0]), np.array([1.0, 0.0, 1.0])
    answers = np.array([0.15, np.nan, -0.125])
    for found in np.reshape(np.concatenate([np.ravel(part) for part in problem.implicit.response(at)]), (-1, 3)):
        np.testing.assert_allclose(found[[0, 2]], answers[[0, 2]], atol=1e-12)
    expected = 2 * (answers - 0.3) / np.array([2.0, np.inf, 4.0]) + 0.2 * at
    expected[1] = 0.2 * at[1]
    np.testing.assert_allclose(problem.implicit.gradient(at), expected, atol=1e-10)


def test_a_force_that_is_rounding_decides_nothing() -> None:
    """The mean of 0.1, 0.2 and -0.3 is 2e-17: without curvature any y answers, and none is refused."""
    x, y, u = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="u")
    q = cp.Parameter(nonneg=True, name="q", value=1.0)
    level = hf.ArgMin(y, q * cp.square(y) + hf.E(u * y), [y <= 2], scope="client")
    client = hf.Client({u: np.array([0.1, 0.2, -0.3])})
    problem = hf.Problem(hf.Minimize(clients=cp.square(x)), level, federation=hf.Federation([client]))
    assert problem.implicit(1.0) == pytest.approx(1.0)
    q.value = 0.0
    assert problem.implicit(1.0) == pytest.approx(1.0)
