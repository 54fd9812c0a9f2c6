"""Atoms that are convex on a part of space only: CVXPY's implied domains are kept, or asked for, and never guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

Build = Callable[[Any, Any], Any]


def scalar(
    objective: Build, constraints: Build = lambda x, y: [], on: Callable[[Any], Sequence[Any]] = lambda x: []
) -> Any:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, objective(x, y), constraints(x, y))
    return hf.Problem(hf.Minimize(clients=y + 0 * x), lower=lower, constraints=on(x))


@pytest.mark.parametrize("power", [3, 5, 2.5])
def test_powers_imply_a_nonnegative_argument(power: float) -> None:
    """min y^p + (y - x)^2 at x = -1 is 0 for CVXPY, which implies y >= 0; over the reals y^3 has no minimum."""
    problem = scalar(lambda x, y: cp.power(y, power) + cp.square(y - x), lambda x, y: [cp.abs(y) <= 3])
    assert problem.implicit.response(-1.0) == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("constraints", [lambda x, y: [y >= 0], lambda x, y: []])
def test_a_sign_may_be_declared_or_implied(constraints: Build) -> None:
    problem = scalar(lambda x, y: cp.power(y, 3) + cp.square(y - x), constraints)
    assert problem.implicit.response(1.0) == pytest.approx((-2 + np.sqrt(28)) / 6, abs=1e-12)  # 3 y^2 + 2 y - 2 = 0


@pytest.mark.parametrize("factor", [lambda x: cp.power(x, 3), cp.inv_pos, lambda x: 1 + cp.power(x, 5)])
def test_signs_of_powers_are_believed_on_their_domain_only(factor: Callable[[Any], Any]) -> None:
    def objective(x: Any, y: Any) -> Any:
        return factor(x) * cp.square(y) + cp.square(y) - y

    with pytest.raises(hf.NotConvexError, match="no curvature"):
        scalar(objective, on=lambda x: [cp.abs(x) <= 2])
    problem = scalar(objective, on=lambda x: [x >= 0.5, x <= 2])
    x = cp.Variable(value=1.5)
    assert problem.implicit.response(1.5) == pytest.approx(0.5 / (1 + float(factor(x).value)))


def test_an_odd_power_as_a_bound_may_empty_the_set() -> None:
    problem = scalar(
        lambda x, y: cp.square(y - 1), lambda x, y: [cp.abs(y) <= cp.power(x, 3)], lambda x: [cp.abs(x) <= 2]
    )
    assert problem.check(progress=False)["Y(x) nonempty"].status == "violated"
    with pytest.raises(hf.EmptyLowerSetError):
        problem.implicit(-1.0)


def test_a_fixed_denominator_must_be_declared_positive() -> None:
    def objective(x: Any, y: Any) -> Any:
        return cp.quad_over_lin(y, x) - y

    with pytest.raises(hf.DeclarationError, match="only where x >= 0"):
        scalar(objective)
    problem = scalar(objective, on=lambda x: [x >= 0.1, x <= 1])
    assert problem.implicit.response(0.5) == pytest.approx(0.25)
    with pytest.raises(hf.SettingError, match="outside X"):
        problem.implicit(-1.0)


def test_outside_x_a_lower_level_that_is_convex_on_x_only_is_not_answered() -> None:
    x, y = cp.Variable(2, nonneg=True, name="x"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum(cp.multiply(x, cp.square(y))) - cp.sum(y), [cp.abs(y) <= 1])
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=level)
    np.testing.assert_allclose(problem.implicit.response([1.0, 2.0]), [0.5, 0.25], atol=1e-8)
    with pytest.raises(hf.SettingError, match="outside X"):
        problem.implicit([-1.0, 0.1])
    convex = scalar(lambda x, y: cp.square(y - x), on=lambda x: [x >= 0])
    with pytest.raises(
        hf.SettingError, match="outside X"
    ):  # f is declared on X, though its formula is convex everywhere
        convex.implicit.response(-1.0)


def test_players_keep_the_domain_by_their_own_constraints() -> None:
    a, b, x = cp.Variable(name="a"), cp.Variable(name="b"), cp.Variable(name="x")

    def game(constraints: list[Any]) -> hf.Problem:
        cost = cp.power(a, 3) + cp.square(a) + a * b
        players = hf.Player(a, cost, constraints), hf.Player(b, cp.square(b) + x * b, [cp.abs(b) <= 1])
        return hf.Problem(hf.Minimize(clients=a + b + 0 * x), lower=hf.Nash(*players))

    with pytest.raises(hf.NotConvexError, match="only where a >= 0"):
        game([cp.abs(a) <= 1])
    response = game([a >= 0, a <= 1]).implicit.response(0.5)
    assert response[b] == pytest.approx(-0.25)
    assert response[a] == pytest.approx((-2 + np.sqrt(4 + 3)) / 6)  # 3 a^2 + 2 a - 1/4 = 0


@pytest.mark.parametrize("rows", [lambda x, y: [cp.sum(y) <= cp.sqrt(x), y >= -1], lambda x, y: [y[0] + 2 * y[1] == cp.log(x)]])
def test_no_y_satisfies_a_row_whose_side_is_not_defined(rows: Any) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(hf.Minimize(server=cp.square(x) + cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y - 1), rows(x, y)))
    assert np.isfinite(problem.implicit(1.0))
    with pytest.raises(hf.EmptyLowerSetError, match="no y satisfies"):
        problem.implicit(-1.0)


@pytest.mark.parametrize("coupled", [False, True])
def test_an_infinite_bound_says_nothing_and_the_others_hold(coupled: bool) -> None:
    """Beside y_0 <= inf and y_1 <= 1, where (2, 2) is wanted; the rows of the norm are infinite too."""
    x, y, most = cp.Variable(name="x"), cp.Variable(2, name="y"), cp.Parameter(2, name="most", value=[np.inf, 1.0])
    cost = cp.sum_squares(y - 2 * x) + (cp.square(y[0] - y[1]) if coupled else 0)
    rows = [y <= most, cp.norm1(y) <= most[0], cp.sum(y) <= 5, y >= 0]
    problem = hf.Problem(hf.Minimize(server=cp.square(x) + cp.sum(y)), hf.ArgMin(y, cost, rows))
    np.testing.assert_allclose(problem.implicit.response(1.0), [1.5 if coupled else 2.0, 1.0], atol=1e-9)
    most.value = [np.inf, 0.5]
    np.testing.assert_allclose(problem.implicit.response(1.0), [1.25 if coupled else 2.0, 0.5], atol=1e-9)


TURNED = np.eye(450) - 2.0 / 450  # a reflection, which leaves the eigenvalues alone


@pytest.mark.parametrize("matrix", [np.diag([1.0, -0.2]), np.array([[0.4, 0.6], [0.6, 0.4]]), TURNED @ np.diag(np.linspace(-0.2, 1.0, 450)) @ TURNED])
def test_an_assertion_that_does_not_hold_is_refused(matrix: np.ndarray) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(len(matrix), name="y")
    level = hf.ArgMin(y, cp.quad_form(y, cp.psd_wrap(matrix)) - x * cp.sum(y))
    with pytest.raises(hf.NotConvexError, match=r"eigenvalue -0\.4|eigenvalue -0\.39"):
        hf.Problem(hf.Minimize(clients=cp.sum(y) + 0 * x), level).implicit(1.0)
