"""Reads CVXPY trees, what an expression or a constraint says, and writes it as one line of text: what the user wrote, not what CVXPY made of it.

The row of an atom may say how it is read; any other atom becomes a function of its own name. Every head, of atoms, of constraints and
of the other pieces of a problem, has a spelling. Here are those of leaves, of users' functions, of means over samples and clients, of
constraints, and of the other pieces.

LaTeX is for notebooks (MathJax) and matplotlib's labels (mathtext): an *operator* stands before its operands, ``\\exp\\left(x\\right)``, a
*template* has places for them. Vectors are columns, so ``label @ (w @ image)`` reads label' w image. The text is Python: with CVXPY's functions and the leaves' names in scope it evaluates to the same expression (except
for abbreviated constants, ``E`` and ``total``). Parentheses follow from a precedence for each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy import constraints as cones
from cvxpy.atoms.axis_atom import AxisAtom
from cvxpy.expressions.leaf import Leaf

from hierfl.atoms.table import row_of, spelling_of
from hierfl.atoms.writing.latex_pen import LatexPen, Template, beside, dimensions_latex, escaped, subscript, symbol
from hierfl.atoms.writing.pen import ATOM, LONGEST_ARRAY, POWER, PRODUCT, RELATION, SUM, Pen, TextPen, Written, infix
from hierfl.atoms.writing.phrase import Phrase, added, bare, number, value_phrase
from hierfl.atoms.writing.spelling import Reader, Spelling
from hierfl.language.sample import row_read

_LARGEST_DENOMINATOR = 4


# Leaves


def _latex_of_number(pen: LatexPen, phrase: Phrase) -> Written:
    value = phrase.value
    if not np.isrealobj(value) or not np.isfinite(value):
        return Written(r"\infty" if np.isinf(value) else rf"\mathrm{{{value}}}")
    fraction = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
    if fraction.denominator > 1 and fraction.numerator < 10 and abs(float(fraction) - value) < 1e-14:
        return Written(rf"\frac{{{fraction.numerator}}}{{{fraction.denominator}}}", PRODUCT)
    mantissa, _, exponent = f"{value:g}".partition("e")
    if not exponent:
        return Written(mantissa)
    power = f"10^{{{int(exponent)}}}"
    return Written(power, POWER) if mantissa == "1" else Written(rf"{mantissa} \times {power}", PRODUCT)


def _latex_of_array(pen: LatexPen, phrase: Phrase) -> Written:
    if len(phrase.shape) == 1 and phrase.shape[0] <= LONGEST_ARRAY:
        return Written(rf"\left({', '.join(f'{entry:g}' for entry in np.asarray(phrase.value))}\right)")
    return Written(rf"\mathrm{{const}}_{{{dimensions_latex(phrase.shape)}}}")


def _text_of_array(pen: TextPen, phrase: Phrase) -> Written:
    if len(phrase.shape) == 1 and phrase.shape[0] <= LONGEST_ARRAY:
        return Written(f"[{', '.join(f'{entry:g}' for entry in np.asarray(phrase.value))}]")
    return Written(f"[{'x'.join(map(str, phrase.shape))} constant]")


# Means and sums over samples and clients


def _latex_of_average(pen: LatexPen, phrase: Phrase) -> Written:
    holder = phrase.option("holder")
    party = "" if not holder else holder if len(holder) == 1 else rf"\mathrm{{{escaped(holder)}}}"
    if phrase.value == "E":
        operator = r"\mathbb{E}" + subscript([party] if party else [])
    else:
        samples = r",\,".join(map(symbol, phrase.option("over")))
        of_client = r"i \in \mathcal{C}" if holder == "clients" else ""
        operator = r"\sum" + subscript([of_client or rf"{samples} \in \mathcal{{D}}_{{{party}}}" if party else samples])
    return Written(rf"{operator}\left[{pen.text(phrase.args[0])}\right]", POWER)


def _latex_of_weighted_sum(pen: LatexPen, phrase: Phrase) -> Written:
    inside = pen.at(phrase.args[0], PRODUCT)
    weight, index = phrase.option("weight", "w"), phrase.option("index", "i")
    return Written(rf"\sum_{{{index}=1}}^{{{phrase.value}}} {symbol(weight, index)} \, {inside}", PRODUCT)


def _text_of_weighted_sum(pen: TextPen, phrase: Phrase) -> Written:
    weight, index = phrase.option("weight", "w"), phrase.option("index", "i")
    return Written(f"sum_{index} {weight}_{index} * {pen.at(phrase.args[0], PRODUCT)}", PRODUCT)


# Tuples, functions and inner products


def _application(pen: Pen, phrase: Phrase) -> Written:
    function, *arguments = phrase.args
    return pen.applied(pen.text(function), arguments)


def _tuple(pen: Pen, phrase: Phrase) -> Written:
    return pen.applied("", phrase.args)


_LEAVES_AND_MEANS = (
    Spelling("number", latex=_latex_of_number, text=lambda pen, phrase: Written(f"{phrase.value:g}")),
    Spelling("array", latex=_latex_of_array, text=_text_of_array),
    Spelling(
        "name",
        latex=lambda pen, phrase: Written(symbol(phrase.value, *filter(None, [phrase.option("index")]))),
        text=lambda pen, phrase: Written("_".join(filter(None, [phrase.value, phrase.option("index")]))),
    ),
    Spelling(
        "call",
        latex=lambda pen, phrase: pen.applied(symbol(phrase.value), phrase.args),
        text=lambda pen, phrase: pen.applied(phrase.value, phrase.args),
    ),
    Spelling(
        "average",
        latex=_latex_of_average,
        text=lambda pen, phrase: Written(f"{'_'.join(filter(None, [phrase.value, phrase.option('holder')]))}[{pen.text(phrase.args[0])}]"),
    ),
    Spelling("weighted_sum", latex=_latex_of_weighted_sum, text=_text_of_weighted_sum),
    Spelling("tuple", latex=_tuple, text=_tuple),
    Spelling("apply", latex=_application, text=_application),
    Spelling(
        "dot",
        latex=lambda pen, phrase: beside(rf"{pen.text(phrase.args[0])}^{{\top}}", pen.at(phrase.args[1], PRODUCT)),
        text=lambda pen, phrase: Written(f"{pen.at(phrase.args[0], ATOM)}^T {pen.at(phrase.args[1], ATOM)}", PRODUCT),
    ),
    Spelling(
        "inner",
        latex=lambda pen, phrase: Written(rf"\left\langle {pen.listed(phrase.args)} \right\rangle"),
        text=lambda pen, phrase: Written(f"<{', '.join(map(pen.text, phrase.args))}>"),
    ),
)


CONE_HEADS: dict[type, str] = {cones.PowCone3DApprox: "PowCone3D"}


def _inequality(reader: Reader, constraint: Any) -> Phrase:
    lower, upper = (reader(bare(argument)) for argument in constraint.args)
    if constraint.args[0].is_constant() and not constraint.args[1].is_constant():
        return Phrase("ge", (upper, lower))
    return Phrase("le", (lower, upper))


def _against_zero(head: str) -> Callable[[Reader, Any], Phrase]:
    def read(reader: Reader, constraint: Any) -> Phrase:
        return Phrase(head, (reader(constraint.args[0]), number(0)))

    return read


def _semidefinite(reader: Reader, constraint: Any) -> Phrase:
    """``A >> B`` is stored as A - B in the cone: its negative terms go back to the right."""
    whole = reader(constraint.args[0])
    terms = whole.args if whole.head == "add" else (whole,)
    left = [term for term in terms if term.head != "neg" and not term.is_number(0)]
    right = [term.args[0] for term in terms if term.head == "neg"]
    if not left:
        return Phrase("psd_le", (added(*right) if right else number(0), number(0)))
    return Phrase("psd_ge", (added(*left), added(*right) if right else number(0)))


def _second_order(reader: Reader, constraint: Any) -> Phrase:
    bound, vector = constraint.args
    if bound.size == 1 and isinstance(bound, cp.reshape):
        bound = bound.args[0]
    columns = vector.ndim == 2
    norm = Phrase("norm2", (reader(vector),), options=(("axis", constraint.axis),) if columns else ())
    return Phrase("le", (norm, reader(bound)))


READERS: dict[type, Callable[[Reader, Any], Phrase]] = {
    cones.Inequality: _inequality,
    cones.Equality: lambda reader, one: Phrase("eq", tuple(reader(bare(argument)) for argument in one.args)),
    cones.Zero: _against_zero("eq"),
    cones.NonNeg: _against_zero("ge"),
    cones.NonPos: _against_zero("le"),
    cones.PSD: _semidefinite,
    cones.SOC: _second_order,
    cones.FiniteSet: lambda reader, one: Phrase("member", (reader(one.args[0]), value_phrase(np.asarray(one.vec.value)))),
}


def _relation(head: str, latex: str, text: str) -> Spelling:
    return Spelling(head, latex=infix(latex, SUM, RELATION), text=infix(text, SUM, RELATION))


def _cone(head: str, latex: str, options: Mapping[str, Any] | None = None) -> Spelling:
    return Spelling(head, options, Template(latex, RELATION))


def _latex_of_member(pen: LatexPen, phrase: Phrase) -> Written:
    element, members = phrase.args
    values = ",\\, ".join(f"{value:g}" for value in np.ravel(members.value))
    return Written(rf"{pen.text(element)} \in \left\{{{values}\right\}}", RELATION)


_QUADRATURE = {"m": None, "k": None}

_RELATIONS = (
    _relation("le", r"\leq", "<="),
    _relation("ge", r"\geq", ">="),
    _relation("eq", "=", "=="),
    _relation("psd_ge", r"\succeq", ">>"),
    _relation("psd_le", r"\preceq", "<<"),
    Spelling("member", latex=_latex_of_member, text=lambda pen, phrase: pen.applied("FiniteSet", phrase.args)),
    Spelling(
        "property",
        latex=lambda pen, phrase: Written(rf"{pen.text(phrase.args[0])}\ \mathrm{{{escaped(phrase.value)}}}", RELATION),
        text=lambda pen, phrase: Written(f"{pen.at(phrase.args[0], SUM)} is {phrase.value}", RELATION),
    ),
    _cone("ExpCone", r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\exp}"),
    _cone("PowCone3D", r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\mathrm{pow}#,}", {"alpha": None}),
    _cone("PowConeND", r"\left(#1,\, #2\right) \in \mathcal{K}_{\mathrm{pow}#,}", {"alpha": None, "axis": 0}),
    _cone("RelEntrConeQuad", r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\mathrm{re}#,}", _QUADRATURE),
    _cone("OpRelEntrConeQuad", r"\left(#1,\, #2,\, #3\right) \in \mathcal{K}_{\mathrm{re}#,}", _QUADRATURE),
    _cone("SvecPSD", r"\operatorname{mat}\left(#1\right) \succeq 0"),
)


_OTHERS = {spelling.head: spelling for spelling in (*_LEAVES_AND_MEANS, *_RELATIONS)}


def spelling_in(phrase: Phrase) -> Spelling | None:
    """How a phrase is written; None for a function of that name."""
    return phrase.spelling or _spelling_named(phrase.head)


def _spelling_named(head: str) -> Spelling | None:
    return spelling_of(head) or _OTHERS.get(head)


_AXIS_OPTIONS = {"axis": None, "keepdims": False}


class TreeReader:
    """Reads every part of a tree."""

    def __call__(self, part: Any) -> Phrase:
        """The phrase of a CVXPY expression or constraint."""
        if isinstance(part, cp.Constant):
            return _constant(part)
        if isinstance(part, Leaf):
            return Phrase("name", value=part.name(), options=(("id", part.id),), shape=tuple(part.shape))
        if (row := row_read(part)) is not None:
            variable, whose = row
            index = () if isinstance(whose, Leaf) and whose.parameters() else (("index", str(int(np.argmax(whose.value)))),)
            return Phrase("name", value=variable.name(), options=(("id", variable.id if index else whose.id), *index), shape=tuple(part.shape))
        reader = READERS.get(type(part)) or row_of(part).read
        if reader is not None:
            return reader(self, part)
        return self.operation(part, tuple(self(argument) for argument in part.args))

    def operation(self, part: Any, args: tuple[Phrase, ...], head: str | None = None) -> Phrase:
        """A function of phrases, named by the part's class, with the settings that differ from their defaults."""
        spellings = row_of(part).spellings
        head = head or (spellings[0].head if spellings else CONE_HEADS.get(type(part), type(part).__name__))
        own = next((one for one in spellings if one.head == head), None)  # that of an atom with a row of its own is in no table
        spelling = own or _spelling_named(head)
        defaults = spelling.options if spelling is not None else None
        if defaults is None:
            defaults = _AXIS_OPTIONS if isinstance(part, AxisAtom) else {}
        given = ((name, getattr(part, name), default) for name, default in defaults.items())
        differing = ((name, value) for name, value, default in given if not _is_default(value, default))
        options = tuple((name, self._setting(value)) for name, value in differing)
        return Phrase(head, args, options=options, shape=tuple(part.shape), spelling=own)

    def _setting(self, value: Any) -> Any:
        if isinstance(value, cp.Expression):
            return self(bare(value))
        return value_phrase(value) if isinstance(value, np.ndarray) else value


