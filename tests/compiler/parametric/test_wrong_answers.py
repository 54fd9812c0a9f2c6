"""Answers that hierfl once got wrong, each with the answer by hand or by enumeration, so that they stay right."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.bilevel_catalogue import CATALOGUE
from tests.compiler.parametric.engines import Engine, near

# --- envelopes -----------------------------------------------------------------------------------------------------------


def test_an_envelope_has_a_gradient_where_y_is_not_differentiable(engine: Engine) -> None:
    """f = min over y >= 0 of y^2 / 2 - x y is -max(x, 0)^2 / 2: C1 at x = 0, where y bends."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    cost = 0.5 * cp.square(y) - x * y
    problem = engine(hf.Problem(hf.Minimize(clients=cost), lower=hf.ArgMin(y, cost, [y >= 0])))
    for at in (-1.0, 0.0, 2.0):
        near(problem.implicit.gradient(at), -max(at, 0.0))
    assert len(problem.implicit.slice(0.0, 1.0, radius=1, points=21, progress=False).kinks) == 0


# --- linear programs below -------------------------------------------------------------------------------------------------


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
    for at in (-1.0, 0.0, 0.3):  # y is lower - x / 2
        ends = [float(upper(cp.Constant(lower - 0.5 * (at + h))).value) for h in (1e-5, -1e-5)]
        assert problem.implicit.gradient(at) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-6)


# --- equations that are nearly dependent: y as exact arithmetic says, nearer than that no gradient -------------------------

R = np.array([0.3, 0.7, -0.2])


@pytest.mark.parametrize("apart", [1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9])
def test_rows_that_are_nearly_one_are_two(apart: float) -> None:
    """Rows 1'y = 1 and (1 + apart r)'y = 1 + apart x say that 1'y = 1 and r'y = x."""
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    rows = [cp.sum(y) == 1, (1 + apart * R) @ y == 1 + apart * x]
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - [1, 2, 3]) + y[0]), hf.ArgMin(y, cp.sum_squares(y - x), rows))
    both = np.vstack([np.ones(3), R])

    def exact(at: float) -> float:
        found = at + np.linalg.lstsq(both, np.array([1, at]) - both @ np.full(3, at), rcond=None)[0]
        return float(np.sum((found - [1, 2, 3]) ** 2) + found[0])

    blur = 1e-13 / apart
    assert problem.implicit(0.3) == pytest.approx(exact(0.3), abs=1e-9 + blur)
    assert problem.implicit.gradient(0.3) == pytest.approx((exact(0.3 + 1e-3) - exact(0.3 - 1e-3)) / 2e-3, abs=1e-8 + 10 * blur)


def test_a_gradient_is_refused_where_rounding_decides() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    rows = [cp.sum(y) == 1, (1 + 1e-12 * R) @ y == 1 + 1e-12 * x]
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - [1, 2, 3])), hf.ArgMin(y, cp.sum_squares(y - x), rows))
    with pytest.raises(hf.NoGradientError):
        problem.implicit.gradient(0.3)


def test_a_level_that_falls_where_no_curvature_stops_it_is_told_whatever_the_slope() -> None:
    """Along v = (1, -1, 1) the objective has the slope 30 x0 and no curvature but rounding, which took y to 1e9 and more."""
    curvature, slope = np.array([[20.0, 30, 10], [30, 50, 20], [10, 20, 10]]), np.array([20.0, -20, -40])
    x, y = cp.Variable(2, name="x"), cp.Variable(3, name="y")
    below = slope @ y + x[0] * (np.array([20.0, -20, -10]) @ y) + 0.5 * cp.quad_form(y, cp.psd_wrap(curvature))
    level = hf.ArgMin(y, below, [np.array([-20.0, 10, 30]) @ y + 10 * x[1] >= -10])
    problem = hf.Problem(hf.Minimize(server=np.array([0.01, 0.01, 0.02]) @ y), level, [x >= 0, x <= 3])
    assert np.abs(problem.implicit.response([0.0, 1.0])).max() < 10
    for at in np.geomspace(1e-8, 3, 30):
        with pytest.raises(hf.LowerLevelError):
            problem.implicit([at, 1.3])
