"""Which of many solutions: the best or the worst for the whole upper objective, against CVXPY and vertices of the known set."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ZOHFL
from hierfl.solvers.lower import Exact
from tests.compiler.parametric import random_ties

SIZE = 4
RNG = np.random.default_rng(11)
C, M = RNG.normal(size=SIZE), RNG.normal(size=(3, SIZE))
Q = M.T @ M
F = Callable[[cp.Expression], cp.Expression]

CONVEX: dict[str, F] = {
    "squares": lambda y: cp.sum_squares(M @ y - 1),
    "quadratic form": lambda y: cp.quad_form(y, Q) + C @ y,
    "l1": lambda y: cp.norm1(M @ y - 1),
    "weighted": lambda y: 3 * cp.abs(C @ y) + cp.sum_squares(y) + cp.maximum(y[0], y[1]),
    "quartic": lambda y: cp.sum(cp.power(M @ y, 4)),
    "exponential": lambda y: cp.sum(cp.exp(M @ y)),
    "logistic": lambda y: cp.sum(cp.logistic(3 * (M @ y))),
    "soft maximum": lambda y: cp.log_sum_exp(3 * (M @ y)),
    "reciprocal": lambda y: cp.sum(cp.inv_pos(y + 0.2)),
    "logarithm": lambda y: -cp.sum(cp.multiply(np.abs(C), cp.log(y + 0.1))),
}
SMOOTH = {"quartic", "exponential", "logistic", "soft maximum", "reciprocal", "logarithm"}


def least(cost: F, total: float) -> float:
    """The least value of a convex cost over 0 <= y <= 1, sum(y) = total, by CVXPY."""
    y = cp.Variable(SIZE)
    return float(cp.Problem(cp.Minimize(cost(y)), [y >= 0, y <= 1, cp.sum(y) == total]).solve("CLARABEL"))


def declared(cost: F, selection: str) -> hf.Problem:
    """min of the cost over the level's many solutions, whose total is x."""
    x, y = cp.Variable(name="x"), cp.Variable(SIZE, name="y")
    lower = hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= 0, y <= 1], selection=selection)
    return hf.Problem(hf.Minimize(server=cost(y)), lower)


REFUSED = pytest.mark.xfail(
    reason="a choice where the curvature of what chooses vanishes is not followed", raises=hf.NoGradientError
)


@pytest.mark.parametrize("size", [5, 200])
def test_large_sets_of_solutions_are_chosen_from_as_well(size: int) -> None:
    """min c'y over the simplex of sum x: the cheapest entry takes all; its gradient is its price."""
    prices = np.random.default_rng(size).uniform(1, 2, size)
    x, y = cp.Variable(name="x"), cp.Variable(size, name="y")
    lower = hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= 0], selection="optimistic")
    problem = hf.Problem(hf.Minimize(clients=prices @ y + cp.sum_squares(x)), lower)
    assert float(problem.implicit(2.0)) == pytest.approx(2 * prices.min() + 4, rel=1e-9)
    assert float(problem.implicit.gradient(2.0)) == pytest.approx(prices.min() + 4, rel=1e-8)


def test_a_choice_is_found_where_the_curvature_of_what_chooses_vanishes() -> None:
    """Newton's models have a curvature of 1e-12 beside rows of 1 there, which is all that they have."""
    problem = declared(CONVEX["quartic"], "optimistic")
    assert [float(problem.implicit(at)) for at in (0.5, 1.37)] == pytest.approx([0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "squares",
        "quadratic form",
        "weighted",
        "l1",
        *(pytest.param(name, marks=REFUSED if name == "quartic" else []) for name in sorted(SMOOTH)),
    ],
)
def test_a_choice_has_the_gradient_of_its_value(name: str) -> None:
    """By differences of CVXPY's optimum over the set."""
    problem, cost, at = declared(CONVEX[name], "optimistic"), CONVEX[name], 1.37
    step = 1e-3
    slope = (least(cost, at + step) - least(cost, at - step)) / (2 * step)
    assert float(problem.implicit.gradient(at)) == pytest.approx(slope, abs=2e-3)


def test_a_worst_vertex_that_leaps_has_no_gradient() -> None:
    """(y_1 - y_2)^2 over y_1 + y_2 = x, 0 <= y <= 1: both ends are as bad, and y is at one of them."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= 0, y <= 1], selection="pessimistic")
    problem = hf.Problem(hf.Minimize(clients=cp.square(y[0] - y[1])), lower)
    assert float(problem.implicit(0.8)) == pytest.approx(0.64, abs=1e-9)
    with pytest.raises(hf.errors.NoGradientError):
        problem.implicit.gradient(0.8)


def test_a_choice_that_leaps_has_no_gradient() -> None:
    """(x + 1) y over all y in [-1, 1]: y is -1 for x > -1 and 1 for x < -1, and f = x^2 - |x + 1|."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, 0 * y + 0 * x, [cp.abs(y) <= 1], selection="optimistic")
    problem = hf.Problem(hf.Minimize(clients=cp.multiply(x, y) + cp.square(x) + y), lower)
    assert float(problem.implicit(-0.5)) == pytest.approx(0.25 - 0.5, abs=1e-9)
    with pytest.raises(hf.errors.NoGradientError):
        problem.implicit.gradient(-1.0)


