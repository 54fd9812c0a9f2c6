"""Vertices at which more rows meet than y has scalars: of their many multipliers none may decide which way y moves."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

Level = Callable[[cp.Variable, cp.Variable], cp.Expression]
FORMULA = "a closed form: the largest of two bounds that meet is given the mean of their slopes"
COSTS: dict[str, Level] = {"linear": lambda x, y: y + 0 * x, "squares": lambda x, y: cp.square(y + 1) + 0 * x}


def size_of(cost: Level, rows: Callable[[cp.Variable, cp.Variable], list[cp.Constraint]]) -> hf.Problem:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    return hf.Problem(hf.Minimize(clients=y + 0 * x), hf.ArgMin(y, cost(x, y), rows(x, y)))


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("limit", [None, 5.0])
def test_a_kink_between_two_rows_has_no_gradient(
    name: str, limit: float | None, request: pytest.FixtureRequest
) -> None:
    """y >= x and y >= -x: y is |x|."""
    if name == "squares":
        request.applymarker(pytest.mark.xfail(reason=FORMULA))
    problem = size_of(COSTS[name], lambda x, y: [y >= x, y >= -x, *([] if limit is None else [y <= limit])])
    assert [float(problem.implicit(at)) for at in (-0.5, 0.0, 0.5)] == pytest.approx([0.5, 0.0, 0.5], abs=1e-12)
    assert [float(problem.implicit.gradient(at)) for at in (-0.5, 0.5)] == pytest.approx([-1.0, 1.0], abs=1e-9)
    with pytest.raises(hf.errors.NoGradientError):
        problem.implicit.gradient(0.0)


@pytest.mark.parametrize("name", COSTS)
def test_rows_that_meet_and_move_together_leave_a_gradient(name: str) -> None:
    """y >= x twice, once doubled, and beside a row that falls behind both ways: y is x."""
    problem = size_of(COSTS[name], lambda x, y: [y >= x, 2 * y >= 2 * x, y >= x - cp.square(x)])
    assert float(problem.implicit.gradient(0.0)) == pytest.approx(1.0, abs=1e-9)
    assert float(problem.implicit.gradient(0.3)) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", COSTS)
def test_at_the_end_of_the_domain_the_slope_is_that_from_within(name: str) -> None:
    """x <= y <= 1 at x = 1, where Y is a point: y(x) = x for x <= 1."""
    problem = size_of(COSTS[name], lambda x, y: [y >= x, y <= 1])
    assert float(problem.implicit.gradient(1.0)) == pytest.approx(1.0, abs=1e-9)


def test_a_corner_of_three_rows_in_the_plane() -> None:
    """min y_1 + y_2 with y >= (x, -x) and y_1 + y_2 >= 0, at any x: the third row is met by the corner of the others."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum(y), [y[0] >= x, y[1] >= -x, cp.sum(y) >= 0])
    problem = hf.Problem(hf.Minimize(clients=2 * y[0] + np.array([0.0, 1.0]) @ y), lower)
    for at in (-0.4, 0.0, 0.7):
        assert float(problem.implicit(at)) == pytest.approx(at, abs=1e-12)
        assert float(problem.implicit.gradient(at)) == pytest.approx(1.0, abs=1e-9)


def test_a_direction_has_its_own_multipliers() -> None:
    """|y|_1 <= x + p opens at x = 0: a point with as many rows as there are signs. y leaves it along the entry that gains most."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - np.array([1.0, 0.7])), [cp.norm1(y) <= x[0]])
    implicit = hf.Problem(hf.Minimize(clients=cp.sum(y) + cp.square(x[1])), lower).implicit
    np.testing.assert_allclose(implicit.gradient([0.0, 0.3]), [1.0, 0.6], atol=1e-9)
    scaled = hf.ArgMin(y, cp.sum_squares(y - np.array([1.0, 0.7])), [cp.norm1(cp.multiply(cp.exp(x), y)) <= x[0]])
    within = hf.Problem(hf.Minimize(clients=cp.sum(y) + cp.square(x[1])), scaled).implicit
    step = 1e-7
    here = float(within([0.0, 0.3]))
    assert within.gradient([0.0, 0.3])[0] == pytest.approx((float(within([step, 0.3])) - here) / step, rel=1e-5)
