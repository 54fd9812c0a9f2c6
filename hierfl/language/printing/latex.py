r"""LaTeX of expressions and constraints, for notebooks (MathJax) and for matplotlib's labels (mathtext).

Most atoms are a row in one of two tables: an *operator* stands before its operands, ``\exp\left(x\right)``; a
*template* has places for them. Vectors are columns, so ``label @ (w @ image)`` reads label' w image.
Delimiters are written ``\left\Vert``, which MathJax and mathtext both know (mathtext has no ``\lVert``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from hierfl.language.printing.notation import Node, number, read
from hierfl.language.printing.symbols import escaped, symbol
from hierfl.language.printing.text import index_text

RELATION, SUM, ELEMENTWISE, PRODUCT, POWER, ATOM = range(6)
"""Precedences, loosest first. POWER is whatever may not take another superscript: powers and applied functions."""

_LONGEST_ARRAY = 4
_LARGEST_DENOMINATOR = 4


class _Latex(NamedTuple):
    text: str
    precedence: int = ATOM


_Writer = Callable[[Node], _Latex]
_WRITERS: dict[str, _Writer] = {}

_OPERATORS = {
    "asinh": r"\operatorname{arsinh}",
    "atanh": r"\operatorname{artanh}",
    "condition_number": r"\kappa",
    "cos": r"\cos",
    "exp": r"\exp",
    "gen_lambda_max": r"\lambda_{\max}",
    "huber": r"\phi^{\mathrm{huber}}",
    "imag": r"\operatorname{Im}",
    "lambda_max": r"\lambda_{\max}",
    "log": r"\log",
    "log_det": r"\log\det",
    "log_sum_exp": r"\log\sum\exp",
    "max": r"\max",
    "maximum": r"\max",
    "min": r"\min",
    "minimum": r"\min",
    "normcdf": r"\Phi",
    "pf_eigenvalue": r"\lambda_{\mathrm{pf}}",
    "prod": r"\prod",
    "real": r"\operatorname{Re}",
    "sigma_max": r"\sigma_{\max}",
    "sin": r"\sin",
    "sinh": r"\sinh",
    "tan": r"\tan",
    "tanh": r"\tanh",
    "trace": r"\mathrm{tr}",
    "upper_tri": r"\operatorname{triu}",
}
"""Symbols that stand before their operands in parentheses; any other head is its own name, upright."""

_TEMPLATES = {
    "ExpCone": (r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\exp}", RELATION),
    "Not": (r"\neg @1", PRODUCT),
    "OpRelEntrConeQuad": (r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\mathrm{re}#,}", RELATION),
    "PowCone3D": (r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\mathrm{pow}#,}", RELATION),
    "PowConeND": (r"\left(#1,\, #2\right) \in \mathcal{K}_{\mathrm{pow}#,}", RELATION),
    "RelEntrConeQuad": (r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\mathrm{re}#,}", RELATION),
    "SvecPSD": (r"\operatorname{mat}\left(#1\right) \succeq 0", RELATION),
    "abs": (r"\left\vert #1 \right\vert", ATOM),
    "ceil": (r"\left\lceil #1 \right\rceil", ATOM),
    "conj": (r"\overline{#1}", POWER),
    "conv": (r"*1 \ast *2", ELEMENTWISE),
    "convolve": (r"*1 \ast *2", ELEMENTWISE),
    "dotsort": (r"\operatorname{sort}\left(#1\right)^{\top} \, \operatorname{sort}\left(#2\right)", PRODUCT),
    "dist_ratio": (r"\frac{\left\Vert #1 - *2 \right\Vert_{2}}{\left\Vert #1 - *3 \right\Vert_{2}}", PRODUCT),
    "divide": (r"\frac{#1}{#2}", PRODUCT),
    "eye_minus_inv": (r"\left(I - *1\right)^{-1}", POWER),
    "floor": (r"\left\lfloor #1 \right\rfloor", ATOM),
    "kl_div": (r"D_{\mathrm{KL}}\left(#1 \,\Vert\, #2\right)", POWER),
    "kron": (r"*1 \otimes *2", ELEMENTWISE),
    "log1p": (r"\log\left(1 + #1\right)", POWER),
    "logistic": (r"\log\left(1 + \exp\left(#1\right)\right)", POWER),
    "matrix_frac": (r"@1^{\top} \, @2^{-1} \, *1", PRODUCT),
    "multiply": (r"*1 \odot *2", ELEMENTWISE),
    "norm1": (r"\left\Vert #1 \right\Vert_{1#,}", ATOM),
    "norm2": (r"\left\Vert #1 \right\Vert_{2#,}", ATOM),
    "norm_fro": (r"\left\Vert #1 \right\Vert_{F}", ATOM),
    "norm_inf": (r"\left\Vert #1 \right\Vert_{\infty#,}", ATOM),
    "norm_nuc": (r"\left\Vert #1 \right\Vert_{\ast}", ATOM),
    "one_minus_pos": (r"1 - *1", SUM),
    "outer": (r"*1 \, @2^{\top}", PRODUCT),
    "quad_form": (r"@1^{\top} \, *2 \, *1", PRODUCT),
    "quad_over_lin": (r"\frac{\left\Vert #1 \right\Vert_{2#,}^{2}}{#2}", PRODUCT),
    "quantum_rel_entr": (r"\mathrm{tr}\left(*1 \, \left(\log @1 - \log @2\right)\right)", POWER),
    "sqrt": (r"\sqrt{#1}", POWER),
    "tr_inv": (r"\mathrm{tr}\left(@1^{-1}\right)", POWER),
    "von_neumann_entr": (r"-\mathrm{tr}\left(*1 \log @1\right)", SUM),
}
"""The places: ``#1`` is the first operand where the template delimits it, ``*1`` where it is a factor, ``@1`` where it
is the base of a superscript; ``#,`` continues a subscript with the settings."""

