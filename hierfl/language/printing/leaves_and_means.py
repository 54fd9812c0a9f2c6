"""Spellings of leaves, of users' functions, of means over samples and clients, and of the other pieces of a problem."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hierfl.atoms.writing.latex_pen import LatexPen, beside, dimensions_latex, escaped, subscript, symbol
from hierfl.atoms.writing.pen import ATOM, POWER, PRODUCT, Pen, Written
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Spelling
from hierfl.atoms.writing.text_pen import LONGEST_ARRAY, TextPen

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


def _latex_of_name(pen: LatexPen, phrase: Phrase) -> Written:
    index = phrase.option("index")
    return Written(symbol(phrase.value, *([index] if index else [])))


def _text_of_name(pen: TextPen, phrase: Phrase) -> Written:
    index = phrase.option("index")
    return Written(f"{phrase.value}_{index}" if index else phrase.value)


# Means and sums over samples and clients


def _latex_of_average(pen: LatexPen, phrase: Phrase) -> Written:
    holder = phrase.option("holder")
    party = "" if not holder else holder if len(holder) == 1 else rf"\mathrm{{{escaped(holder)}}}"
    if phrase.value == "E":
        operator = r"\mathbb{E}" + subscript([party] if party else [])
    else:
        samples = r",\,".join(map(symbol, phrase.option("over")))
        operator = r"\sum" + subscript([rf"{samples} \in \mathcal{{D}}_{{{party}}}" if party else samples])
    return Written(rf"{operator}\left[{pen.text(phrase.args[0])}\right]", POWER)


def _text_of_average(pen: TextPen, phrase: Phrase) -> Written:
    holder = phrase.option("holder")
    return Written(f"{phrase.value}{f'_{holder}' if holder else ''}[{pen.text(phrase.args[0])}]")


def _latex_of_weighted_sum(pen: LatexPen, phrase: Phrase) -> Written:
    inside = pen.at(phrase.args[0], PRODUCT)
    return Written(rf"\sum_{{i=1}}^{{{phrase.value}}} w_{{i}} \, {inside}", PRODUCT)


def _text_of_weighted_sum(pen: TextPen, phrase: Phrase) -> Written:
    return Written(f"sum_i w_i * {pen.at(phrase.args[0], PRODUCT)}", PRODUCT)


# Tuples, functions and inner products


def _application(pen: Pen, phrase: Phrase) -> Written:
    function, *arguments = phrase.args
    return pen.applied(pen.text(function), arguments)


def _tuple(pen: Pen, phrase: Phrase) -> Written:
    return pen.applied("", phrase.args)


def _latex_of_dot(pen: LatexPen, phrase: Phrase) -> Written:
    left, right = phrase.args
    return beside(rf"{pen.text(left)}^{{\top}}", pen.at(right, PRODUCT))


def _text_of_dot(pen: TextPen, phrase: Phrase) -> Written:
    left, right = phrase.args
    return Written(f"{pen.at(left, ATOM)}^T {pen.at(right, ATOM)}", PRODUCT)


SPELLINGS = (
    Spelling("number", latex=_latex_of_number, text=lambda pen, phrase: Written(f"{phrase.value:g}")),
    Spelling("array", latex=_latex_of_array, text=_text_of_array),
    Spelling("name", latex=_latex_of_name, text=_text_of_name),
    Spelling(
        "call",
        latex=lambda pen, phrase: pen.applied(symbol(phrase.value), phrase.args),
        text=lambda pen, phrase: pen.applied(phrase.value, phrase.args),
    ),
    Spelling("average", latex=_latex_of_average, text=_text_of_average),
    Spelling("weighted_sum", latex=_latex_of_weighted_sum, text=_text_of_weighted_sum),
    Spelling("tuple", latex=_tuple, text=_tuple),
    Spelling("apply", latex=_application, text=_application),
    Spelling("dot", latex=_latex_of_dot, text=_text_of_dot),
    Spelling(
        "inner",
        latex=lambda pen, phrase: Written(rf"\left\langle {pen.listed(phrase.args)} \right\rangle"),
        text=lambda pen, phrase: Written(f"<{', '.join(map(pen.text, phrase.args))}>"),
    ),
)
