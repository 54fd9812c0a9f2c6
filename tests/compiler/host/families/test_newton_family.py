"""Newton's method for neighbours at once: a slice of a smooth lower level against formulas, and what is left to be solved alone."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import brentq

import hierfl as hf
from hierfl.compiler.host.cone_solution import ONE, SOLVED, ConeSolution
from hierfl.compiler.host.families.newton_family import NewtonFamily
from hierfl.compiler.host.standard_form import NONNEGATIVE, Cone
from tests.bilevel_catalogue import CATALOGUE

SMOOTH = ("entropy", "quartic", "BPR routes")


@pytest.mark.parametrize("name", SMOOTH)
def test_slices_are_right_at_every_point(name: str) -> None:
    (case,) = (case for case in CATALOGUE if case.name == name)
    centre = np.array(case.points[0], float)
    picture = case.declare().implicit.slice(centre, np.eye(len(centre))[0], 0.4, 201, progress=False)
    expected = [case.value(centre + t * np.eye(len(centre))[0]) for t in picture.t]
    np.testing.assert_allclose(picture.value, expected, rtol=1e-10, atol=1e-10)


def test_places_where_f_has_no_value_are_left_out_and_their_neighbours_are_not() -> None:
    """Y(x) is empty for x > 1: those among 101 places are refused, and the others have the entropy's answer."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    below = hf.ArgMin(y, -cp.sum(cp.entr(y)), [cp.sum(y) == x, y <= 0.5, y >= 0])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), lower=below, constraints=[x >= 0.2, x <= 3])
    picture = problem.implicit.slice(0.9, 1.0, 0.5, 101, progress=False)
    inside = 0.9 + picture.t <= 1.0
    np.testing.assert_allclose(picture.value[inside], 0.5 * (0.9 + picture.t[inside]) ** 2, rtol=1e-9)
    assert np.isnan(picture.value[~inside & (picture.t > 0.11)]).all()


def cubic(shift: np.ndarray, low: float) -> tuple[NewtonFamily, ConeSolution]:
    """y^3 + y = shift on y >= low, each a program, and the answer for a shift of 1.5."""

    def force(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return u**3 + u - shift[:, None], (3 * u**2 + 1)[..., None]

    count = len(shift)
    family = NewtonFamily(force, np.ones((count, 1, 1)), np.full((count, 1), -low), [Cone(NONNEGATIVE, 1)], 1)
    root = brentq(lambda y: y**3 + y - 1.5, -5, 5, xtol=1e-15)
    return family, ConeSolution(np.array([max(root, low)]), np.zeros(1), 0.0, SOLVED)


@pytest.mark.parametrize("low", [-9.0, 0.25])
def test_roots_and_bounds(low: float) -> None:
    shift = np.linspace(0.5, 3.0, 61)
    family, near = cubic(shift, low)
    answers = family.solve(near)
    assert sum(answer is not None for answer in answers) >= 55
    for value, answer in zip(shift, answers):
        if answer is not None:
            root = max(low, brentq(lambda y, v=value: y**3 + y - v, -5, 5, xtol=1e-15))
            assert answer.unique == ONE and answer.u[0] == pytest.approx(root, abs=1e-13)
            assert answer.z[0] == pytest.approx(max(0.0, low**3 + low - value), abs=1e-12)


def test_a_force_that_is_not_finite_is_left_alone() -> None:
    family, near = cubic(np.array([1.0, np.nan, 2.0]), -9.0)
    answers = family.solve(near)
    assert answers[1] is None and answers[0] is not None and answers[2] is not None