_PLACES = {"#": RELATION, "*": PRODUCT, "@": ATOM}


def expression_latex(expr: Any) -> str:
    r"""A CVXPY expression or constraint as LaTeX, without environments.

    Parameters
    ----------
    expr
        Any CVXPY expression or constraint; an atom without a notation of its own is ``\operatorname{name}(...)``.

    Returns
    -------
    str
        For example ``\left\Vert x - y \right\Vert_{2}^{2}``; put it between dollar signs.
    """
    return write_latex(read(expr))


def write_latex(node: Node) -> str:
    """A node of :mod:`hierfl.language.printing.notation` as LaTeX."""
    return _write(node).text


def _write(node: Node) -> _Latex:
    writer = _WRITERS.get(node.head, _from_template if node.head in _TEMPLATES else _operator)
    return writer(node)


def _at(node: Node, precedence: int) -> str:
    """The node's LaTeX, in parentheses if it binds looser than its place."""
    text, own = _write(node)
    return text if own >= precedence else rf"\left({text}\right)"


def _writes(*heads: str) -> Callable[[_Writer], _Writer]:
    def register(writer: _Writer) -> _Writer:
        _WRITERS.update(dict.fromkeys(heads, writer))
        return writer

    return register


def _from_template(node: Node) -> _Latex:
    template, precedence = _TEMPLATES[node.head]
    settings = _settings(node)

    def fill(place: re.Match[str]) -> str:
        kind, which = place.groups()
        if which == ",":
            return "".join(rf",\,{setting}" for setting in settings)
        return _at(node.args[int(which) - 1], _PLACES[kind])

    return _Latex(re.sub(r"([#*@])([,\d])", fill, template), precedence)


def _operator(node: Node) -> _Latex:
    name = _OPERATORS.get(node.head) or rf"\operatorname{{{escaped(node.head)}}}"
    return _applied(name + _subscript(_settings(node)), node.args)


def _applied(name: str, args: Iterable[Node]) -> _Latex:
    return _Latex(rf"{name}\left({_listed(args)}\right)", POWER)


def _listed(args: Iterable[Node], separator: str = r",\, ") -> str:
    return separator.join(map(write_latex, args))


def _settings(node: Node) -> list[str]:
    """The settings as subscripts; those that only say how an array is laid out are left out."""
    return [_setting(name, value) for name, value in node.options if name not in ("keepdims", "order")]


def _setting(name: str, value: Any) -> str:
    if isinstance(value, float):
        value = number(value)
    written = write_latex(value) if isinstance(value, Node) else escaped(f"{value}")
    return f"{symbol(name)}={written}"


def _subscript(parts: list[str]) -> str:
    listed = r",\,".join(parts)
    return f"_{{{listed}}}" if parts else ""


# Leaves


