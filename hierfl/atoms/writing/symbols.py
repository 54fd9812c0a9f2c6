r"""LaTeX symbols of names: ``rho`` is :math:`\rho`, ``y_hat1`` is :math:`\hat{y}_{1}`, ``image`` is upright."""

from __future__ import annotations

import re

_GREEK = re.compile(
    "alpha|beta|gamma|delta|(var)?epsilon|zeta|eta|(var)?theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|upsilon|"
    "(var)?phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega"
)
_ACCENTS = frozenset(["hat", "bar", "tilde", "dot"])
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SPECIAL = re.compile(r"([#%&$_{}])")


def symbol(name: str, *subscripts: str) -> str:
    r"""The LaTeX of a leaf's or a function's name.

    Parameters
    ----------
    name
        What the user called it. Parts after ``_`` and trailing digits are subscripts; ``hat``, ``bar``, ``tilde`` and
        ``dot`` are accents; a name that is no Python identifier is set upright as it is.
    *subscripts
        Further subscripts, such as a client's index.
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
