"""The catalogue of bilevel problems by every engine: values, responses, gradients, kinks and minima, to 1e-9."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import hierfl as hf
from tests.bilevel_case import Case
from tests.bilevel_catalogue import CATALOGUE
from tests.compiler.parametric.engines import NEAR, Engine, near

KINK_PLACE, KINK_SLOPE = 1e-12, 1e-8  # slopes are seen from 1e-8 of the radius

each_case = pytest.mark.parametrize("case", CATALOGUE, ids=str)
with_lines = pytest.mark.parametrize("case", [case for case in CATALOGUE if case.lines], ids=str)
with_optima = pytest.mark.parametrize("case", [case for case in CATALOGUE if case.least is not None], ids=str)


@cache
def problem_of(case_name: str, engine: Engine) -> hf.Problem:
    """Declared once for all questions, as users do."""
    return engine(next(case for case in CATALOGUE if case.name == case_name).declare())


@each_case
def test_values_responses_error_bounds_and_gradients(case: Case, engine: Engine) -> None:
    implicit = problem_of(case.name, engine).implicit
    for x in case.places():
        near(implicit(x), case.value(x))
        answer, expected = np.asarray(implicit.response(x)), case.response(x)
        near(answer, expected)
        error = np.abs(answer.ravel() - expected.ravel()).max()
        assert error <= implicit.certificate(x).error_bound + 1e-14 * (1 + np.abs(expected).max())
    for x in map(np.array, case.points):
        near(implicit.gradient(x), case.gradient(x))


@with_lines
def test_kinks(case: Case, engine: Engine) -> None:
    problem = problem_of(case.name, engine)
    for line in case.lines:
        kinks = problem.implicit.slice(
            np.array(line.centre, float), line.unit, line.radius, points=101, progress=False
        ).kinks
        assert len(kinks) == len(line.kinks), str(kinks)
        for kink, t in zip(kinks, line.kinks):
            near(kink.t, t, KINK_PLACE)
            near((kink.left_slope, kink.right_slope), case.slopes(line, t), KINK_SLOPE)


@pytest.mark.slow
@with_optima
def test_minima(case: Case, engine: Engine) -> None:
    found = problem_of(case.name, engine).reference(progress=False)
    near(found.value, case.least)
    distances = [np.abs(found.x - np.array(x)).max() for x in case.optima]
    assert min(distances) < 1e-4 * (1 + np.abs(found.x).max()) or case.value(found.x) <= case.least + NEAR
