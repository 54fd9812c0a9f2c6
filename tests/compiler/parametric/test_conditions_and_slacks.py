"""What lower levels of markets have: variables that constraints alone mention, and conditions on x alone."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf


def test_slacks_and_angles_of_a_network() -> None:
    """Flows by angles, which have no cost, on a ring of three buses; prices and flows are CVXPY's."""
    x = cp.Variable(name="x")
    bend = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [1.0, 0.0, -1.0]])
    load = np.array([0.0, 0.4, 1.0])

    def level(x: Any, output: Any, angle: Any, slack: Any) -> tuple[Any, list[Any]]:
        flow = bend @ angle
        rows = [output - load == bend.T @ flow, flow <= 0.5 + 0.1 * slack, flow >= -0.5, angle[0] == 0, slack <= 1, slack >= 0, output >= 0]
        return np.array([1.0, 3.0, 5.0]) @ output + x * output[0] + 0.2 * cp.sum_squares(output), rows

    variables = output, angle, slack = [cp.Variable(3, name=name) for name in ("output", "angle", "slack")]
    cost, rows = level(x, output, angle, slack)
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(output) + x), hf.ArgMin(variables, cost, rows))
    for at in (0.0, 1.0, 3.0):
        own = [cp.Variable(3) for _ in range(3)]
        cost, rows = level(at, *own)
        cp.Problem(cp.Minimize(cost), rows).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        assert float(problem.implicit(at)) == pytest.approx(float(np.sum(own[0].value ** 2)) + at, rel=1e-7)
        step = (float(problem.implicit(at + 1e-6)) - float(problem.implicit(at - 1e-6))) / 2e-6
        assert float(problem.implicit.gradient(at)) == pytest.approx(step, rel=1e-5)


def test_what_f_does_not_see_may_be_anything_and_what_it_sees_is_warned_of() -> None:
    x, y, t = (cp.Variable(name=name) for name in "xyt")
    level = hf.ArgMin([y, t], cp.square(y - x), [t <= y + 1, t >= y - 1])
    quiet = hf.Problem(hf.Minimize(server=cp.square(y) + x), level)
    assert float(quiet.implicit(0.5)) == pytest.approx(0.75, abs=1e-9)
    seen = hf.Problem(hf.Minimize(server=cp.square(y) + t), level)
    with pytest.warns(hf.LowerLevelWarning, match="several solutions"):
        seen.implicit(0.5)


@pytest.mark.parametrize("curved", [False, True], ids=["closed form", "program"])
def test_a_condition_on_x_empties_the_set(curved: bool) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    sum_rows = [cp.norm(y - x) <= 2, cp.sum(y) <= 5] if curved else [y >= 0]
    problem = hf.Problem(hf.Minimize(server=cp.square(x) + y[0]), hf.ArgMin(y, cp.sum_squares(y - x), [*sum_rows, cp.square(x) <= 1, x >= -0.25]))
    assert float(problem.implicit(0.5)) == pytest.approx(0.75, abs=1e-9)
    with pytest.raises(hf.EmptyLowerSetError, match=r"x = \[2\.\]: x itself does not satisfy square\(x\) <= 1\."):
        problem.implicit(2.0)
    found = problem.solve(progress=False)
    assert found.x == pytest.approx(-0.25 if curved else 0.0, abs=1e-6)  # x^2 + x falls to -1/2, x^2 + max(x, 0) to 0
    line = problem.implicit.slice(0.0, direction=1.0, radius=2.0, points=81, progress=False)
    assert np.isfinite(line.value).sum() == np.sum((line.t >= -0.25) & (line.t <= 1.0))
