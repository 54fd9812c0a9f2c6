r"""Writes phrases as LaTeX, with parentheses where an operand binds looser than its place.

Delimiters are written ``\left\Vert``, which MathJax and matplotlib's mathtext both know (mathtext has no ``\lVert``). Names are symbols:
``rho`` is :math:`\rho`, ``y_hat1`` is :math:`\hat{y}_{1}`, ``image`` is upright.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from hierfl.atoms.writing.pen import ATOM, POWER, PRODUCT, RELATION, Pen, Written
from hierfl.atoms.writing.phrase import Phrase, number

_GREEK = re.compile(
    "alpha|beta|gamma|delta|(var)?epsilon|zeta|eta|(var)?theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|upsilon|"
    "(var)?phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega"
)
_ACCENTS = frozenset(["hat", "bar", "tilde", "dot"])
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SPECIAL = re.compile(r"([#%&$_{}])")


def symbol(name: str, *subscripts: str) -> str:
    """The LaTeX of a leaf's or a function's name, with further subscripts, such as a client's index.

    Parts after ``_`` and trailing digits are subscripts; ``hat``, ``bar``, ``tilde`` and ``dot`` are accents; a name that is no Python identifier is
    set upright as it is.
    """
    if not _PLAIN.fullmatch(name):
        return _subscripted(_letters(name), list(subscripts))
    words = [word for part in name.split("_") for word in _split_digits(part)]
    accents = [word for word in words[1:] if word in _ACCENTS]
    body = _letters(words[0])
    for accent in accents:
        body = rf"\{accent}{{{body}}}"
    return _subscripted(body, [_letters(word) for word in words[1:] if word not in _ACCENTS] + [*subscripts])


def escaped(text: str) -> str:
    """The text with TeX's special characters escaped, for upright words."""
    return _SPECIAL.sub(r"\\\1", text.replace("\\", "/")).replace("^", "").replace("~", "").replace(" ", r"\ ")


def _split_digits(part: str) -> list[str]:
    """``y1`` is y and 1; ``x1y`` stays whole."""
    match = re.fullmatch(r"([A-Za-z]+)(\d+)", part)
    return [*match.groups()] if match else [part] if part else []


def _letters(word: str) -> str:
    if _GREEK.fullmatch(word):
        return f"\\{word}"
    plain = word.isdigit() or (len(word) == 1 and word.isalpha())
    return word if plain else rf"\mathrm{{{escaped(word)}}}"


def _subscripted(body: str, subscripts: list[str]) -> str:
    return f"{body}_{{{', '.join(subscripts)}}}" if subscripts else body


class Template(NamedTuple):
    """LaTeX with places: ``#1`` is the first operand where the template delimits it, ``*1`` where it is a factor, ``@1``
    where it is the base of a superscript; ``#,`` continues a subscript with the settings.
    """

    text: str
    precedence: int = ATOM


_PLACES = {"#": RELATION, "*": PRODUCT, "@": ATOM}


class LatexPen(Pen):
    """Writes phrases as LaTeX."""

    parentheses = r"\left(", r"\right)"

    def listed(self, phrases: Iterable[Phrase], separator: str = r",\, ") -> str:
        return separator.join(map(self.text, phrases))

    def applied(self, name: str, args: Iterable[Phrase]) -> Written:
        return Written(rf"{name}\left({self.listed(args)}\right)", POWER)

    def operator(self, phrase: Phrase, name: str | None = None) -> Written:
        """A symbol before the operands, the settings as its subscripts; by default the head's name, upright."""
        name = name or rf"\operatorname{{{escaped(phrase.head.replace('_', ' '))}}}"
        return self.applied(name + subscript(self.settings(phrase)), phrase.args)

    def filled(self, template: Template, phrase: Phrase) -> Written:
        settings = self.settings(phrase)

        def fill(place: re.Match[str]) -> str:
            kind, which = place.groups()
            if which == ",":
                return "".join(rf",\,{setting}" for setting in settings)
            return self.at(phrase.args[int(which) - 1], _PLACES[kind])

        return Written(re.sub(r"([#*@])([,\d])", fill, template.text), template.precedence)

    def settings(self, phrase: Phrase) -> list[str]:
        """The settings as subscripts; those that only say how an array is laid out are left out."""
        return [self._setting(name, value) for name, value in phrase.options if name not in ("keepdims", "order")]

    def _setting(self, name: str, value: Any) -> str:
        if isinstance(value, float):
            value = number(value)
        written = self.text(value) if isinstance(value, Phrase) else escaped(f"{value}")
        return f"{symbol(name)}={written}"

    def times_function(self, factor: Phrase, function: str) -> str:
        """A factor before a function of it, entry by entry."""
        sign = r"\odot" if factor.shape else r"\,"
        return f"{self.at(factor, PRODUCT)} {sign} {function}"


def subscript(parts: list[str]) -> str:
    """The parts as one subscript; nothing without parts."""
    listed = r",\,".join(parts)
    return f"_{{{listed}}}" if parts else ""


def raised(base: str, exponent: str, elementwise: bool) -> Written:
    """A power; of an array entry by entry."""
    kind = r"\circ " if elementwise else ""
    return Written(f"{base}^{{{kind}{exponent}}}", POWER)


def beside(left: str, right: str) -> Written:
    """Two factors in a row, with a dot where two numbers would run together."""
    return Written(rf"{left} \cdot {right}" if re.match(r"\d|\\frac\{\d", right) else rf"{left} \, {right}", PRODUCT)


def dimensions_latex(shape: tuple[int, ...]) -> str:
    r"""``10 \times 785``."""
    return r" \times ".join(map(str, shape))


def subscriptable(pen: LatexPen, phrase: Phrase) -> str:
    """The phrase where a subscript follows: in brackets unless it is a name without one."""
    name = pen.text(phrase)
    return name if phrase.head == "name" and "_" not in name else rf"\left[{name}\right]"
