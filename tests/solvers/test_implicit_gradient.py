"""Implicit gradients against finite differences of the exact implicit function, and the federated method on known answers."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.implicit_differentiation import Hypergradient
from hierfl.models import coupled_minimax
from hierfl.solvers import FedRZO, ImplicitGradient, ProjectedSGD

B = np.random.default_rng(0).standard_normal((3, 3))
H = B @ B.T + np.eye(3)
AT = np.array([0.7, -0.5, 1.1])


def differences(problem: hf.Problem, at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Central differences of the exact implicit function."""
    units = step * np.eye(at.size)
    return np.array([(problem.implicit(at + e) - problem.implicit(at - e)) / (2 * step) for e in units])


def test_envelope_of_a_moving_ball_counts_its_multiplier() -> None:
    """With upper = lower objective the gradient is that of the Lagrangian: mu (x - y) alone misses the moving ball."""

    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    moreau = 0.5 * cp.quad_form(y, H) - np.ones(3) @ y + 0.5 * cp.sum_squares(x - y)
    problem = hf.Problem(hf.Minimize(clients=moreau), hf.ArgMin(y, moreau, [cp.norm(y - x) <= 0.3]))
    assert Hypergradient.of(problem.compile(), in_rounds=True).envelope
    gradient, expected = problem.implicit.gradient(AT), differences(problem, AT)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    without = AT - problem.implicit.response(AT)
    assert np.abs(without - expected).max() > 0.1


def test_a_maximised_upper_objective_and_several_variables() -> None:
    x, z, y = cp.Variable(2, name="x"), cp.Variable(name="z"), cp.Variable((2, 2), name="y")
    level = hf.ArgMax(y, -cp.sum_squares(y - z) + x @ y @ np.ones(2), [y >= -0.3])
    problem = hf.Problem(hf.Maximize(clients=cp.sum(y) * z - cp.sum_squares(x)), lower=level)
    at = {x: np.array([0.4, -0.9]), z: np.array(0.2)}
    gradient = problem.implicit.gradient(at)
    for variable, value in at.items():
        for place in np.ndindex(value.shape):
            step = np.zeros(value.shape)
            step[place] = 1e-6
            ends = [problem.implicit({**at, variable: value + sign * step}) for sign in (1, -1)]
            assert gradient[variable][place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


def federated(scope: str) -> hf.Problem:
    rng = np.random.default_rng(1)
    x, y = cp.Variable(2, name="x"), cp.Variable(3, name="y")
    u, v, w = hf.Sample(3, name="u"), hf.Sample(name="v"), hf.Sample(2, name="w")
    slope = rng.standard_normal((3, 2))
    clients = [hf.Client({u: rng.standard_normal((n, 3)), v: rng.standard_normal(n)}) for n in (5, 9, 2)]
    server = hf.E(cp.square(w @ x)) + (cp.sum_squares(y) if scope == "federation" else 0)
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(u @ y - v)) + 0.1 * cp.sum_squares(x - 1), server=server),
        lower=hf.ArgMin(
            y,
            hf.E(0.5 * cp.square(u @ y - v)) + 0.5 * cp.sum_squares(y - slope @ x),
            [cp.norm(y) <= 0.6 + x[0]],
            scope=scope,
        ),
        constraints=[x >= -0.5, x <= 1],
        federation=hf.Federation(clients, server=hf.Client({w: rng.standard_normal((4, 2))})),
    )


@pytest.mark.parametrize("scope", ["federation", "client"])
def test_federations_reach_a_stationary_point_in_few_rounds(scope: str) -> None:
    problem = federated(scope)
    at = np.array([0.3, -0.2])
    np.testing.assert_allclose(problem.implicit.gradient(at), differences(problem, at), atol=1e-6)
    result = problem.solve(ImplicitGradient(step_size=0.2), rounds=150, x0=at, progress=False)
    gradient = problem.implicit.gradient(result.x)
    step = np.clip(result.x - gradient, -0.5, 1) - result.x
    assert np.abs(step).max() < 1e-6
    zeroth = problem.solve(FedRZO(step_size=0.05, batch_size=None), rounds=30, x0=at, progress=False)
    assert problem.solve(ImplicitGradient(step_size=0.2), rounds=30, x0=at, progress=False).value < zeroth.value


def test_no_lower_level_is_gradient_descent() -> None:
    x = cp.Variable(3, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 2)), constraints=[x <= 1])
    result = problem.solve(ImplicitGradient(step_size=0.25), rounds=80, progress=False)
    np.testing.assert_allclose(result.x, 1, atol=1e-12)


