"""Declarations as parametric programs: CVXPY finds the same optimum, and differences the same derivatives in theta."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

from hierfl.compiler.parametric import written_for_cvxpy
from hierfl.compiler.parametric.level_form import LevelForm
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.programs.response import Adjoint
from hierfl.compiler.programs.smooth_atoms import SQUARE
from hierfl.compiler.programs.solve_program import solve_program

RNG = np.random.default_rng(20)
M, D = RNG.normal(size=(5, 3)), RNG.normal(size=5)
Q = np.eye(3) + 0.3 * np.ones((3, 3))
Declared = tuple[cp.Expression, list[cp.Constraint], list[cp.Variable]]
Declaration = Callable[[cp.Expression], Declared]


def squares(x: cp.Expression) -> Declared:
    y = cp.Variable(3)
    return (
        cp.sum_squares(M @ y - D) + x[0] ** 2 * cp.sum_squares(y) + x @ y,
        [y >= -1 - x[1] ** 2, cp.sum(y) == x[2]],
        [y],
    )


def quadratic_form(x: cp.Expression) -> Declared:
    y, z = cp.Variable(3), cp.Variable(2)
    return cp.quad_form(y, Q) + cp.sum_squares(z - x[:2]) + x[2] * z[0] * 2, [y + cp.hstack([z, 0]) >= x], [y, z]


def norms(x: cp.Expression) -> Declared:
    y = cp.Variable(3)
    return cp.norm1(M @ y - D) + cp.norm(y - x) + 2 * cp.max(cp.multiply(x, y)) + cp.sum_squares(y), [], [y]


def ball(x: cp.Expression) -> Declared:
    y = cp.Variable(3)
    return x @ y + 0.1 * cp.sum_squares(y), [cp.norm(cp.multiply(1 + x**2, y)) <= 1 + x[1] ** 2], [y]


def quadratic_constraint(x: cp.Expression) -> Declared:
    y = cp.Variable(3)
    return cp.sum_squares(y - 3 * x), [cp.quad_form(y, Q) <= 1 + cp.sum_squares(x), y[0] == x[0] / 5], [y]


def semidefinite(x: cp.Expression) -> Declared:
    y = cp.Variable((3, 3), symmetric=True)
    return cp.sum_squares(y - cp.diag(x) + 1) + cp.lambda_max(y), [y >> 0, cp.trace(y) <= 1 + x[0] ** 2], [y]


def matrices(x: cp.Expression) -> Declared:
    y = cp.Variable((2, 3))
    target = cp.vstack([x, 2 * x])
    return cp.sum_squares(y - target) + cp.norm1(y), [cp.sum(y, axis=0) <= 1, y @ x <= 2], [y]


CASES: tuple[Declaration, ...] = (
    squares,
    quadratic_form,
    norms,
    ball,
    quadratic_constraint,
    semidefinite,
    matrices,
)


def form_of(declaration: Declaration) -> tuple[LevelForm, cp.Variable]:
    x = cp.Variable(3)
    cost, constraints, variables = declaration(x)
    return LevelForm.of([(cost, 1.0, None)], constraints, variables, False), x


def thetas_at(form: LevelForm, x: cp.Variable, value: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(part) for part in form.thetas({x.id: value}, lambda group: ({}, np.zeros(0)))]


@pytest.mark.parametrize("declaration", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_the_programs_optimum_is_that_of_cvxpy(declaration: Declaration, seed: int) -> None:
    value = np.random.default_rng(seed).normal(size=3)
    form, x = form_of(declaration)
    program = form.program(thetas_at(form, x, value))
    found = solve_program(program)
    cost, constraints, variables = declaration(cp.Constant(value))
    expected = cp.Problem(cp.Minimize(cost), constraints).solve("CLARABEL")
    assert found.solved
    start = 0
    for variable in variables:
        variable.save_value(found.u[start : start + variable.size].reshape(variable.shape))
        start += variable.size
    assert float(cost.value) == pytest.approx(expected, abs=1e-6, rel=1e-6)
    assert max([float(np.max(c.violation())) for c in constraints], default=0.0) < 1e-7


def said_of(pair: Adjoint, u: np.ndarray, program: object) -> float:
    """What a pair says of a program's numbers at u, spelled out."""
    p, q, a, b = (np.asarray(part.todense()) if hasattr(part, "todense") else part for part in _numbers(program))
    force = p @ u + q - a.T @ pair.z
    if program.smooth is not None:
        force += program.smooth.gradient(u)
    return float(-pair.a @ force - pair.b @ (a @ u + b))


