"""``expression_text``: CVXPY trees read as the user wrote them, and constants by names of their own."""

from __future__ import annotations

import builtins

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from cvxpy.constraints.constraint import Constraint
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.language.printing.text import expression_text
from tests.atoms.atom_cases import CONSTRAINTS, classes_in, concrete_classes, instances

x, y, t = cp.Variable(3, name="x"), cp.Variable(3, name="y"), cp.Variable(name="t")
X, Y = cp.Variable((3, 3), name="X"), cp.Variable((3, 3), name="Y")
w, image, label = cp.Variable((2, 3), name="w"), hf.Sample(3, name="image"), hf.Sample(2, name="label")
rho = hf.ClientParameter(nonneg=True, name="rho")


@pytest.mark.parametrize(
    "source",
    [
        "sum_squares(x - y)",
        "x**1.5",
        "inv_pos(x)",
        "t**(1 / 3)",
        'norm(X - Y, "fro")',
        'norm(X, "nuc")',
        "norm_inf(x)",
        "norm(X, axis=1)",
        "pnorm(x, p=3)",
        "-(x + y)",
        "x - (y + t)",
        "1 / t",
        "multiply(x, y)",
        "x @ X @ y",
        "x @ (X @ y)",
        "X.T",
        "(X + Y).T",
        "x[1:3]",
        "x[[0, 2]]",
        "(x + y)[::2]",
        "sum(X, axis=0)",
        "maximum(x, y, 0)",
        "sum_largest(x, k=2)",
        "huber(x, M=2)",
        "trace(X @ Y.T)",
        "hstack([x, y])",
        "quad_over_lin(x, t)",
        "lambda_max(X)",
        "kl_div(x, y)",
        'vec(X, order="F")',
        "log_sum_exp(w @ image) - label @ (w @ image)",
        "x + [1, 2, 0.5]",
        "norm(y - x) <= rho",
        "x + y == 1",
        "X >> 0",
        "X >> Y",
    ],
)
def test_a_line_that_a_user_writes_is_read_back_unchanged(source: str) -> None:
    assert expression_text(evaluated(source)) == source


@pytest.mark.parametrize(
    "expression, text",
    [
        (x - (-y), "x + y"),
        (x + (-2) * y, "x - 2 * y"),
        ((x - y) + (y - t), "x - y + y - t"),
        (1 * cp.square(t), "square(t)"),
        (cp.norm(X, 2), "sigma_max(X)"),
        (cp.pos(x), "maximum(x, 0)"),
        (cp.neg(x), "-minimum(x, 0)"),
        (cp.var(x), "sum_squares(x - mean(x, keepdims=True)) / 3"),
        (cp.scalar_product(x, y), "sum(multiply(x, y))"),
        (cp.quad_form(x, np.eye(3)), "quad_form(x, [3x3 constant])"),
        (np.ones((2, 3)) @ x, "[2x3 constant] @ x"),
        (cp.Constant(np.eye(3), name="A") @ x, "A @ x"),
        (cp.psd_wrap(X), "X"),
        (1e-5 * t, "1e-05 * t"),
        (cp.SOC(t, x), "norm(x) <= t"),
        (cp.FiniteSet(t, [1, 2]), "FiniteSet(t, [1, 2])"),
        (cp.sum(cp.promote(t, (3,))), "sum(promote(t, shape=(3,)))"),
        (cp.huber(t, cp.Parameter(nonneg=True, name="M")), "huber(t, M=M)"),
        (hf.E(cp.square(image @ x)), "E[square(image @ x)]"),
        (2 * hf.total(image @ x), "2 * total[image @ x]"),
    ],
)
def test_what_cvxpy_rewrites_is_read_as_mathematics(expression: object, text: str) -> None:
    assert expression_text(expression) == text


def test_user_code_appears_under_its_own_name() -> None:
    def network(values: np.ndarray) -> float:
        return float(values.sum())

    assert expression_text(hf.Function(network, x) + 1) == "network(x) + 1"
    assert expression_text(hf.BlackBox(lambda v: 0.0, x, name="cost")) == "cost(x)"


def test_an_unknown_atom_appears_under_its_class_name() -> None:
    class softplus(cp.atoms.affine.affine_atom.AffAtom):  # noqa: N801 - an atom
        def shape_from_args(self) -> tuple[int, ...]:
            return tuple(self.args[0].shape)

        def numeric(self, values: list[np.ndarray]) -> np.ndarray:
            return values[0]

    assert expression_text(softplus(x - y)) == "softplus(x - y)"


def test_the_catalogue_has_every_constraint_of_cvxpy() -> None:
    assert concrete_classes(Constraint) - set().union(*map(classes_in, CONSTRAINTS)) == set()


