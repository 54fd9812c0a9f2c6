"""``expression_text``: CVXPY trees read as the user wrote them."""

import builtins

import cvxpy as cp
import numpy as np
import pytest
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
        "0.5 * sum_squares(x - y)",
        "square(x)",
        "sqrt(x)",
        "x**3",
        "x**1.5",
        "inv_pos(x)",
        "t**(1 / 3)",
        "norm(x)",
        'norm(X - Y, "fro")',
        'norm(X, "nuc")',
        "norm1(x)",
        "norm_inf(x)",
        "norm(X, axis=1)",
        "pnorm(x, p=3)",
        "x - y",
        "x - 1",
        "-x",
        "-(x + y)",
        "x - (y + t)",
        "2 * x",
        "x * t",
        "x / 2",
        "1 / t",
        "multiply(x, y)",
        "X @ x",
        "x @ X @ y",
        "x @ (X @ y)",
        "X.T",
        "(X + Y).T",
        "x[0]",
        "X[0, :]",
        "x[1:3]",
        "x[[0, 2]]",
        "(x + y)[::2]",
        "sum(y)",
        "sum(X, axis=0)",
        "mean(x)",
        "max(x)",
        "maximum(x, y, 0)",
        "log_sum_exp(x)",
        "sum_largest(x, k=2)",
        "huber(x, M=2)",
        "trace(X)",
        "trace(X @ Y.T)",
        "diag(x)",
        "hstack([x, y])",
        "vstack([x, y])",
        "outer(x, y)",
        "quad_over_lin(x, t)",
        "log_det(X)",
        "lambda_max(X)",
        "sigma_max(X)",
        "abs(x)",
        "exp(-x)",
        "x + X",
        "kl_div(x, y)",
        'vec(X, order="F")',
        "log_sum_exp(w @ image) - label @ (w @ image)",
        "x + [1, 2, 0.5]",
        "norm(y - x) <= rho",
        "x >= 0",
        "x <= y",
        "x + y == 1",
        "X >> 0",
        "X >> Y",
        "X << 0",
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
    ],
)
def test_what_cvxpy_rewrites_is_read_as_mathematics(expression: object, text: str) -> None:
    assert expression_text(expression) == text


def test_a_promotion_that_decides_the_value_is_kept() -> None:
    assert expression_text(cp.sum(cp.promote(t, (3,)))) == "sum(promote(t, shape=(3,)))"


def test_means_and_sums_over_samples_are_in_brackets() -> None:
    assert expression_text(hf.E(cp.square(image @ x))) == "E[square(image @ x)]"
    assert expression_text(2 * hf.total(image @ x)) == "2 * total[image @ x]"


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
    text = expression_text(part)
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


def test_a_setting_that_is_a_parameter_is_written() -> None:
    value, bound = cp.Variable(name="x"), cp.Parameter(nonneg=True, name="M")
    assert expression_text(cp.huber(value, bound)) == "huber(x, M=M)"
