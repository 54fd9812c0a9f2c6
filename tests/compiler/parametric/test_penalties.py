"""Penalties e^x that are next to nothing, as a search for hyperparameters comes to, and far larger than all else: y is that of the limit, as CVXPY finds it."""

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
    "squares": lambda y: cp.sum_squares(A @ y - B),
    "huber": lambda y: cp.sum(cp.huber(A @ y - B)),
    "deviations": lambda y: cp.norm1(A @ y - B),
    "hinge": lambda y: cp.sum(cp.pos(1 - cp.multiply(SIGN, A @ y))) + 0.1 * cp.sum_squares(y),
    "exponential": lambda y: cp.sum(cp.exp(A @ y)) - np.abs(B) @ (A @ y),
    "length": lambda y: cp.norm(A @ y - B),
    "CVaR": lambda y: cp.sum_largest(cp.abs(A @ y - B), 6),
    "fourth power": lambda y: cp.sum(cp.power(A @ y - B, 4)),
}
PENALTIES: dict[str, tuple[Of, Of]] = {  # with what they come to
    "sum of differences": (lambda y: cp.norm1(cp.diff(y)), lambda y: cp.diff(y) == 0),
    "length of differences": (lambda y: cp.norm(cp.diff(y)), lambda y: cp.diff(y) == 0),
    "largest difference": (lambda y: cp.norm_inf(cp.diff(y)), lambda y: cp.diff(y) == 0),
    "excess": (lambda y: cp.sum(cp.pos(y - 0.2)), lambda y: y <= 0.2),
}
EXACT = list(LOSSES)[:5]


def limit(cost: Of, rows: Callable[[Any], list[Any]] = lambda y: []) -> np.ndarray:
    y = cp.Variable(4)
    cp.Problem(cp.Minimize(cost(y)), rows(y)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return np.asarray(y.value)


def penalised(below: Callable[[Any, Any], Any], size: int, rows: Callable[[Any], list[Any]] = lambda y: []) -> hf.ImplicitFunction:
    x, y = cp.Variable(size, name="x"), cp.Variable(4, name="y")
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y) + cp.sum_squares(x)), hf.ArgMin(y, below(x, y), rows(y))).implicit


@pytest.mark.parametrize("loss", [name for name in LOSSES if name not in ("huber", "deviations")])
def test_a_penalty_of_nothing_changes_nothing(loss: str) -> None:
    weights = np.exp([-1.0, -np.inf, -2.0, -3.0])
    implicit = penalised(lambda x, y: LOSSES[loss](y) / 60 + 0.5 * cp.sum(cp.multiply(cp.exp(x), cp.square(y))), 4)
    expected = limit(lambda y: LOSSES[loss](y) / 60 + 0.5 * weights @ cp.square(y))
    for faint in (-40.0, -60.0, -74.0, -90.0, -300.0):
        at = np.array([-1.0, faint, -2.0, -3.0])
        np.testing.assert_allclose(implicit.response(at), expected, atol=1e-4 if loss == "length" else 1e-6)
        assert implicit.certificate(at).lower_residual < 1e-6
        assert implicit.gradient(at)[1] == pytest.approx(2 * faint, abs=1e-12)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", EXACT)
def test_an_exact_penalty_of_any_size_is_its_constraint(loss: str, penalty: str) -> None:
    of_y, constraint = PENALTIES[penalty]
    implicit = penalised(lambda x, y: LOSSES[loss](y) + cp.exp(x[0]) * of_y(y), 1)
    expected = limit(LOSSES[loss], lambda y: [constraint(y)])
    for at in (15.0, 23.0, 32.0, 60.0, 300.0):
        np.testing.assert_allclose(implicit.response([at]), expected, atol=1e-6)
        assert implicit.gradient([at]) == pytest.approx(2 * at, abs=1e-6)


def test_large_penalties_that_cannot_all_be_met_outweigh_all_else() -> None:
    """y in [.8, 1.2], its sum at most 3 and y0 + y1 = 0 leave one y of least penalty: -.8 in y1 costs 1.6 times e^x."""
    far, total = (lambda y: cp.sum(cp.pos(cp.abs(y - 1) - 0.2))), (lambda y: cp.pos(cp.sum(y) - 3))
    implicit = penalised(lambda x, y: LOSSES["squares"](y) + cp.exp(x[0]) * far(y) + cp.exp(x[1]) * total(y), 2, lambda y: [y[0] + y[1] == 0])
    met = limit(LOSSES["squares"], lambda y: [y[0] + y[1] == 0, cp.abs(y[2:] - 1) <= 0.2, cp.abs(y[0]) <= 0.8, cp.sum(y) <= 3])
    for at in ([20.0, 20.0], [27.0, 27.0], [30.0, 25.0]):
        np.testing.assert_allclose(implicit.response(at), met, atol=1e-6)


@pytest.mark.parametrize("loss", EXACT)
def test_squares_that_outweigh_all_else_are_right_or_refused(loss: str) -> None:
    implicit = penalised(lambda x, y: LOSSES[loss](y) + cp.exp(x[0]) * cp.sum_squares(cp.diff(y)), 1)
    expected = limit(LOSSES[loss], lambda y: [cp.diff(y) == 0])
    np.testing.assert_allclose(implicit.response([22.0]), expected, atol=1e-5)
    for at in (27.0, 32.0, 40.0, 80.0):
        try:
            np.testing.assert_allclose(implicit.response([at]), expected, atol=1e-3)
        except hf.LowerLevelError as refused:
            assert "relative error" in str(refused)


def test_penalties_of_each_feature_are_found_without_settings() -> None:
    """The search goes to where some are nothing, and is not stopped there: SciPy's L-BFGS ends at .222843, others below .2256."""
    rng, count, size = np.random.default_rng(2), 400, 12
    rows = rng.standard_normal((2 * count, size)) * np.geomspace(1.0, 0.1, size)
    signs = np.sign(rows @ (rng.standard_normal(size) * (rng.random(size) < 0.5)) + 0.5 * rng.standard_normal(2 * count))
    start = np.log(rng.random(size))
    x, y = cp.Variable(size, name="x"), cp.Variable(size, name="y")

    def loss(part: slice) -> Any:
        return cp.sum(cp.logistic(-cp.multiply(signs[part], rows[part] @ y))) / count

    below = loss(slice(count)) + 0.5 * cp.sum(cp.multiply(cp.exp(x), cp.square(y)))
    problem = hf.Problem(hf.Minimize(clients=loss(slice(count, None))), hf.ArgMin(y, below))
    assert problem.solve(x0=start, rounds=100, progress=False).value < 0.2250


def test_many_owners_answer_the_same() -> None:
    x, y, b = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.ClientParameter(5, name="b")
    data = RNG.normal(size=(6, 5))
    below = cp.sum_squares(A[:5, :2] @ y - b) + cp.exp(x) * cp.abs(y[0] - y[1])
    clients = [hf.Client({}, {b: one}) for one in data]
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, below, scope="client"), federation=hf.Federation(clients))
    along = A[:5, :2].sum(axis=1)
    expected = np.mean([2 * (along @ one) / (along @ along) for one in data])
    for at in (10.0, 24.0, 40.0, 200.0):
        assert problem.implicit(at) == pytest.approx(expected, abs=1e-7)


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
