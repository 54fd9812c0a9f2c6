"""Spellings of leaves, of users' functions, of means over samples and clients, and of the other pieces of a problem."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hierfl.atoms.writing import latex_pen, text_pen
from hierfl.atoms.writing.latex_pen import Latex, LatexPen, beside, dimensions_latex, escaped, subscript, symbol
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Spelling
from hierfl.atoms.writing.text_pen import LONGEST_ARRAY, Text, TextPen, call

_LARGEST_DENOMINATOR = 4


# Leaves


def _latex_of_number(pen: LatexPen, phrase: Phrase) -> Latex:
    value = phrase.value
    if not np.isrealobj(value) or not np.isfinite(value):
        return Latex(r"\infty" if np.isinf(value) else rf"\mathrm{{{value}}}")
    fraction = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
    if fraction.denominator > 1 and fraction.numerator < 10 and abs(float(fraction) - value) < 1e-14:
        return Latex(rf"\frac{{{fraction.numerator}}}{{{fraction.denominator}}}", latex_pen.PRODUCT)
    mantissa, _, exponent = f"{value:g}".partition("e")
    if not exponent:
        return Latex(mantissa)
    power = f"10^{{{int(exponent)}}}"
    return Latex(power, latex_pen.POWER) if mantissa == "1" else Latex(rf"{mantissa} \times {power}", latex_pen.PRODUCT)


def _latex_of_array(pen: LatexPen, phrase: Phrase) -> Latex:
    if len(phrase.shape) == 1 and phrase.shape[0] <= LONGEST_ARRAY:
        return Latex(rf"\left({', '.join(f'{entry:g}' for entry in np.asarray(phrase.value))}\right)")
    return Latex(rf"\mathrm{{const}}_{{{dimensions_latex(phrase.shape)}}}")


def _text_of_array(pen: TextPen, phrase: Phrase) -> Text:
    if len(phrase.shape) == 1 and phrase.shape[0] <= LONGEST_ARRAY:
        return Text(f"[{', '.join(f'{entry:g}' for entry in np.asarray(phrase.value))}]")
    return Text(f"[{'x'.join(map(str, phrase.shape))} constant]")


def _latex_of_name(pen: LatexPen, phrase: Phrase) -> Latex:
    index = phrase.option("index")
    return Latex(symbol(phrase.value, *([index] if index else [])))


def _text_of_name(pen: TextPen, phrase: Phrase) -> Text:
    index = phrase.option("index")
    return Text(f"{phrase.value}_{index}" if index else phrase.value)


# Means and sums over samples and clients


def _latex_of_average(pen: LatexPen, phrase: Phrase) -> Latex:
    holder = phrase.option("holder")
    party = "" if not holder else holder if len(holder) == 1 else rf"\mathrm{{{escaped(holder)}}}"
    if phrase.value == "E":
        operator = r"\mathbb{E}" + subscript([party] if party else [])
    else:
        samples = r",\,".join(map(symbol, phrase.option("over")))
        operator = r"\sum" + subscript([rf"{samples} \in \mathcal{{D}}_{{{party}}}" if party else samples])
    return Latex(rf"{operator}\left[{pen.text(phrase.args[0])}\right]", latex_pen.POWER)


def _text_of_average(pen: TextPen, phrase: Phrase) -> Text:
    holder = phrase.option("holder")
    return Text(f"{phrase.value}{f'_{holder}' if holder else ''}[{pen.text(phrase.args[0])}]")


def _latex_of_weighted_sum(pen: LatexPen, phrase: Phrase) -> Latex:
    inside = pen.at(phrase.args[0], latex_pen.PRODUCT)
    return Latex(rf"\sum_{{i=1}}^{{{phrase.value}}} w_{{i}} \, {inside}", latex_pen.PRODUCT)


def _text_of_weighted_sum(pen: TextPen, phrase: Phrase) -> Text:
    return Text(f"sum_i w_i * {pen.at(phrase.args[0], text_pen.PRODUCT)}", text_pen.PRODUCT)


# Tuples, functions and inner products


def _latex_of_application(pen: LatexPen, phrase: Phrase) -> Latex:
    function, *arguments = phrase.args
    return pen.applied(pen.text(function), arguments)


def _text_of_application(pen: TextPen, phrase: Phrase) -> Text:
    function, *arguments = map(pen.text, phrase.args)
    return call(function, *arguments)


def _latex_of_dot(pen: LatexPen, phrase: Phrase) -> Latex:
    left, right = phrase.args
    return beside(rf"{pen.text(left)}^{{\top}}", pen.at(right, latex_pen.PRODUCT))


def _text_of_dot(pen: TextPen, phrase: Phrase) -> Text:
    left, right = phrase.args
    return Text(f"{pen.at(left, text_pen.ATOM)}^T {pen.at(right, text_pen.ATOM)}", text_pen.PRODUCT)


SPELLINGS = (
    Spelling("number", latex=_latex_of_number, text=lambda pen, phrase: Text(f"{phrase.value:g}")),
    Spelling("array", latex=_latex_of_array, text=_text_of_array),
    Spelling("name", latex=_latex_of_name, text=_text_of_name),
    Spelling(
        "call",
        latex=lambda pen, phrase: pen.applied(symbol(phrase.value), phrase.args),
        text=lambda pen, phrase: call(phrase.value, *map(pen.text, phrase.args)),
    ),
    Spelling("average", latex=_latex_of_average, text=_text_of_average),
    Spelling("weighted_sum", latex=_latex_of_weighted_sum, text=_text_of_weighted_sum),
    Spelling(
        "tuple",
        latex=lambda pen, phrase: pen.applied("", phrase.args),
        text=lambda pen, phrase: call("", *map(pen.text, phrase.args)),
    ),
    Spelling("apply", latex=_latex_of_application, text=_text_of_application),
    Spelling("dot", latex=_latex_of_dot, text=_text_of_dot),
    Spelling(
        "inner",
        latex=lambda pen, phrase: Latex(rf"\left\langle {pen.listed(phrase.args)} \right\rangle"),
        text=lambda pen, phrase: Text(f"<{', '.join(map(pen.text, phrase.args))}>"),
    ),
)