@pytest.mark.parametrize("part", instances(), ids=lambda part: type(part).__name__)
def test_every_atom_and_constraint_is_one_line_without_cvxpys_internals(part: object) -> None:
    text = expression_text(part).replace("axis=None", "").replace("[None", "")  # which users write themselves
    assert "\n" not in text
    assert not any(internal in text for internal in ("Promote", "quad_over_lin(x, 1", "Approx", "None", "object at"))


# Evaluating the text gives the expression back

NAMES = {**vars(builtins), **vars(cp.atoms), **vars(cp), **{v.name(): v for v in (x, y, t, X, Y, w, image, label, rho)}}


def evaluated(source: str) -> object:
    return eval(source, dict(NAMES))  # the texts of this file


NUMBERS = st.sampled_from([-3.0, -1.0, -0.25, 0.5, 2.0, 3.0])
SCALARS = st.recursive(
    st.one_of(st.sampled_from([t, x[0], y[1], X[0, 1], cp.sum(x), x @ y]), NUMBERS.map(cp.Constant)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda ab: ab[0] + ab[1]),
        st.tuples(inner, inner).map(lambda ab: ab[0] - ab[1]),
        st.tuples(inner, inner).map(lambda ab: ab[0] * ab[1]),
        st.tuples(inner, NUMBERS).map(lambda ab: ab[0] / ab[1]),
        inner.map(lambda a: -a),
        inner.map(cp.square),
        inner.map(lambda a: a**3),
        inner.map(lambda a: cp.sum_squares(x - a)),
        inner.map(lambda a: cp.sum(a * y - x)),
        inner.map(lambda a: (X.T @ (x + a)) @ y),
        st.tuples(inner, inner).map(lambda ab: cp.maximum(ab[0], 1 - ab[1])),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(SCALARS)
def test_the_text_evaluates_to_the_expression(expression: cp.Expression) -> None:
    generator = np.random.default_rng(0)
    for variable in (x, y, t, X):
        variable.value = generator.normal(size=variable.shape) / 2
    read_back = cp.Constant(0) + evaluated(expression_text(expression))
    np.testing.assert_allclose(np.asarray(read_back.value), np.asarray(expression.value), rtol=1e-9, atol=1e-9)


COSTS, CAPACITIES = np.arange(10.0), np.arange(10.0) + 2


def dispatch(costs: object = COSTS, capacities: object = CAPACITIES) -> hf.Problem:
    x, y = cp.Variable(name="x"), cp.Variable(10, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y) + costs @ y, [y >= 0, y <= capacities, cp.sum(y) == x])
    return hf.Problem(hf.Minimize(server=costs @ y), lower, constraints=[x >= 1, x <= 5])


def test_distinct_constants_have_distinct_names() -> None:
    text, latex = str(dispatch()), dispatch().latex()
    assert "c_1 @ y" in text and "y <= c_2" in text and text.count("c_1 @ y") == 2
    assert "with constants c_1 in R^10, c_2 in R^10" in text
    assert (
        r"c_{1}" in latex and r"y \leq c_{2}" in latex and r"\text{with constants}~ c_{1} \in \mathbb{R}^{10}" in latex
    )


def test_equal_ones_share_a_name_and_a_single_one_has_no_number() -> None:
    text = str(dispatch(COSTS, COSTS.copy()))
    assert "c @ y" in text and "y <= c" in text and "with the constant c in R^10" in text


def test_users_names_stay_and_are_not_taken() -> None:
    text = str(dispatch(cp.Constant(COSTS, name="cost"), cp.Constant(CAPACITIES, name="capacity")))
    assert "cost @ y" in text and "y <= capacity" in text and "constant" not in text
    x, c = cp.Variable(6, name="x"), cp.Variable(name="c")
    assert "a @ x" in str(hf.Problem(hf.Minimize(server=np.arange(6.0) @ x + c), constraints=[x >= 0, c >= 0]))


def test_sparse_and_short_constants() -> None:
    x = cp.Variable(6, name="x")
    one, two = sp.csr_array(np.eye(6)), sp.csr_array(2 * np.eye(6))
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(one @ x)), constraints=[two @ x <= 1, x[:3] >= [1, 2, 3]])
    text = str(problem)
    assert "c_1 @ x" in text and "c_2 @ x <= 1" in text and "[1, 2, 3]" in text


def test_names_with_an_index_are_taken_too() -> None:
    matrix, x, y = np.arange(20.0).reshape(4, 5), cp.Variable(5, name="c_1"), cp.Variable(4, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - (matrix + 1) @ x), [y >= 0])
    assert "a_1 @ c_1" in str(hf.Problem(hf.Minimize(clients=cp.sum_squares(matrix @ x - y)), lower))


def test_a_product_of_reshaped_vectors_is_written() -> None:
    a, b = cp.Variable(3, name="a"), cp.Variable(3, name="b")
    assert expression_text(cp.reshape(a, (3,), order="C") @ cp.reshape(b, (3,), order="C")) == "a @ b"
