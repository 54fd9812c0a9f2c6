"""Penalties e^x that are far larger than all else: y is that of the limit, as CVXPY finds it with the penalty as a constraint, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

RNG = np.random.default_rng(0)
A = RNG.normal(size=(60, 4))
B = A @ [1, -1, 2, 0] + 0.5 * RNG.normal(size=60)
SIGN = np.sign(B + 0.5 * RNG.normal(size=60))
Of = Callable[[Any], Any]
LOSSES: dict[str, Of] = {
    "logistic": lambda y: cp.sum(cp.logistic(-cp.multiply(SIGN, A @ y))),
    "huber": lambda y: cp.sum(cp.huber(A @ y - B)),
    "squares": lambda y: cp.sum_squares(A @ y - B),
    "deviations": lambda y: cp.norm1(A @ y - B),
    "hinge": lambda y: cp.sum(cp.pos(1 - cp.multiply(SIGN, A @ y))) + 0.1 * cp.sum_squares(y),
}
PENALTIES: dict[str, tuple[Of, Of]] = {  # with what they come to
    "sum of differences": (lambda y: cp.norm1(cp.diff(y)), lambda y: cp.diff(y) == 0),
    "length of differences": (lambda y: cp.norm(cp.diff(y)), lambda y: cp.diff(y) == 0),
    "largest difference": (lambda y: cp.norm_inf(cp.diff(y)), lambda y: cp.diff(y) == 0),
    "excess": (lambda y: cp.sum(cp.pos(y - 0.2)), lambda y: y <= 0.2),
}


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", LOSSES)
def test_an_exact_penalty_of_any_size_is_its_constraint(loss: str, penalty: str) -> None:
    of_y, limit = PENALTIES[penalty]
    free = cp.Variable(4)
    cp.Problem(cp.Minimize(LOSSES[loss](free)), [limit(free)]).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    x, y = cp.Variable(name="x"), cp.Variable(4, name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y) + cp.square(x)), hf.ArgMin(y, LOSSES[loss](y) + cp.exp(x) * of_y(y)))
    for at in (15.0, 23.0, 32.0, 60.0, 300.0):
        np.testing.assert_allclose(problem.implicit.response(at), free.value, atol=1e-6)
        assert problem.implicit.gradient(at) == pytest.approx(2 * at, abs=1e-6)


def test_large_penalties_that_cannot_all_be_met_outweigh_all_else() -> None:
    """y in [.8, 1.2], its sum at most 3 and y0 + y1 = 0 leave one y of least penalty: -.8 in y1 costs 1.6 times e^x."""
    x, y = cp.Variable(2, name="x"), cp.Variable(4, name="y")
    far, total = cp.sum(cp.pos(cp.abs(y - 1) - 0.2)), cp.pos(cp.sum(y) - 3)
    below = LOSSES["squares"](y) + cp.exp(x[0]) * far + cp.exp(x[1]) * total
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, below, [y[0] + y[1] == 0]))
    free = cp.Variable(4)
    met = [free[0] + free[1] == 0, cp.abs(free[2:] - 1) <= 0.2, cp.abs(free[0]) <= 0.8, cp.sum(free) <= 3]
    cp.Problem(cp.Minimize(LOSSES["squares"](free)), met).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    for at in ([20.0, 20.0], [27.0, 27.0], [30.0, 25.0]):
        np.testing.assert_allclose(problem.implicit.response(at), free.value, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_squares_that_outweigh_all_else_are_right_or_refused(loss: str) -> None:
    free = cp.Variable()
    cp.Problem(cp.Minimize(LOSSES[loss](free * np.ones(4)))).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    x, y = cp.Variable(name="x"), cp.Variable(4, name="y")
    below = LOSSES[loss](y) + cp.exp(x) * cp.sum_squares(cp.diff(y))
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, below))
    np.testing.assert_allclose(problem.implicit.response(22.0), free.value, atol=1e-5)
    for at in (27.0, 32.0, 40.0, 80.0):
        try:
            np.testing.assert_allclose(problem.implicit.response(at), free.value, atol=1e-3)
        except hf.LowerLevelError as refused:
            assert "relative error" in str(refused)


def test_many_owners_answer_the_same() -> None:
    x, y, b = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.ClientParameter(5, name="b")
    data = RNG.normal(size=(6, 5))
    below = cp.sum_squares(A[:5, :2] @ y - b) + cp.exp(x) * cp.abs(y[0] - y[1])
    clients = [hf.Client({}, {b: one}) for one in data]
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, below, scope="client"), federation=hf.Federation(clients))
    along = A[:5, :2].sum(axis=1)
    limit = np.mean([2 * (along @ one) / (along @ along) for one in data])
    for at in (10.0, 24.0, 40.0, 200.0):
        assert problem.implicit(at) == pytest.approx(limit, abs=1e-7)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("at", [0.0, 1e-12])
def test_slopes_that_vanish_at_the_solution_are_hidden_by_nothing(place: int, at: float) -> None:
    """At x = 0 the answer is 0, where fourth powers have no slope: what is left is rounding beside the price of a slack bound."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    cost, row = [
        (cp.power(y - x, 4) + cp.square(2 * y - x), cp.exp(y) + cp.exp(-y) <= 2.5),
        (cp.power(y - x, 4) + cp.square(y), cp.exp(y) <= 5),
        (cp.power(cp.norm(y - x), 1.5) + cp.square(y), cp.logistic(y) <= 5),
    ][place]
    problem = hf.Problem(hf.Minimize(clients=cp.square(y - 1)), hf.ArgMin(y, cost, [row]), [cp.abs(x) <= 3])
    assert problem.implicit(at) == pytest.approx(1.0, abs=1e-6)