def _numbers(program: object) -> tuple[object, ...]:
    return program.p, program.q, program.a, program.b


def smooth(x: cp.Expression) -> Declared:
    y = cp.Variable(3)
    risks = cp.sum(cp.logistic(M @ cp.multiply(x, y))) + x[0] ** 2 * cp.log_sum_exp(y - x)
    return risks + cp.sum(cp.exp(y + x)) + cp.sum_squares(cp.multiply(x, y) - 1), [cp.norm(y) <= 3 + x[1]], [y]


@pytest.mark.parametrize("declaration", (*CASES, smooth))
def test_pull_and_push_in_theta_are_those_of_differences(declaration: Declaration) -> None:
    rng = np.random.default_rng(7)
    form, x = form_of(declaration)
    thetas = thetas_at(form, x, np.array([0.7, -0.4, 1.1]))
    program = form.program(thetas)
    u, v = rng.normal(size=(2, program.width))
    pair = Adjoint(v, *rng.normal(size=(2, len(program.b))))
    pulled = form.pull(thetas, pair, u)
    way = [rng.normal(size=part.shape) for part in thetas]
    step = 1e-5
    ahead, behind = (form.program([part + sign * step * d for part, d in zip(thetas, way)]) for sign in (1, -1))
    expected = (said_of(pair, u, ahead) - said_of(pair, u, behind)) / (2 * step)
    assert sum(float(np.sum(slope * d)) for slope, d in zip(pulled, way)) == pytest.approx(expected, rel=2e-7, abs=1e-7)
    force, slack = form.push(thetas, way, u, pair.z)
    assert -pair.a @ force - pair.b @ slack == pytest.approx(expected, rel=2e-7, abs=1e-7)


def test_squares_become_the_quadratic_and_leave_no_cones() -> None:
    form, x = form_of(squares)
    assert [part.atom for part in form.base.smooth] == [SQUARE] * 2
    assert form.polyhedral and form.base.width == 3


def test_repeated_thetas_give_the_program_without_canonicalising_again(monkeypatch: pytest.MonkeyPatch) -> None:
    form, x = form_of(ball)
    monkeypatch.setattr(cp.Problem, "__init__", lambda *_: pytest.fail("CVXPY was asked again"))
    for value in np.eye(3):
        assert solve_program(form.program(thetas_at(form, x, value))).solved


@pytest.mark.parametrize(
    ("cost", "why"),
    [
        (lambda y: -cp.sum_squares(y), "not convex"),
        (lambda y: -cp.geo_mean(y, approx=False), "cone"),
    ],
)
def test_what_has_no_such_program_is_refused_with_the_reason(cost: Callable[..., cp.Expression], why: str) -> None:
    y = cp.Variable(3)
    with pytest.raises(NoStandardFormError, match=why):
        LevelForm.of([(cost(y), 1.0, None)], [], [y], False)


def test_data_times_data_are_a_matrix_as_long_as_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """t (u'y) of parameters t and u has one matrix; where that would be large it is refused, as CVXPY would."""
    y, t, u = cp.Variable(3), cp.Parameter(), cp.Parameter(3)
    cost = cp.pos(1 - t * (u @ y)) + cp.sum_squares(y)
    form = LevelForm.of([(cost, 1.0, None)], [], [y], False)
    theta = np.asarray(form.base.theta_at({t.id: np.array(-2.0), u.id: np.array([1.0, 0.5, -1.0])}), float)
    found = solve_program(form.program([theta])).u[:3]
    z = cp.Variable(3)
    cp.Problem(cp.Minimize(cp.pos(1 + 2 * (np.array([1.0, 0.5, -1.0]) @ z)) + cp.sum_squares(z))).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(found, z.value, atol=1e-6)
    monkeypatch.setattr(written_for_cvxpy, "ENTRIES", 2)
    with pytest.raises(NoStandardFormError, match="canonicalise"):
        LevelForm.of([(cost, 1.0, None)], [], [y], False)


def test_a_square_of_a_positive_part_needs_no_bound_at_zero() -> None:
    """Such a bound would hold wherever the part is zero, with a multiplier of zero: the corner of every squared hinge."""
    y, rows = cp.Variable(3), np.arange(12.0).reshape(4, 3)
    for of in (cp.sum_squares, lambda e: cp.sum(cp.square(e))):
        assert LevelTemplate.of(of(cp.pos(rows @ y - 1)) + cp.sum_squares(y), [], [y]).height == 4
    assert LevelTemplate.of(cp.sum(cp.power(cp.pos(rows @ y - 1), 3)), [], [y]).height > 4  # a cube has no other side