@_writes("number")
def _number(node: Node) -> _Latex:
    value = node.value
    if not np.isrealobj(value) or not np.isfinite(value):
        return _Latex(r"\infty" if np.isinf(value) else rf"\mathrm{{{value}}}")
    fraction = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
    if fraction.denominator > 1 and fraction.numerator < 10 and abs(float(fraction) - value) < 1e-14:
        return _Latex(rf"\frac{{{fraction.numerator}}}{{{fraction.denominator}}}", PRODUCT)
    mantissa, _, exponent = f"{value:g}".partition("e")
    if not exponent:
        return _Latex(mantissa)
    power = f"10^{{{int(exponent)}}}"
    return _Latex(power, POWER) if mantissa == "1" else _Latex(rf"{mantissa} \times {power}", PRODUCT)


@_writes("array")
def _array(node: Node) -> _Latex:
    if len(node.shape) == 1 and node.shape[0] <= _LONGEST_ARRAY:
        return _Latex(rf"\left({', '.join(f'{entry:g}' for entry in np.asarray(node.value))}\right)")
    return _Latex(rf"\mathrm{{const}}_{{{dimensions_latex(node.shape)}}}")


@_writes("name")
def _name(node: Node) -> _Latex:
    index = node.option("index")
    return _Latex(symbol(node.value, *([index] if index else [])))


@_writes("call")
def _user_call(node: Node) -> _Latex:
    return _applied(symbol(node.value), node.args)


def dimensions_latex(shape: tuple[int, ...]) -> str:
    r"""``10 \times 785``."""
    return r" \times ".join(map(str, shape))


def domain_latex(shape: tuple[int, ...]) -> str:
    r"""The space of that shape: ``\mathbb{R}^{10 \times 785}``."""
    return r"\mathbb{R}" + (f"^{{{dimensions_latex(shape)}}}" if shape else "")


# Sums and products


@_writes("add")
def _add(node: Node) -> _Latex:
    first, *others = node.args
    signed = [f" - {_at(t.args[0], ELEMENTWISE)}" if t.head == "neg" else f" + {_at(t, ELEMENTWISE)}" for t in others]
    return _Latex(_at(first, SUM) + "".join(signed), SUM)


@_writes("neg")
def _neg(node: Node) -> _Latex:
    return _Latex(f"-{_at(node.args[0], ELEMENTWISE)}", SUM)


def _beside(left: str, right: str) -> _Latex:
    """Two factors in a row, with a dot where two numbers would run together."""
    return _Latex(rf"{left} \cdot {right}" if re.match(r"\d|\\frac\{\d", right) else rf"{left} \, {right}", PRODUCT)


@_writes("scale")
def _scale(node: Node) -> _Latex:
    left, right = node.args
    return _beside(_at(left, PRODUCT), _at(right, PRODUCT))


@_writes("matmul")
def _matmul(node: Node) -> _Latex:
    left, right = node.args
    if len(left.shape) == 1 and len(right.shape) > 1:
        return _beside(_transposed(right), _at(left, PRODUCT))
    return _beside(_row(left) if len(left.shape) == 1 else _at(left, PRODUCT), _at(right, PRODUCT))


def _row(node: Node) -> str:
    """A vector as the row that multiplies from the left; ``x @ A``, elsewhere the column A'x, is the row x'A."""
    if node.head == "matmul" and len(node.args[0].shape) == 1 and len(node.args[1].shape) > 1:
        return _beside(_row(node.args[0]), _at(node.args[1], PRODUCT)).text
    return _transposed(node)


def _transposed(node: Node) -> str:
    if node.head == "transpose":
        return _at(node.args[0], POWER)
    return rf"{_at(node, ATOM)}^{{\top}}"


@_writes("transpose")
def _transpose(node: Node) -> _Latex:
    return _Latex(_transposed(node.args[0]), POWER)


@_writes("sum")
def _sum(node: Node) -> _Latex:
    (summand,) = node.args
    if node.option("axis") is not None or len(summand.shape) > 2:
        return _applied(r"\operatorname{sum}" + _subscript(_settings(node)), node.args)
    if not summand.shape:
        return _write(summand)
    if summand.head == "multiply" and len(summand.shape) == 1 and all(len(f.shape) == 1 for f in summand.args):
        return _beside(_row(summand.args[0]), _at(summand.args[1], PRODUCT))
    ones = r"\mathbf{1}^{\top} " + _at(summand, POWER)
    return _Latex(ones if len(summand.shape) == 1 else ones + r" \mathbf{1}", PRODUCT)