def test_inexact_lower_solvers_are_used_as_they_are() -> None:
    problem = federated("client")
    solver = ImplicitGradient(step_size=0.05, lower=ProjectedSGD(steps=3, batch_size=None))
    with pytest.warns(hf.LowerLevelWarning):
        result = problem.solve(solver, rounds=2, progress=False)
    assert result.own_value is not None and np.isfinite(result.own_value)


CONIC = {"exp": lambda y: [cp.sum(cp.exp(y)) <= 3], "logarithm": lambda y: [cp.sum(cp.log(2 + y)) >= 0]}


@pytest.mark.parametrize(("of", "at"), zip(CONIC.values(), (1.0, -1.5)), ids=CONIC)
def test_gradients_over_exponential_cones_are_those_of_differences(of: Any, at: float) -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.Problem(hf.Minimize(server=cp.sum(y)), lower=hf.ArgMin(y, cp.sum_squares(y - x), of(y)))

    def value(here: np.ndarray) -> float:
        nearest, tight = cp.Variable(2), {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
        cp.Problem(cp.Minimize(cp.sum_squares(nearest - here)), of(nearest)).solve(solver=cp.CLARABEL, **tight)
        return float(np.sum(nearest.value))

    here = np.array([at, at + 0.2])
    slopes = [(value(here + way) - value(here - way)) / 2e-3 for way in 1e-3 * np.eye(2)]
    assert lower.implicit(here) == pytest.approx(value(here), abs=1e-6)
    assert lower.implicit.gradient(here) == pytest.approx(slopes, abs=1e-5)
    upper = hf.Problem(hf.Minimize(server=cp.sum(x)), constraints=of(x))
    np.testing.assert_allclose(upper.implicit.gradient(np.full(2, 0.3)), [1, 1])  # within X
    low, high = upper.implicit.stationarity(np.full(2, 0.1), 0.05, progress=False).smoothed_interval
    assert low <= np.sqrt(2) <= high


def test_gradients_over_a_ball_of_fourth_powers() -> None:
    """y is on the sphere sum y^4 = 1, where x - y = z y^3: its tangent moves by the curvature of the Lagrangian."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - x), [cp.sum(cp.power(y, 4)) <= 1])
    f = hf.Problem(hf.Minimize(server=cp.sum(y)), lower).implicit
    at = np.array([1.0, 0.7])
    found = f.response(at)
    assert np.sum(found**4) == pytest.approx(1, abs=1e-10)
    normal = found**3
    multiplier = (at - found) @ normal / (normal @ normal)
    curved = np.diag(1 + 3 * multiplier * found**2)
    system = np.block([[curved, normal[:, None]], [normal[None, :], np.zeros((1, 1))]])
    expected = np.linalg.solve(system, [1.0, 1.0, 0.0])[:2]
    np.testing.assert_allclose(f.gradient(at), expected, atol=1e-7)


def test_refusals_say_what_fits() -> None:
    x = cp.Variable(name="x")
    box = hf.Problem(hf.Minimize(clients=hf.BlackBox(lambda v: float(v**2), x)))
    with pytest.raises(hf.IncompatibleSolverError, match="BlackBox"):
        box.solve(ImplicitGradient(), rounds=1, progress=False)
    with pytest.raises(hf.errors.SettingError, match="lower"):
        ImplicitGradient(lower=3)


@pytest.mark.parametrize(
    ("constraints", "at"),
    [
        (lambda x, y: [y[0] <= -x], 0.0),
        (lambda x, y: [y[0] <= 1 - x], 1.0),
        (lambda x, y: [cp.sum(y) <= x], 0.0),
        (lambda x, y: [cp.sum(y) <= x, y <= 5], 0.0),
        (lambda x, y: [cp.sum(y) == x], 0.0),
    ],
)
def test_moving_bounds_that_are_zero_keep_their_derivative(constraints: Any, at: float) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - np.array([3.0, 2.5])), constraints(x, y))
    f = hf.Problem(hf.Minimize(clients=cp.square(x) + 3 * y[0] + y[1]), lower).implicit
    assert f.gradient(at) == pytest.approx((f(at + 1e-5) - f(at - 1e-5)) / 2e-5, abs=1e-6)


def test_the_minimax_problem_from_its_default_start() -> None:
    result = coupled_minimax().solve(ImplicitGradient(step_size=0.1), rounds=80, progress=False)
    assert result.x == pytest.approx(0.5, abs=1e-5) and result.gap == pytest.approx(0, abs=1e-9)
