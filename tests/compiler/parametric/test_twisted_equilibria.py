"""Variational inequalities that are not monotone have solutions far apart, and nobody is told that theirs is the only one."""

from __future__ import annotations

import itertools
import warnings

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf


def over_a_box(matrix: np.ndarray, scope: str = "federation") -> hf.Problem:
    """F(x, y) = M y + x / 10 over [-1, 1]^n."""
    size = len(matrix)
    x, y = cp.Variable(size, name="x"), cp.Variable(size, name="y")
    return hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - 1) + cp.sum(y)),
        hf.Equilibrium(y, matrix @ y + 0.1 * x, [y >= -1, y <= 1], scope=scope),
        [cp.abs(x) <= 2],
        hf.Federation([hf.Client(), hf.Client()]) if scope == "client" else None,
    )


def solutions(matrix: np.ndarray, q: np.ndarray) -> list[np.ndarray]:
    """All y with M y + q >= 0 where y = -1, <= 0 where y = 1, and = 0 between, by trying every choice of the three."""
    found = []
    for choice in itertools.product((-1, 0, 1), repeat=len(q)):
        fixed = np.array(choice)
        free, y = fixed == 0, np.array(choice, float)
        y[free] = np.linalg.solve(matrix[np.ix_(free, free)], -(q + matrix @ fixed)[free])
        force = matrix @ y + q
        if (np.abs(y) <= 1).all() and (force[fixed == -1] >= 0).all() and (force[fixed == 1] <= 0).all():
            found.append(y)
    return found


@pytest.mark.parametrize("matrix", [-np.eye(2), np.array([[1.0, 3.0], [3.0, 1.0]]), np.array([[-1.0]])])
@pytest.mark.parametrize("scope", ["federation", "client"])
def test_one_of_several_solutions_is_not_called_the_only_one(matrix: np.ndarray, scope: str) -> None:
    problem, at = over_a_box(matrix, scope), np.full(len(matrix), 0.5)
    every = solutions(matrix, 0.1 * at)
    assert len(every) > 1
    with pytest.warns(hf.LowerLevelWarning, match="not monotone"):
        answer = np.reshape(problem.implicit.response(at), (-1, len(matrix)))
    assert all(min(np.linalg.norm(y - other) for other in every) < 1e-9 for y in answer)
    assert problem.implicit.certificate(at).unique is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem.implicit(0.5 * at)  # it is said once


@pytest.mark.parametrize(
    "matrix", [np.eye(2), np.array([[1.0, 3.0], [-3.0, 1.0]]), np.array([[1e-3, 1.0], [-1.0, 1e-3]])]
)
def test_monotone_maps_are_not_doubted(matrix: np.ndarray) -> None:
    problem, at = over_a_box(matrix), np.full(2, 0.5)
    assert len(solutions(matrix, 0.1 * at)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert problem.implicit.certificate(at).unique


def test_what_is_monotone_at_one_solution_is_not_known_to_be_so_elsewhere() -> None:
    """F = y^3 / 3 - y / 4 has zeros at 0 and at both of +-sqrt(3) / 2, where it rises."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    rising = hf.Equilibrium(y, cp.power(y, 3) / 3 - y / 4 + 0 * x, [y >= 0.1, y <= 2])
    problem = hf.Problem(hf.Minimize(clients=cp.square(x) + y), rising)
    assert problem.implicit.response(0.0) == pytest.approx(np.sqrt(3) / 2)
    assert problem.implicit.certificate(0.0).unique is None