# Powers, indices


def _raised(base: str, exponent: str, elementwise: bool) -> _Latex:
    kind = r"\circ " if elementwise else ""
    return _Latex(f"{base}^{{{kind}{exponent}}}", POWER)


@_writes("power")
def _power(node: Node) -> _Latex:
    base, exponent = node.args
    return _raised(_at(base, ATOM), write_latex(exponent), elementwise=bool(base.shape))


def _fixed_power(exponent: str) -> _Writer:
    def write(node: Node) -> _Latex:
        (base,) = node.args
        return _raised(_at(base, ATOM), exponent, elementwise=bool(base.shape))

    return write


_WRITERS |= {"square": _fixed_power("2"), "inv_pos": _fixed_power("-1")}


@_writes("index")
def _index(node: Node) -> _Latex:
    return _Latex(f"{_subscriptable(node.args[0])}_{{{escaped(index_text(node.value))}}}")


def _subscriptable(node: Node) -> str:
    """The node where a subscript follows: in brackets unless it is a name without one."""
    name = write_latex(node)
    return name if node.head == "name" and "_" not in name else rf"\left[{name}\right]"


# Norms and stacks


@_writes("sum_squares")
def _sum_squares(node: Node) -> _Latex:
    (argument,) = node.args
    if not argument.shape:
        return _raised(_at(argument, ATOM), "2", elementwise=False)
    kind = "F" if len(argument.shape) == 2 and node.option("axis") is None else "2"
    norm = rf"\left\Vert {write_latex(argument)} \right\Vert"
    return _Latex(f"{norm}{_subscript([kind, *_settings(node)])}^{{2}}", POWER)


@_writes("entr")
def _entropy(node: Node) -> _Latex:
    (argument,) = node.args
    logarithm = rf"\log\left({write_latex(argument)}\right)"
    return _Latex(f"-{_times_function(argument, logarithm)}", SUM)


@_writes("rel_entr")
def _relative_entropy(node: Node) -> _Latex:
    left, right = node.args
    ratio = rf"\log\left(\frac{{{write_latex(left)}}}{{{write_latex(right)}}}\right)"
    return _Latex(_times_function(left, ratio), PRODUCT if not left.shape else ELEMENTWISE)


@_writes("xexp")
def _times_exponential(node: Node) -> _Latex:
    (argument,) = node.args
    power = rf"\exp\left({write_latex(argument)}\right)"
    return _Latex(_times_function(argument, power), PRODUCT if not argument.shape else ELEMENTWISE)


def _times_function(factor: Node, function: str) -> str:
    """A factor before a function of it, entry by entry."""
    sign = r"\odot" if factor.shape else r"\,"
    return f"{_at(factor, PRODUCT)} {sign} {function}"


@_writes("geo_mean")
def _geometric_mean(node: Node) -> _Latex:
    """The n-th root of a product; weights are powers in it."""
    (argument,) = node.args
    weights = node.option("p")
    if node.option("axis") is not None:
        return _operator(node)
    if weights is None:
        return _Latex(
            rf"\left(\prod\left({write_latex(argument)}\right)\right)^{{1/{np.prod(argument.shape):.0f}}}", POWER
        )
    powers = _raised(_at(argument, ATOM), write_latex(weights), elementwise=True).text
    return _Latex(rf"\left(\prod\left({powers}\right)\right)^{{1/{np.sum(weights.value):g}}}", POWER)


@_writes("sum_largest")
def _sum_largest(node: Node) -> _Latex:
    """Order statistics in brackets: x_[1] is the largest entry."""
    (argument,) = node.args
    count = node.option("k")
    if node.option("axis") is not None or int(count) != count:
        return _applied(r"\operatorname{sumlargest}" + _subscript(_settings(node)), node.args)
    return _Latex(rf"\sum_{{j=1}}^{{{int(count)}}} {_subscriptable(argument)}_{{[j]}}", PRODUCT)


@_writes("lambda_sum_largest")
def _sum_of_largest_eigenvalues(node: Node) -> _Latex:
    return _Latex(rf"\sum_{{j=1}}^{{{node.option('k')}}} \lambda_{{j}}\left({_listed(node.args)}\right)", PRODUCT)


@_writes("gmatmul")
def _geometric_product(node: Node) -> _Latex:
    matrix = node.option("A")
    inner = _beside(_at(matrix, PRODUCT), rf"\log\left({_listed(node.args)}\right)").text
    return _Latex(rf"\exp\left({inner}\right)", POWER)


