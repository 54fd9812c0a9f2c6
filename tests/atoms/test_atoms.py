"""Every atom of CVXPY 1.9 is compiled and agrees with CVXPY, or is refused by name."""

from __future__ import annotations

import cvxpy as cp
import cvxpy.atoms
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cvxpy.atoms.atom import Atom

import hierfl as hf
from hierfl.analysis.curvature_bounds import curvature_bounds
from hierfl.analysis.enclosure import enclose
from hierfl.atoms.formulas import exact_array
from hierfl.atoms.intervals import Interval
from hierfl.atoms.table import FAMILIES, refused_atoms
from hierfl.compiler.expressions.program import Program
from hierfl.inspect.symbolic.derivation import translate
from hierfl.language.calculus.derivative import gradient

from .atom_cases import CASES, Case, classes_in, concrete_classes

pytestmark = pytest.mark.usefixtures("x64")


def test_every_concrete_atom_is_compiled_or_refused_with_a_reason() -> None:
    compiled = compiled_atoms()
    refused = set(refused_atoms())
    assert concrete_classes(Atom) == compiled | refused
    assert not compiled & refused
    assert all(len(reason) > 10 for reason in refused_atoms().values())


ROWS = [row for family in FAMILIES for row in family.ROWS]


def compiled_atoms() -> set[type]:
    return {kind for row in ROWS if row.lower is not None for kind in row.classes if kind.__module__.startswith("cvxpy")}


def test_every_class_has_one_row_and_every_head_one_spelling() -> None:
    classes = [kind for row in ROWS for kind in row.classes]
    assert len(classes) == len(set(classes))
    spellings = {spelling for row in ROWS for spelling in row.spellings if spelling.options is None}
    heads = [spelling.head for spelling in spellings]
    assert len(heads) == len(set(heads))


def test_every_compiled_atom_has_a_case() -> None:
    seen = set().union(*(classes_in(case.of_variables()[0]) for case in CASES))
    assert not {kind.__name__ for kind in compiled_atoms() - seen}


