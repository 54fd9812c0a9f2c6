"""Proved optima where upper constraints mention y: against formulas, in every scope, and proofs that nothing is feasible."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import BranchAndBound
from tests.runtime.test_penalised_run import mersha_dempe, taxed


def proved(problem: hf.Problem) -> Any:
    found = problem.reference(certificate="global", progress=False)
    assert found.status == "proved", found
    assert problem.implicit.violation(found.x).worst <= 1e-6
    return found


def rows(constraint: Any) -> hf.Problem:
    """z = max(0, u - x) of every row."""
    u, x, z = hf.Sample(name="u"), cp.Variable(name="x", nonneg=True), cp.Variable(name="z")
    lower = hf.ArgMin(z, 0.5 * cp.square(z - u + x), [z >= 0], scope="sample")
    federation = hf.Federation([hf.Client({u: np.array([1.0, 2.0, 3.0])}), hf.Client({u: np.array([2.0, 5.0])})])
    return hf.Problem(hf.Minimize(clients=cp.square(x) + 0 * hf.E(z)), lower, [x <= 10, constraint(z)], federation)


@pytest.mark.parametrize(
    ("declare", "x"),
    [
        (mersha_dempe, 8.0),
        (lambda: taxed(lambda x, y, cap: y <= cap), 5.2),
        (lambda: taxed(lambda x, y, cap: hf.E(y) <= 1), 3.7),
        (lambda: taxed(lambda x, y, cap: hf.total(y) <= 3), 4.0),
        (lambda: taxed(lambda x, y, cap: hf.E(y) == 2), 2.7),
        (lambda: rows(lambda z: z <= 1), 4.0),
        (lambda: rows(lambda z: hf.E(z) <= 1), 3.0),
        (lambda: rows(lambda z: hf.CVaR(z, level=0.25) <= 1), 3.5),  # of the second client 1.5 rows, of which one is 0
        (lambda: rows(lambda z: hf.Worst(z) <= 2), 3.0),
        (lambda: rows(lambda z: hf.E(hf.E(z)) <= 0.5), 3.0),
    ],
)
def test_formulas(declare: Any, x: float) -> None:
    assert proved(declare()).x == pytest.approx(x, abs=1e-6)


def test_that_nothing_is_feasible_is_proved() -> None:
    with pytest.raises(hf.InfeasibleError, match=r"no x of X has an answer that satisfies .* y >= 7 \(proved"):
        taxed(lambda x, y, cap: y >= 7).reference(certificate="global", progress=False)


def test_branch_and_bound_takes_them_as_they_are() -> None:
    result = mersha_dempe().solve(BranchAndBound(), progress=False)
    assert (result.x, result.value) == (pytest.approx(8.0, abs=1e-6), pytest.approx(-20.0, abs=1e-6))
    assert result.violation.feasible
    assert len(result.violation) == 2


def test_whole_numbers_with_a_condition_on_the_answer() -> None:
    """y = n / 2 is at least 1.2: from n = 3 on."""
    n, y = cp.Variable(name="n", integer=True), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(server=cp.square(n)), hf.ArgMin(y, cp.square(y - n / 2)), [n >= 0, n <= 9, y >= 1.2])
    result = problem.solve(progress=False)
    assert result.x == 3.0
    assert result.violation.feasible
