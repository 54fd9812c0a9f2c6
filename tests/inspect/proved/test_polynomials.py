"""Expressions as polynomials and definitions, against CVXPY's own values."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.stats import ortho_group

import hierfl as hf
from hierfl.errors import IncompatibleSolverError
from hierfl.inspect.proved.polynomials import Polynomial, Translator, Unknowns
from hierfl.inspect.proved.single_level import SingleLevel
from hierfl.inspect.proved.tightening import as_squares
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


# --- Quadratic forms as squares: the same numbers, and a proof on a problem that only turned coordinates show to be convex.


def form_of(matrix: np.ndarray, rest: dict[tuple[int, ...], float]) -> Polynomial:
    n = len(matrix)
    return Polynomial.sum_of([(1.0, Polynomial({tuple(sorted((i, j))): matrix[i, j]})) for i in range(n) for j in range(n)] + [(1.0, Polynomial(rest))])


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_form_of_any_rank_is_the_same_number_as_squares(rank: int, sign: float) -> None:
    """Alone, beside a product of others, and where it is not convex at all."""
    rng = np.random.default_rng(rank)
    root = rng.normal(size=(rank, 4))
    convex = root.T @ root
    for form, beside, squares in ((convex, {(0,): 2.0, (): 1.0}, rank), (convex, {(4, 5): 1.0}, rank), (convex - 9 * np.eye(4), {}, 0)):
        unknowns = Unknowns()
        unknowns.array(np.full(6, -np.inf), np.inf)
        one = form_of(sign * form, beside)
        found = as_squares(one, unknowns, sign)
        assert len(unknowns.definitions) == squares
        values = np.concatenate([rng.normal(size=6), np.zeros(squares)])
        assert found.at(unknowns.completed(values)) == pytest.approx(one.at(values), rel=1e-12)


def test_a_problem_in_turned_coordinates_is_proved() -> None:
    """min |x - 1|^2 / 2 + |y|^2 / 2, y nearest to x in a box, in coordinates turned by an orthogonal matrix: each entry by itself is x - 1 + y y' = 0."""
    turn = ortho_group.rvs(3, random_state=0)
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    u, v = turn @ x, turn @ y
    level = hf.ArgMin(y, 0.5 * cp.sum_squares(v) - u @ v, [v >= -1, v <= 0.25])
    problem = hf.Problem(hf.Minimize(server=0.5 * cp.sum_squares(u - 1) + 0.5 * cp.sum_squares(v)), level)
    grid = np.linspace(-3, 3, 600_001)
    each = (0.5 * (grid - 1) ** 2 + 0.5 * np.clip(grid, -1, 0.25) ** 2).min()
    found = problem.reference(certificate="global", progress=False)
    assert found.status == "proved"
    assert found.value == pytest.approx(3 * each, abs=1e-6)


def test_tolls_times_flows_are_said_by_duality() -> None:
    """What is paid is the price of the demand less the costs: no product of unknowns is left."""
    x, y = cp.Variable(2, name="x", nonneg=True), cp.Variable(3, name="y", nonneg=True)
    paid = x @ y[:2]
    level = hf.ArgMin(y, np.array([1.0, 2.0, 5.0]) @ y + paid, [cp.sum(y) == 2])
    problem = hf.Problem(hf.Maximize(server=paid - 0.1 * cp.sum(x)), level)
    program = SingleLevel.of(problem.compile())
    assert program.is_linear and max(one.degree for one in program.inequalities) == 1
    found = problem.reference(certificate="global", progress=False)
    assert found.status == "proved" and found.value == pytest.approx(7.3)  # tolls 4 and 3: 2 * 4 - 0.7
