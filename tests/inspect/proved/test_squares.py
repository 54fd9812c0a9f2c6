"""Quadratic forms as squares: the same numbers, convex ones alone, and a proof on a problem that only turned coordinates show to be convex."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.stats import ortho_group

import hierfl as hf
from hierfl.inspect.proved.polynomials import Polynomial, Unknowns
from hierfl.inspect.proved.single_level import SingleLevel
from hierfl.inspect.proved.squares import as_squares


def form_of(matrix: np.ndarray, rest: dict[tuple[int, ...], float]) -> Polynomial:
    n = len(matrix)
    return Polynomial.sum_of([(1.0, Polynomial({tuple(sorted((i, j))): matrix[i, j]})) for i in range(n) for j in range(n)] + [(1.0, Polynomial(rest))])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_convex_form_of_any_rank_is_the_same_number_as_squares(sign: float) -> None:
    rng = np.random.default_rng(0)
    for rank in (1, 2, 4):
        root, unknowns = rng.normal(size=(rank, 4)), Unknowns()
        unknowns.array(np.full(4, -np.inf), np.inf)
        one = form_of(sign * root.T @ root, {(0,): 2.0, (): 1.0})
        found = as_squares(one, unknowns, sign)
        assert len(unknowns.definitions) == rank
        assert all(a == b and value * sign > 0 for (a, b), value in ((p, v) for p, v in found.terms.items() if len(p) == 2))
        values = np.concatenate([rng.normal(size=4), np.zeros(rank)])
        assert found.at(unknowns.completed(values)) == pytest.approx(one.at(values), rel=1e-12)


def test_what_is_no_convex_form_stays_as_it_is() -> None:
    unknowns = Unknowns()
    unknowns.array(np.zeros(4), np.inf)
    for one in (form_of(np.array([[1.0, 2.0], [2.0, 1.0]]), {}), form_of(np.eye(2), {}), Polynomial({(0, 0): 1.0, (1, 1): 1.0, (0, 1): 1.0, (0, 0, 1): 1.0})):
        assert as_squares(one, unknowns, 1.0) is one and not unknowns.definitions
    both = Polynomial({(0, 0): 1.0, (1, 1): 1.0, (0, 1): 2.0, (2, 3): 1.0})  # (a + b)^2 + c d
    found = as_squares(both, unknowns, 1.0)
    assert (2, 3) in found.terms and (0, 1) not in found.terms and len(unknowns.definitions) == 1


def test_a_problem_in_turned_coordinates_is_proved() -> None:
    """min |x - 1|^2 / 2 + |y|^2 / 2, y nearest to x in a box, in coordinates turned by an orthogonal matrix: each entry by itself is x - 1 + y y' = 0."""
    turn = ortho_group.rvs(3, random_state=0)
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    u, v = turn @ x, turn @ y
    level = hf.ArgMin(y, 0.5 * cp.sum_squares(v) - u @ v, [v >= -1, v <= 0.25])
    problem = hf.Problem(hf.Minimize(server=0.5 * cp.sum_squares(u - 1) + 0.5 * cp.sum_squares(v)), level)
    grid = np.linspace(-3, 3, 600_001)
    each = (0.5 * (grid - 1) ** 2 + 0.5 * np.clip(grid, -1, 0.25) ** 2).min()
    found = problem.reference(certificate="global", progress=False)
    assert found.status == "proved"
    assert found.value == pytest.approx(3 * each, abs=1e-6)


def test_tolls_times_flows_are_said_by_duality() -> None:
    """What is paid is the price of the demand less the costs: no product of unknowns is left."""
    x, y = cp.Variable(2, name="x", nonneg=True), cp.Variable(3, name="y", nonneg=True)
    paid = x @ y[:2]
    level = hf.ArgMin(y, np.array([1.0, 2.0, 5.0]) @ y + paid, [cp.sum(y) == 2])
    problem = hf.Problem(hf.Maximize(server=paid - 0.1 * cp.sum(x)), level)
    program = SingleLevel.of(problem.compile())
    assert program.is_linear and max(one.degree for one in program.inequalities) == 1
    found = problem.reference(certificate="global", progress=False)
    assert found.status == "proved" and found.value == pytest.approx(7.3)  # tolls 4 and 3: 2 * 4 - 0.7