read = TreeReader()


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, cp.Constant):
        value = value.value
    if isinstance(value, cp.Expression):  # a parameter: compared with anything it is a constraint
        return False
    return np.shape(value) == () and value == default


def _constant(constant: cp.Constant) -> Phrase:
    if constant._name:
        return Phrase("name", value=constant._name, shape=tuple(constant.shape))
    return value_phrase(constant.value)


def expression_text(expr: Any) -> str:
    """A CVXPY expression or constraint as one readable line, such as ``norm(y - x, "fro") <= rho``; atoms without a spelling have their class name."""
    return write_text(read(expr))


def write_text(phrase: Phrase) -> str:
    """A phrase as text."""
    return _write(phrase).text


def _write(phrase: Phrase) -> Written:
    spelling = spelling_in(phrase)
    if spelling is None or spelling.text is None:
        return _PEN.function(phrase)
    return spelling.text(_PEN, phrase)


_PEN = TextPen(_write)


def domain_text(shape: tuple[int, ...]) -> str:
    """The space of that shape: ``R``, ``R^5`` or ``R^(10 x 785)``."""
    if not shape:
        return "R"
    return f"R^{shape[0]}" if len(shape) == 1 else f"R^({' x '.join(map(str, shape))})"


def point_text(point: Any) -> str:
    """A point on one line, its numbers short, 0 where they are rounding beside the others: an array, or a mapping by variable, of which the names are written."""
    if isinstance(point, Mapping):
        named = {key.name() if isinstance(key, cp.Variable) else key: part for key, part in point.items()}
        return ", ".join(f"{name} = {point_text(part)}" for name, part in named.items())
    if not isinstance(point, (np.ndarray, float)):
        return str(point)
    array = np.asarray(point)
    rounding = np.abs(array) <= 1e-12 * np.max(np.abs(array), initial=0.0, where=np.isfinite(array))
    return " ".join(np.array2string(np.where(rounding, np.zeros_like(array), array), threshold=8, precision=6).split())


def expression_latex(expr: Any) -> str:
    r"""A CVXPY expression or constraint as LaTeX, such as ``\left\Vert x - y \right\Vert_{2}^{2}``, to be put between dollar signs.

    An atom without a notation of its own is ``\operatorname{name}(...)``.
    """
    return write_latex(read(expr))


def write_latex(phrase: Phrase) -> str:
    """A phrase as LaTeX."""
    return _written_latex(phrase).text


def _written_latex(phrase: Phrase) -> Written:
    spelling = spelling_in(phrase)
    latex = None if spelling is None else spelling.latex
    if isinstance(latex, Template):
        return _LATEX_PEN.filled(latex, phrase)
    return latex(_LATEX_PEN, phrase) if callable(latex) else _LATEX_PEN.operator(phrase, latex)


_LATEX_PEN = LatexPen(_written_latex)


def domain_latex(shape: tuple[int, ...]) -> str:
    r"""The space of that shape: ``\mathbb{R}^{10 \times 785}``."""
    return r"\mathbb{R}" + (f"^{{{dimensions_latex(shape)}}}" if shape else "")
