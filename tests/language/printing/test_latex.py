"""``expression_latex``: notation for notebooks and for plots."""

import cvxpy as cp
import numpy as np
import pytest
from matplotlib.mathtext import MathTextParser

import hierfl as hf
from hierfl.atoms.writing.latex_pen import symbol
from hierfl.language.printing.text import expression_latex
from tests.atoms.atom_cases import instances

x, y, t = cp.Variable(3, name="x"), cp.Variable(3, name="y"), cp.Variable(name="t")
X, Y = cp.Variable((3, 3), name="X"), cp.Variable((3, 3), name="Y")
x1 = cp.Variable(3, name="x1")
w, image, label = cp.Variable((2, 3), name="w"), hf.Sample(3, name="image"), hf.Sample(2, name="label")
rho = hf.ClientParameter(nonneg=True, name="rho")

mathtext = MathTextParser("path")


@pytest.mark.parametrize(
    "name, latex",
    [
        ("x", "x"),
        ("rho", r"\rho"),
        ("image", r"\mathrm{image}"),
        ("x_12", "x_{12}"),
        ("y_hat", r"\hat{y}"),
        ("y_hat1", r"\hat{y}_{1}"),
        ("lambda_max", r"\lambda_{\mathrm{max}}"),
        ("mu_bar_i", r"\bar{\mu}_{i}"),
        ("my name", r"\mathrm{my\ name}"),
        ("50%", r"\mathrm{50\%}"),
        ("λ", "λ"),
        ("__", r"\mathrm{\_\_}"),
    ],
)
def test_names_become_symbols(name: str, latex: str) -> None:
    assert symbol(name) == latex
    mathtext.parse(f"${latex}$")


@pytest.mark.parametrize(
    "expression, latex",
    [
        (cp.sum_squares(x - y), r"\left\Vert x - y \right\Vert_{2}^{2}"),
        (cp.sum_squares(X), r"\left\Vert X \right\Vert_{F}^{2}"),
        (cp.norm(X - Y, "fro"), r"\left\Vert X - Y \right\Vert_{F}"),
        (cp.norm1(x), r"\left\Vert x \right\Vert_{1}"),
        (cp.square(t + 1), r"\left(t + 1\right)^{2}"),
        (cp.square(cp.exp(t)), r"\left(\exp\left(t\right)\right)^{2}"),
        (0.5 * t, r"\frac{1}{2} \, t"),
        (1e-5 * t, r"10^{-5} \, t"),
        (x / t, r"\frac{x}{t}"),
        (cp.multiply(x, y), r"x \odot y"),
        (X @ cp.multiply(x, y), r"X \, \left(x \odot y\right)"),
        (x @ X @ y, r"x^{\top} \, X \, y"),
        ((X @ x) @ y, r"\left(X \, x\right)^{\top} \, y"),
        (x @ X, r"X^{\top} \, x"),
        (x @ X.T, r"X \, x"),
        (label @ (w @ image), r"\mathrm{label}^{\top} \, w \, \mathrm{image}"),
        (cp.log_sum_exp(x), r"\log\sum\exp\left(x\right)"),
        (cp.maximum(x, 0), r"\max\left(x,\, 0\right)"),
        ((x + y)[1], r"\left[x + y\right]_{1}"),
        (cp.quad_form(x, cp.Constant(np.eye(3), name="Q")), r"x^{\top} \, Q \, x"),
        (hf.E(image @ x), r"\mathbb{E}\left[\mathrm{image}^{\top} \, x\right]"),
        (hf.total(image @ x), r"\sum_{\mathrm{image}}\left[\mathrm{image}^{\top} \, x\right]"),
        (cp.norm(y - x) <= rho, r"\left\Vert y - x \right\Vert_{2} \leq \rho"),
        (X >> Y, r"X \succeq Y"),
        (cp.entr(t), r"-t \, \log\left(t\right)"),
        (2 * cp.sum(cp.xexp(t)), r"2 \, t \, \exp\left(t\right)"),
        (cp.rel_entr(t, 2), r"t \, \log\left(\frac{t}{2}\right)"),
        (cp.kl_div(x, y), r"D_{\mathrm{KL}}\left(x \,\Vert\, y\right)"),
        (cp.geo_mean(x), r"\left(\prod\left(x\right)\right)^{1/3}"),
        (cp.geo_mean(x, [1, 2, 1]), r"\left(\prod\left(x^{\circ \left(1, 2, 1\right)}\right)\right)^{1/4}"),
        (cp.sum_largest(x, 2), r"\sum_{j=1}^{2} x_{[j]}"),
        (cp.sum_largest(x1, 2), r"\sum_{j=1}^{2} \left[x_{1}\right]_{[j]}"),
        (cp.lambda_sum_largest(X, 2), r"\sum_{j=1}^{2} \lambda_{j}\left(X\right)"),
        (
            cp.dotsort(x, np.arange(1.0, 4.0)),
            r"\operatorname{sort}\left(x\right)^{\top} \, \operatorname{sort}\left(\left(1, 2, 3\right)\right)",
        ),
        (
            cp.dist_ratio(x, np.zeros(3), np.ones(3)),
            r"\frac{\left\Vert x - \left(0, 0, 0\right) \right\Vert_{2}}{\left\Vert x - \left(1, 1, 1\right) \right\Vert_{2}}",
        ),
        (cp.broadcast_to(x, (2, 3)), r"\operatorname{broadcast}_{2 \times 3}\left(x\right)"),
    ],
)
def test_notation(expression: object, latex: str) -> None:
    assert expression_latex(expression) == latex


@pytest.mark.parametrize("part", instances(), ids=lambda part: type(part).__name__)
def test_every_atom_and_constraint_is_accepted_by_mathtext(part: object) -> None:
    """And none is written by a name of Python: ``sum_largest`` and its like have a notation; what stays a word is a word."""
    latex = expression_latex(part)
    assert r"\begin" not in latex and r"\_" not in latex
    mathtext.parse(f"${latex}$")