@_writes("broadcast_to", "promote")
def _broadcast(node: Node) -> _Latex:
    return _applied(rf"\operatorname{{broadcast}}_{{{dimensions_latex(node.shape)}}}", node.args)


@_writes("permute_dims")
def _permuted(node: Node) -> _Latex:
    axes = [str(axis) for axis in node.option("axes")]
    return _applied(r"\operatorname{permute}" + _subscript(axes), node.args)


@_writes("pnorm")
def _pnorm(node: Node) -> _Latex:
    (argument,) = node.args
    p, *settings = _settings(node)
    return _Latex(rf"\left\Vert {write_latex(argument)} \right\Vert" + _subscript([p.removeprefix("p="), *settings]))


@_writes("norm1", "norm2", "norm_inf")
def _norm(node: Node) -> _Latex:
    """Of a scalar all norms are the absolute value."""
    return _from_template(node if node.args[0].shape else replace(node, head="abs"))


def _brackets(separator: str) -> _Writer:
    def write(node: Node) -> _Latex:
        return _Latex(rf"\left[{_listed(node.args, separator)}\right]{_subscript(_settings(node))}", POWER)

    return write


_WRITERS |= {"hstack": _brackets(r",\, "), "concatenate": _brackets(r",\, "), "vstack": _brackets(r";\, ")}


@_writes("reshape")
def _reshape(node: Node) -> _Latex:
    return _applied(rf"\operatorname{{reshape}}_{{{dimensions_latex(node.value)}}}", node.args)


# Means and sums over samples and clients, and the other pieces of a problem


@_writes("average")
def _average(node: Node) -> _Latex:
    holder = node.option("holder")
    party = "" if not holder else holder if len(holder) == 1 else rf"\mathrm{{{escaped(holder)}}}"
    if node.value == "E":
        operator = r"\mathbb{E}" + _subscript([party] if party else [])
    else:
        samples = r",\,".join(map(symbol, node.option("over")))
        operator = r"\sum" + _subscript([rf"{samples} \in \mathcal{{D}}_{{{party}}}" if party else samples])
    return _Latex(rf"{operator}\left[{write_latex(node.args[0])}\right]", POWER)


@_writes("weighted_sum")
def _weighted_sum(node: Node) -> _Latex:
    return _Latex(rf"\sum_{{i=1}}^{{{node.value}}} w_{{i}} \, {_at(node.args[0], PRODUCT)}", PRODUCT)


@_writes("tuple")
def _tuple(node: Node) -> _Latex:
    return _applied("", node.args)


@_writes("apply")
def _apply(node: Node) -> _Latex:
    function, *arguments = node.args
    return _applied(write_latex(function), arguments)


@_writes("dot")
def _dot(node: Node) -> _Latex:
    left, right = node.args
    return _beside(rf"{write_latex(left)}^{{\top}}", _at(right, PRODUCT))


@_writes("inner")
def _inner(node: Node) -> _Latex:
    return _Latex(rf"\left\langle {_listed(node.args)} \right\rangle")


# Constraints


def _infix(symbol: str, operands: int, precedence: int) -> _Writer:
    def write(node: Node) -> _Latex:
        return _Latex(f" {symbol} ".join(_at(arg, operands) for arg in node.args), precedence)

    return write


_WRITERS |= {
    "le": _infix(r"\leq", SUM, RELATION),
    "ge": _infix(r"\geq", SUM, RELATION),
    "eq": _infix("=", SUM, RELATION),
    "psd_ge": _infix(r"\succeq", SUM, RELATION),
    "psd_le": _infix(r"\preceq", SUM, RELATION),
    "And": _infix(r"\wedge", ATOM, ELEMENTWISE),
    "Or": _infix(r"\vee", ATOM, ELEMENTWISE),
    "Xor": _infix(r"\oplus", ATOM, ELEMENTWISE),
}


@_writes("member")
def _member(node: Node) -> _Latex:
    element, members = node.args
    values = ",\\, ".join(f"{value:g}" for value in np.ravel(members.value))
    return _Latex(rf"{write_latex(element)} \in \left\{{{values}\right\}}", RELATION)


@_writes("property")
def _property(node: Node) -> _Latex:
    return _Latex(rf"{write_latex(node.args[0])}\ \mathrm{{{escaped(node.value)}}}", RELATION)
