"""Answers that hierfl once got wrong, each with the answer by hand or by enumeration, so that they stay right."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ImplicitGradient
from tests.bilevel_answers import quadratic_answer
from tests.bilevel_catalogue import CATALOGUE
from tests.compiler.parametric.engines import Engine, near

# --- envelopes -----------------------------------------------------------------------------------------------------------

CENTRE, ROOM = np.array([0.6, 0.3, 0.1, 0.1]), 0.7


def envelope() -> hf.Problem:
    """The largest x'y - |y|^2 / 2 over a simplex cut by an l1 ball: a function of x without kinks (Danskin)."""
    x, y = cp.Variable(4, name="x"), cp.Variable(4, name="y")
    gain = x @ y - 0.5 * cp.sum_squares(y)
    rows = [y >= 0, cp.sum(y) == 1, cp.norm1(y - CENTRE) <= ROOM]
    return hf.Problem(hf.Minimize(clients=gain), lower=hf.ArgMax(y, gain, rows))


def envelope_response(x: np.ndarray) -> np.ndarray:
    """The projection of x, the l1 ball written as 16 rows."""
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 4)).reshape(4, -1).T
    rows, limits = np.vstack([signs, -np.eye(4)]), np.concatenate([ROOM + signs @ CENTRE, np.zeros(4)])
    return quadratic_answer(np.eye(4), -x, rows, limits, equal=np.ones((1, 4)), totals=np.ones(1))


def test_an_envelope_has_no_kinks(engine: Engine) -> None:
    problem = engine(envelope())
    for direction in (np.array([1.0, 0, 0, 0]), np.array([1.0, -1, 0.5, 0.2])):
        shown = problem.implicit.slice(np.array([0.1, 0.2, 0.3, 0]), direction, radius=2, points=101, progress=False)
        assert len(shown.kinks) == 0, str(shown.kinks)
        for t, value in zip(shown.t[::10], shown.value[::10]):
            x = shown.centre + t * shown.direction
            y = envelope_response(x)
            near(value, x @ y - 0.5 * y @ y)


def test_an_envelope_has_a_gradient_where_y_is_not_differentiable(engine: Engine) -> None:
    """f = min over y >= 0 of y^2 / 2 - x y is -max(x, 0)^2 / 2: C1 at x = 0, where y bends."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    cost = 0.5 * cp.square(y) - x * y
    problem = engine(hf.Problem(hf.Minimize(clients=cost), lower=hf.ArgMin(y, cost, [y >= 0])))
    for at in (-1.0, 0.0, 2.0):
        near(problem.implicit.gradient(at), -max(at, 0.0))
    assert len(problem.implicit.slice(0.0, 1.0, radius=1, points=21, progress=False).kinks) == 0


# --- linear programs below -------------------------------------------------------------------------------------------------


def recourse() -> hf.Problem:
    return next(case for case in CATALOGUE if case.name == "newsvendor").declare()


def test_a_run_over_linear_recourse_ends_where_it_should(engine: Engine) -> None:
    """Between 4 and 6 the slope is 0.8 + (-2 (6 - x) - 2 (7.5 - x) + 3 / 2) / 5, which is 0 at x = 21.5 / 4; before 4 f falls."""
    problem = engine(recourse())
    found = problem.solve(ImplicitGradient(step_size=0.3), rounds=300, x0=np.array([3.7]), progress=False)
    near(found.x, 21.5 / 4)


def test_there_is_no_gradient_where_the_only_answer_gets_others_beside_it(engine: Engine) -> None:
    """y(x) is 1 up to x = 0, and the shortest of [1 - x, 1] from there: the slopes of f = y are 0 and -1."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = engine(hf.Problem(hf.Minimize(clients=y), hf.ArgMin(y, cp.pos(1 - x - y), [y <= 1])))
    with pytest.raises(hf.NoGradientError):
        problem.implicit.gradient(0.0)


# --- flat and strictly convex ----------------------------------------------------------------------------------------------