NEITHER: dict[str, F] = {
    "a saddle": lambda y: cp.square(y[0]) - cp.square(y[1]),
    "a product": lambda y: y[0] * y[1],
    "a waterbed": lambda y: cp.exp(y[0]) - cp.norm(y),
}


@pytest.mark.parametrize("name", NEITHER)
@pytest.mark.parametrize("selection", ["optimistic", "pessimistic"])
def test_what_is_neither_convex_nor_concave_is_refused_by_name(name: str, selection: str) -> None:
    wanted = "convex" if selection == "optimistic" else "concave"
    with pytest.raises(hf.errors.NotConvexError, match=f"selection='{selection}'.*has to be {wanted} in y"):
        declared(NEITHER[name], selection).implicit(1.3)


def test_too_many_vertices_are_refused_with_their_number() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(40, name="y")
    lower = hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= 0, y <= 1], selection="pessimistic")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), lower)
    with pytest.raises(hf.errors.NotConvexError, match="vertices"):
        problem.implicit(3.0)


@pytest.mark.parametrize("seed", [*range(18), 33, 46, 1187])  # all objectives, scopes and selections; a kink of the level itself
def test_random_ties_are_those_of_their_vertices(seed: int) -> None:
    assert random_ties.faults(random_ties.draw(seed)) == []


@pytest.mark.parametrize("count, factor", [(2, 3.0), (10, 3.0), (3, 3.5)])
def test_a_sample_chooses_by_a_total_as_many_times_as_there_are_samples(count: int, factor: float) -> None:
    """Y = [0, 1] for each of N samples, and f the mean of (N - factor) y."""
    x, y, a = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="a")
    level = cp.square(cp.pos(y - a)) + cp.square(cp.pos(-y))
    upper = hf.total(y) - factor * hf.E(y) + cp.square(x)
    for selection, choose in (("optimistic", min), ("pessimistic", max)):
        lower = hf.ArgMin(y, level, scope="sample", selection=selection)
        clients = [hf.Client({a: np.ones(count)})] * 2
        problem = hf.Problem(hf.Minimize(clients=upper), lower, federation=hf.Federation(clients))
        assert problem.implicit(0.0) == pytest.approx(choose(0.0, count - factor), abs=1e-8)
        if selection == "optimistic":
            uneven = hf.Federation([clients[0], hf.Client({a: np.ones(count + 1)})])
            with pytest.raises(hf.NotConvexError, match="a total beside an E"):
                hf.Problem(hf.Minimize(clients=upper), lower, federation=uneven).implicit(0.0)


def test_no_method_is_taken_that_does_not_know_what_is_asked_for() -> None:
    """Prices are known by multipliers, and a selection by all solutions: an iteration on y has neither."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    row = y >= x
    priced = hf.Problem(hf.Minimize(clients=-hf.Dual(row)), hf.ArgMin(y, cp.square(y - 1), [row]), [cp.abs(x) <= 3])
    chosen = hf.ArgMin(y, cp.square(cp.pos(y - x)), [cp.abs(y) <= 3], selection="optimistic")
    for problem, why in ((priced, "it has prices"), (hf.Problem(hf.Minimize(clients=cp.square(y - 5)), chosen), "selection='optimistic' chooses")):
        with pytest.raises(hf.IncompatibleSolverError, match=rf"{why}.* These can: 'parametric program'"):
            problem.solve(ZOHFL(lower=Exact(method="semismooth Newton")), rounds=1, progress=False)


@pytest.mark.parametrize("size", [1, 10])
def test_formulas_say_that_y_is_one_of_several(size: int) -> None:
    """At x = 0 all y are solutions, or all that are alike; f tells them apart, or does not."""
    x, y = cp.Variable(name="x"), cp.Variable(size, name="y")
    cost = x * cp.sum_squares(y) - x * cp.sum(y) if size == 1 else (1 + x) * cp.sum_squares(y - cp.sum(y) / size)
    level = hf.ArgMin(y, cost, [y >= 0, y <= 2])
    with pytest.warns(hf.LowerLevelWarning, match="several solutions.*that of least norm is taken"):
        assert hf.Problem(hf.Minimize(clients=y[0] + x), level, [x >= 0]).implicit(0.0) == pytest.approx(0, abs=1e-9)
    assert hf.Problem(hf.Minimize(clients=cp.square(x)), level, [x >= 0]).implicit(0.0) == 0
