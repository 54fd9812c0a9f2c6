"""The implicit function and the response, against closed forms, NumPy and CVXPY."""

from __future__ import annotations

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf


def test_several_upper_and_lower_variables() -> None:
    a, b = cp.Variable(2, name="a"), cp.Variable(name="b")
    y, z = cp.Variable(2, name="y"), cp.Variable((2, 2), name="z")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum(y) + cp.sum(z) + b),
        lower=hf.ArgMin(
            [y, z], cp.sum_squares(y - a) + cp.sum_squares(z - b), [y >= 0, cp.norm(z, "fro") <= 1], scope="client"
        ),
        federation=hf.Federation([hf.Client(), hf.Client()]),
    )
    at = {a: np.array([-1.0, 2.0]), b: 3.0}
    response = problem.implicit.response(at)
    np.testing.assert_allclose(response[y], [[0, 2]] * 2, atol=1e-9)
    np.testing.assert_allclose(response[z], np.full((2, 2, 2), 0.5), atol=1e-9)
    assert problem.implicit(at) == pytest.approx(2 + 2 + 3)
    assert problem.implicit({"a": np.array([-1.0, 2.0]), "b": 3.0}) == pytest.approx(7)


def test_plain_parameters_are_read_at_every_evaluation() -> None:
    x, y, p = cp.Variable(name="x"), cp.Variable(name="y"), cp.Parameter(nonneg=True, name="p")
    problem = hf.Problem(hf.Minimize(clients=cp.square(y)), lower=hf.ArgMin(y, cp.square(y - p * x)))
    with pytest.raises(hf.DeclarationError, match=r"parameter 'p' has no value"):
        problem.implicit(1.0)
    for value in (1.0, 2.0):
        p.value = value
        assert problem.implicit(3.0) == pytest.approx((3 * value) ** 2)


def test_function_atom_in_both_levels() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.Function(lambda v: jnp.sum(jnp.cosh(v)), y, convex=True, name="cosh")
    problem = hf.Problem(
        hf.Minimize(clients=hf.Function(lambda a, b: jnp.sum(jnp.sin(a) * b), x, y)),
        lower=hf.ArgMin(y, lower + 0.5 * cp.sum_squares(y - x)),
    )
    point = np.array([0.7, -1.5])
    answer = np.array([scipy.optimize.brentq(lambda t, c=c: np.sinh(t) + t - c, -5, 5, xtol=1e-14) for c in point])
    np.testing.assert_allclose(problem.implicit.response(point), answer, atol=1e-8)
    assert problem.implicit(point) == pytest.approx(np.sum(np.sin(point) * answer), abs=1e-8)


def test_evaluation_never_touches_the_users_variables() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    x.value = np.ones(2)
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, 0.5 * cp.sum_squares(y - x) + cp.norm1(y)))
    problem.implicit(np.zeros(2))
    np.testing.assert_array_equal(x.value, np.ones(2))
    assert y.value is None


def test_two_values_for_one_variable_are_refused() -> None:
    x, w = cp.Variable(2, name="x"), cp.Variable(name="w")
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(x) + cp.square(w)))
    with pytest.raises(hf.DataError, match="x is given twice for 'x', by the variable and by its name"):
        problem.implicit({x: [1.0, 2.0], "x": [5.0, 6.0], w: 0.0})


def test_values_by_variable_are_found_by_name_however_they_are_asked_for() -> None:
    x, w = cp.Variable(2, name="x"), cp.Variable(name="w")
    found = hf.Problem(hf.Minimize(server=cp.sum_squares(x) + cp.square(w))).implicit.project({x: [1.0, 2.0], w: 3.0})
    for key in (w, "w"):
        assert key in found and found[key] == found.get(key) == 3.0
    for other in (cp.Variable(name="w"), "u", 0):
        assert other not in found and found.get(other, 7.0) == 7.0


def test_a_point_outside_x_is_refused_with_the_nearest() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - y)),
        lower=hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]),
        constraints=[x >= -1],
    )
    implicit, outside = problem.implicit, np.array([-3.0, 0.5])
    for ask in (implicit, implicit.response, implicit.certificate, implicit.gradient, implicit.multipliers):
        with pytest.raises(hf.SettingError, match=r"x is 2 outside X.*nearest point of X is \[-1\. +0\.5\]"):
            ask(outside)
    assert implicit(np.array([-1.0, 0.5])) == pytest.approx(1.0)
    assert implicit(np.array([-1.0 - 1e-9, 0.5])) == pytest.approx(1.0)  # rounding
    assert np.isfinite(implicit.smoothed(np.array([-1.0, 0.5]), 0.1, 16))  # asked at projections


# --- A value asked again is not evaluated again, unless something may have changed.


def test_an_answer_that_is_written_into_does_not_change_what_is_kept() -> None:
    x, y, at = cp.Variable(2, name="x"), cp.Variable(2, name="y"), np.array([0.25, 0.5])
    response = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0, y <= 1])).implicit.response
    first = response(at)
    first[:] = 7.0
    np.testing.assert_allclose(response(at), at, atol=1e-12)
    at[0] = 0.75
    np.testing.assert_allclose(response(at), [0.75, 0.5], atol=1e-12)


def test_a_black_box_is_asked_each_time() -> None:
    asked: list[float] = []

    def measured(x: np.ndarray) -> float:
        asked.append(float(x[0]))
        return float(x[0]) + len(asked)

    x, y = cp.Variable(1, name="x"), cp.Variable(1, name="y")
    below = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
    upper = hf.BlackBox(measured, x) + cp.sum(y)
    problem = hf.Problem(hf.Minimize(clients=upper), lower=below, constraints=[x >= 0, x <= 1])
    first = problem.implicit(np.array([0.5]))
    count = len(asked)
    assert problem.implicit(np.array([0.5])) > first and len(asked) > count