def fourth_power(shift: bool) -> hf.Problem:
    x, z = cp.Variable(name="x"), cp.Variable(name="z")
    cost = (z - x) ** 4 if shift else z**4 - x * z
    return hf.Problem(hf.Minimize(clients=z + 0 * x), lower=hf.ArgMin(z, cost))


@pytest.mark.parametrize("x", [1.0, -0.3, 1e-3, 1e-5, -1e-5])
def test_a_flat_quartic_near_its_flat_place(x: float, engine: Engine) -> None:
    """The least of z^4 - x z is at z = cbrt(x / 4)."""
    problem = engine(fourth_power(shift=False))
    near(problem.implicit(x), np.cbrt(x / 4))
    near(problem.implicit.gradient(x), np.cbrt(x / 4) / (3 * x), 1e-7)


@pytest.mark.parametrize("x", [0.0, 2.0, 100.0])
def test_a_quartic_around_a_far_point(x: float, engine: Engine) -> None:
    """(z - x)^4 is least at z = x, where all its derivatives but the fourth vanish: 1e-4 in z is 1e-16 in the cost."""
    problem = engine(fourth_power(shift=True))
    near(problem.implicit(x), x, 1e-4)
    error = abs(float(problem.implicit.response(x)) - x)
    assert error <= problem.implicit.certificate(x).error_bound + 1e-15


# --- noise and exponentials ------------------------------------------------------------------------------------------------


def not_dpp() -> hf.Problem:
    """x enters twice in a product with y, so that CVXPY cannot canonicalise the lower level once."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    cost = cp.norm1(cp.exp(x) * (cp.square(x) * y + 1)) + cp.sum_squares(y - x)
    return hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, cost))


@pytest.mark.parametrize("name", ["Dempe", "De Silva", "Outrata-Zowe", "elastic net", "entropy", "not DPP"])
def test_no_warnings_of_cvxpy_leak(name: str, engine: Engine) -> None:
    declared = {case.name: case for case in CATALOGUE}
    problem = engine(not_dpp() if name == "not DPP" else declared[name].declare())
    points = [0.4, 1.3] if name == "not DPP" else [np.array(point, float) for point in declared[name].points]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for x in points:
            problem.implicit(x)
    assert [str(one.message) for one in heard] == []


# --- many owners -------------------------------------------------------------------------------------------------------------


def test_gradients_where_many_answers_move_with_a_polyhedron() -> None:
    """Over a thousand samples the sets are projected on by the host, one by one: their rows move with x, and so do the answers."""
    x, y, wish = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="wish")
    rows = [y[0] + 2 * y[1] <= 1 + x[0], y[0] - y[1] <= 0.5 + x[1], y >= -1]
    data = np.random.default_rng(0).standard_normal((1001, 2))
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(y - 0.3) + x @ y)),
        lower=hf.ArgMin(y, cp.sum_squares(y - x - wish), rows, scope="sample"),
        federation=hf.Federation([hf.Client({wish: data})]),
    )
    at = np.array([0.2, -0.3])
    matrix, limits = np.array([[1.0, 2], [1, -1], [-1, 0], [0, -1]]), np.array([1.2, 0.2, 1, 1])
    moves = np.array([[1.0, 0], [0, 1], [0, 0], [0, 0]])
    expected = np.zeros(2)
    for w in data:
        z = quadratic_answer(np.eye(2), -(at + w), matrix, limits)
        held = np.abs(matrix @ z - limits) < 1e-9
        face = matrix[held]
        onto = np.linalg.pinv(face)
        moved = (np.eye(2) - onto @ face) + onto @ moves[held]
        expected += z + moved.T @ (2 * (z - 0.3) + at)
    near(problem.implicit.gradient(at), expected / len(data))


@pytest.mark.every_engine
@pytest.mark.parametrize("unit", [1e-200, 1e-12, 1e9])
def test_the_unit_of_f_does_not_matter(unit: float) -> None:
    """f = unit (|y - 1|^2 + |x|^2) with y = max(x, -1): a small f is no f that does not depend on y."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    f = unit * (cp.sum_squares(y - 1) + cp.sum_squares(x))
    problem = hf.Problem(hf.Minimize(clients=f), hf.ArgMin(y, cp.sum_squares(y - x), [y >= -1]))
    at = np.array([0.6, -1.7])
    near(problem.implicit(at) / unit, 0.16 + 4 + at @ at)
    near(problem.implicit.gradient(at) / unit, np.array([2 * -0.4 + 1.2, -3.4]))


