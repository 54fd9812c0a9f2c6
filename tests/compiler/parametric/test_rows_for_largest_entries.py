"""Absolute values and largest entries below a bound: answers and multipliers are CVXPY's, and no variables are brought in."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from cvxpy.constraints.constraint import Constraint

import hierfl as hf
from hierfl.compiler.parametric.level_solver import LevelSolver
from hierfl.compiler.parametric.template import LevelTemplate

AT = np.array([1.0, 1.1, 1.2])
CENTRE = 3.0 * np.random.default_rng(0).normal(size=(2, 3))


def _absolute(y, x):
    return cp.abs(y - x[0]) <= 0.5


def _scaled_apart(y, x):
    return cp.abs(y) / 2 <= (1 + np.arange(6).reshape(2, 3)) / 6


def _largest(y, x):
    return cp.max(y) <= x[0]


def _smallest(y, x):
    return cp.min(y) >= -x[0]


def _largest_absolute(y, x):
    return 2 * cp.norm_inf(y) + x[1] <= 3 * x[0]


def _largest_of_three(y, x):
    return cp.maximum(y, -2 * y, 0.1) <= x[0] + 1


def _slack(y, x):
    return cp.abs(y) <= 50 + x[0]


CONSTRAINTS = [_absolute, _scaled_apart, _largest, _smallest, _largest_absolute, _largest_of_three, _slack]


def _in_cvxpy(constrain, x) -> tuple[np.ndarray, Constraint]:
    y = cp.Variable((2, 3))
    constraint = constrain(y, x)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - CENTRE) + x[2] * y[0, 0]), [constraint])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return y.value, constraint


@pytest.mark.parametrize("constrain", CONSTRAINTS)
def test_answers_multipliers_and_gradients(constrain):
    x, y = cp.Variable(3, name="x"), cp.Variable((2, 3), name="y")
    constraint = constrain(y, x)
    lower = hf.ArgMin(y, cp.sum_squares(y - CENTRE) + x[2] * y[0, 0], [constraint])
    f = hf.Problem(hf.Minimize(cp.sum(y)), lower, [x >= 1]).implicit
    expected, same = _in_cvxpy(constrain, AT)
    assert f(AT) == pytest.approx(expected.sum(), abs=1e-9)
    np.testing.assert_allclose(f.multipliers(AT)[constraint], same.dual_value, atol=1e-8)
    step = 1e-4
    beside = [[_in_cvxpy(constrain, AT + s * step * e)[0].sum() for s in (1, -1)] for e in np.eye(3)]
    np.testing.assert_allclose(f.gradient(AT), [(a - b) / (2 * step) for a, b in beside], atol=1e-6)
    assert LevelTemplate.of(cp.sum_squares(y), [constraint], [y]).width == y.size


def test_samples_with_an_absolute_value_are_solved_together(monkeypatch):
    """What is slack is nowhere in doubt, so that no row needs a solver of its own."""
    x, y, a = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="a")
    constraints = [y >= 0, y <= 10, cp.sum(y) >= x + a[0], cp.abs(y[0] - y[1]) <= 50]
    rows = np.random.default_rng(1).uniform(1, 2, size=(50, 2))
    lower = hf.ArgMin(y, (a + 1) @ y, constraints, scope="sample")
    f = hf.Problem(hf.Minimize(clients=hf.E(cp.sum(y))), lower, federation=hf.Federation([hf.Client({a: rows})])).implicit
    monkeypatch.setattr(LevelSolver, "answer", lambda *_: pytest.fail("a row was solved alone"))
    assert f(0.5) == pytest.approx(np.mean(rows[:, 0] + 0.5), abs=1e-9)