def build(case: Case, seed: int) -> tuple[object, list[cp.Variable], list[np.ndarray]]:
    values = case.draw(np.random.default_rng(seed))
    expression, variables = case.of_variables()
    for v, value in zip(variables, values):
        v.value = value
    return expression, variables, values


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_value_agrees_with_cvxpy(case: Case) -> None:
    """Of several points at once."""
    expression, variables, _ = build(case, 0)
    program = Program([expression])
    points = [case.draw(np.random.default_rng(seed)) for seed in range(3)]

    @jax.jit
    @jax.vmap
    def value(*rows: jax.Array) -> jax.Array:
        return program({v.id: row for v, row in zip(variables, rows)})[0]

    for found, values in zip(value(*map(np.stack, zip(*points))), points):
        for v, own in zip(variables, values):
            v.value = own
        expected = np.asarray(expression.value.toarray() if hasattr(expression.value, "toarray") else expression.value)
        assert found.shape == expression.shape
        np.testing.assert_allclose(found, expected.reshape(expression.shape), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_gradient_agrees_with_finite_differences(case: Case) -> None:
    expression, variables, values = build(case, 5)
    program = Program([expression])
    weights = np.random.default_rng(9).standard_normal(expression.shape)
    shapes = [np.shape(a) for a in values]

    def scalar(flat: jax.Array) -> jax.Array:
        parts = jnp.split(flat, np.cumsum([int(np.prod(s)) for s in shapes])[:-1])
        environment = {v.id: part.reshape(s) for v, part, s in zip(variables, parts, shapes)}
        return jnp.sum(weights * program(environment)[0])

    point = np.concatenate([np.ravel(a) for a in values])
    both = jax.jit(jax.value_and_grad(scalar))
    gradient = np.asarray(both(point)[1])
    for direction in np.random.default_rng(1).standard_normal((3, point.size)):
        h = 1e-6
        slope = (float(both(point + h * direction)[0]) - float(both(point - h * direction)[0])) / (2 * h)
        assert gradient @ direction == pytest.approx(slope, rel=2e-5, abs=2e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_gradient_as_an_expression_agrees_with_jax(case: Case) -> None:
    expression, variables, values = build(case, 5)
    weights = np.random.default_rng(9).standard_normal(expression.shape)
    parts = gradient(expression, variables, cp.Constant(weights))
    environment = {v.id: jnp.asarray(a) for v, a in zip(variables, values)}
    try:
        program = Program(parts)
    except hf.UnsupportedAtomError as refusal:
        assert "no derivative of" in str(refusal) and case.name == "gmatmul"  # its exponents are a setting
        return
    whole = Program([expression])
    by_jax = jax.grad(lambda at: jnp.sum(weights * whole(at)[0]))
    of_parts, expected = jax.jit(lambda at: (program(at), by_jax(at)))(
        environment
    )  # an operation at a time takes longer
    other = case.draw(np.random.default_rng(6))
    known = {v.id: Interval.hull(np.stack(ends)) for v, *ends in zip(variables, values, other)}
    for v, part, found in zip(variables, parts, of_parts):
        np.testing.assert_allclose(found, expected[v.id], rtol=1e-9, atol=1e-9)
        box = enclose(part, known).widened(1e-9)
        assert (box.lo <= found).all() and (found <= box.hi).all()


@pytest.mark.parametrize("case", [c for c in CASES if c.name != "wraps"], ids=lambda c: c.name)  # which claim a sign
def test_enclosure_contains_every_value(case: Case) -> None:
    expression, variables, first = build(case, 3)
    points = [first, *(case.draw(np.random.default_rng(seed)) for seed in (4, 5, 6))]
    known = {v.id: Interval.hull(np.stack(column)) for v, column in zip(variables, zip(*points))}
    box = enclose(expression, known)
    for point in points:
        for v, value in zip(variables, point):
            v.value = value
        found = expression.value
        dense = np.asarray(found.toarray() if hasattr(found, "toarray") else found).reshape(expression.shape)
        assert (box.lo <= dense).all() and (dense <= box.hi).all()


@pytest.mark.parametrize("name", ["quad_over_lin", "xexp", "matrix_frac", "one_minus_pos", "eye_minus_inv", "pf_eigenvalue"])
def test_enclosure_contains_values_where_cvxpys_signs_and_slopes_do_not_hold(name: str) -> None:
    case, rng = next(c for c in CASES if c.name == name), np.random.default_rng(0)
    variables = [cp.Variable(shape) for shape in case.shapes]
    expression = case.build(*variables)
    points = [[3 * rng.standard_normal(v.shape) for v in variables] for _ in range(20)]
    if name == "matrix_frac":
        points = [[x, p + p.T] for x, p in points]
    box = enclose(expression, {v.id: Interval.hull(np.stack(column)) for v, column in zip(variables, zip(*points))})
    for point in points:
        for v, value in zip(variables, point):
            v.value = value
        assert (box.lo <= expression.value).all() and (expression.value <= box.hi).all()


@pytest.mark.parametrize("case", [c for c in CASES if "both signs" not in c.name], ids=lambda c: c.name)  # CVXPY: x > 0
def test_second_differences_lie_between_the_bounds_of_the_curvature(case: Case) -> None:
    expression, variables, first = build(case, 3)
    if expression.size > 1:
        expression = cp.sum(expression)
    last = case.draw(np.random.default_rng(4))
    known = {v.id: Interval.hull(np.stack(ends)) for v, ends in zip(variables, zip(first, last))}
    bounds = curvature_bounds(expression, variables, known)

    def bend(part: cp.Expression, at: float, h: float = 1e-3) -> float:
        values = []
        for t in (at - h, at, at + h):
            for v, a, b in zip(variables, first, last):
                v.value = (1 - t) * a + t * b
            values.append(float(np.sum(part.value)))
        return (values[0] - 2 * values[1] + values[2]) / h**2

    for at in (0.3, 0.7):
        found = bend(expression, at)
        slack = 1e-4 * (1 + abs(found))
        assert bounds.lower is None or bend(bounds.lower, at) <= found + slack
        assert bounds.upper is None or found - slack <= bend(bounds.upper, at)


WITHOUT_FORMULA = ["ceil", "floor", "sign", "normcdf", "sigma_max", "normNuc", "cummax", "matrix_frac", "dotsort", "geo_mean", "exact", "length", "dist_ratio", "log_det", "tr_inv", "von_neumann_entr", "quantum_rel_entr", "lambda_max", "lambda_min", "lambda_sum_largest", "lambda_sum_smallest", "pf_eigenvalue", "perspective", "gen_lambda_max", "condition_number", "eye_minus_inv", "gmatmul", "inv_prod"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_formula_agrees_with_cvxpy_where_there_is_one(case: Case) -> None:
    expression, variables, values = build(case, 1)
    try:
        formulas = translate(expression, {v.id: exact_array(a) for v, a in zip(variables, values)})
    except hf.SymbolicError:
        assert case.name.split()[0] in WITHOUT_FORMULA
        return
    found = np.array([float(entry) for entry in formulas.ravel()]).reshape(expression.shape)
    expected = expression.value
    dense = np.asarray(expected.toarray() if hasattr(expected, "toarray") else expected).reshape(expression.shape)
    np.testing.assert_allclose(found, dense, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_single_precision_stays_single(case: Case) -> None:
    expression, variables, values = build(case, 2)
    single = {v.id: jnp.asarray(a, jnp.float32) for v, a in zip(variables, values)}
    assert jax.eval_shape(Program([expression]), single)[0].dtype == jnp.float32


def test_refused_atom_is_named_with_its_reason() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    with pytest.raises(hf.UnsupportedAtomError, match="SuppFuncAtom.*conic program"):
        Program([cp.suppfunc(x, [])(y)])


def test_parametrised_exponent_is_refused_by_name() -> None:
    p = cp.Parameter(pos=True, name="p", value=2.0)
    with pytest.raises(hf.UnsupportedAtomError, match=r"'p' is a parameter"):
        Program([cp.power(cp.Variable(), p)])