@pytest.mark.parametrize("far", [1e6, 1e10, 1e12])
def test_large_constants_do_not_make_an_envelope(far: float) -> None:
    """Beside 1e10 all gradients of (y - 1e10)^2 are alike, and proportional to that of y; y moves by half of x all the same."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(clients=y), hf.ArgMin(y, cp.square(y - far) + cp.square(y - x)))
    assert problem.implicit.gradient(0.0) == pytest.approx(0.5, rel=1e-6)
    same = cp.square(y - far) + cp.square(y - x)
    value_function = hf.Problem(hf.Minimize(clients=same), hf.ArgMin(y, same))
    assert value_function.implicit.gradient(0.0) == pytest.approx(-far, rel=1e-6)


# --- a cone that is far smaller than its rows ----------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [1e-2, 1e-4, 1e-6, 1e-8])
def test_basis_pursuit_denoising_is_answered_at_every_radius(radius: float) -> None:
    """On the support S of the truth, whose signs s have a certificate, and with G = A_S' A_S: z_S - truth = - radius G^-1 s / sqrt(s' G^-1 s)."""
    random, support, signs = np.random.default_rng(2), [2, 7], np.array([1.0, -1.0])
    a, truth = random.normal(size=(12, 20)), np.zeros(20)
    truth[support] = [1.0, -2.0]
    noise, z = cp.Variable(name="noise"), cp.Variable(20, name="z")
    lower = hf.ArgMin(z, cp.norm1(z), [cp.norm(a @ z - a @ truth) <= noise])
    way = np.linalg.solve(a[:, support].T @ a[:, support], signs)
    moved = float(way @ way / (signs @ way))
    implicit = hf.Problem(hf.Minimize(clients=cp.sum_squares(z - truth)), lower).implicit
    assert implicit(radius) == pytest.approx(moved * radius**2, rel=1e-6)


# --- a Y far from 0, at whose nearest corner the upper term has no slope --------------------------------------------------


@pytest.mark.parametrize(
    ("upper", "lower", "rows"),
    [
        (lambda y: cp.square(y - 10), 11, lambda y: [y >= 10]),
        (lambda y: cp.power(y - 10, 4), 11, lambda y: [y >= 10]),
        (lambda y: cp.square(y + 10), -11, lambda y: [y <= -10]),
        (lambda y: cp.square(y - 2), 3, lambda y: [y >= 2, y <= 6]),
        (lambda y: cp.square(y - 1000), 1001, lambda y: [cp.abs(y - 1001) <= 1]),
    ],
)
def test_points_that_all_end_at_one_corner_do_not_tell_what_gradients_are(upper: Callable, lower: float, rows: Callable) -> None:
    """Whether upper and lower gradients are proportional was looked at there alone, so that this passed for a minimax problem: gradient 0."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(clients=upper(y)), hf.ArgMin(y, cp.square(y - lower + 0.5 * x), rows(y)), [cp.abs(x) <= 1.5])
    for at in (-1.0, 0.0, 0.3):
        ends = [float(upper(cp.Constant(np.clip(lower - 0.5 * (at + h), -np.inf, np.inf))).value) for h in (1e-5, -1e-5)]
        if all(bool(one.value()) for value in (lower - 0.5 * at,) for one in rows(cp.Constant(value))):
            assert problem.implicit.gradient(at) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-6)
    assert problem.implicit.gradient(0.0 if lower != -11 else -0.3) != 0.0
