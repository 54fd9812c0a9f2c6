"""Expressions as polynomials and definitions, against CVXPY's own values."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from hierfl.errors import IncompatibleSolverError
from hierfl.inspect.proved.polynomials import LONG, Polynomial, Translator, Unknowns
from tests.atoms.atom_cases import CASES, Case

TRANSLATED = ("multiply", "divide", "matmat", "dot of vectors", "kron", "index", "sum axis", "exp", "log", "abs", "maximum", "max", "norm1", "huber", "logistic")


def translated(expression: Any, variables: list[cp.Variable], values: list[np.ndarray]) -> np.ndarray:
    """The expression's value by way of its translation."""
    unknowns = Unknowns()
    leaves = {v.id: unknowns.array(np.full(v.shape, -np.inf), np.inf) for v in variables}
    entries = Translator(unknowns)(expression, leaves)
    given = np.concatenate([np.ravel(value) for value in values])
    whole = unknowns.completed(np.append(given, np.zeros(len(unknowns.low) - given.size)))
    assert all(one.at(whole) >= -1e-12 for one in unknowns.inequalities)
    return np.array([Polynomial.of(entry).at(whole) for entry in entries.ravel()]).reshape(entries.shape)


def test_every_atom_has_its_own_value_or_is_refused_by_name() -> None:
    rng, refused = np.random.default_rng(0), set()
    for case in CASES:
        values = case.draw(rng)
        expression, variables = case.of_variables()
        try:
            found = translated(expression, variables, values)
        except IncompatibleSolverError as error:
            assert "has no translation of" in str(error)
            refused.add(case.name)
            continue
        for one, value in zip(variables, values):
            one.value = value
        value = np.asarray(expression.value).reshape(found.shape)  # that of upper_tri has another shape than its expression
        np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-9, err_msg=case.name)
    names = {case.name for case in CASES}
    assert names & set(TRANSLATED) and not refused & set(TRANSLATED)
    assert len(refused) < len(names) / 2, sorted(refused)


@pytest.mark.parametrize(
    "case",
    [
        Case("a difference of squares", lambda x: cp.square(x[0]) - cp.square(x[1]) * x[0], ((2,),)),
        Case("either side of 0", lambda x: 1.0 / x[0] + x[1] ** -2, ((2,),)),
        Case("powers", lambda x: cp.power(x, 0.5) + cp.power(x, 3) + cp.power(x, 11) + cp.power(x, -0.5), ((3,),), (lambda rng, s: rng.uniform(0.5, 1.5, s),)),
        Case("a long square", lambda x: cp.square(cp.sum(x)) * cp.sum(x), ((80,),)),
        Case("entropies", lambda x: cp.sum(cp.entr(x) + cp.kl_div(x, 2.0) + cp.rel_entr(x, x + 1)), ((3,),), (lambda rng, s: rng.uniform(0.5, 1.5, s),)),
        Case("norms", lambda x: cp.norm(x) + cp.norm_inf(x) + cp.norm1(x) + cp.log_sum_exp(x), ((3,),)),
    ],
    ids=lambda case: case.name,
)
def test_compositions(case: Case) -> None:
    rng = np.random.default_rng(1)
    variables, values = [cp.Variable(shape) for shape in case.shapes], case.draw(rng)
    expression = case.build(*variables)
    found = translated(expression, variables, values)
    for one, value in zip(variables, values):
        one.value = value
    np.testing.assert_allclose(found, np.asarray(expression.value), rtol=1e-9)


def test_what_belongs_together_stays_together_and_long_products_do_not() -> None:
    unknowns = Unknowns()
    x = unknowns.array(np.full(60, -np.inf), np.inf)
    square = unknowns.power(Polynomial.sum_of([(1.0, x[0]), (-1.0, x[1])]), 2.0)
    assert square.terms == {(0, 0): 1.0, (0, 1): -2.0, (1, 1): 1.0} and not unknowns.definitions
    total = Polynomial.sum_of((1.0, each) for each in x)
    assert LONG < 60 * 60 and len(unknowns.power(total, 2.0).terms) <= LONG
    assert [one.kind for one in unknowns.definitions] == ["itself"]
    shared = unknowns.defined("exp", total)
    assert unknowns.defined("exp", total) is shared
