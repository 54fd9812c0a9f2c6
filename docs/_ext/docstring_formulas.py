"""Formulas of docstrings, which are read in terminals and so written in plain characters, ``f^eta`` or ``y_i(x)``, as mathematics on the site's pages."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

GREEK = r"(?:alpha|beta|gamma|delta|epsilon|eta|kappa|lambda|lam|mu|rho|sigma|tau)"
PARENS = r"\((?:[^()`]|\((?:[^()`]|\([^()`]*\))*\))*\)"
EXPONENT = rf"\^(?:{GREEK}|\*|-?\w+|{PARENS})"
INDEX = r"_(?:\{[^}]*\}|[A-Za-z0-9*]{1,2}\b)"
LETTER = r"(?:[A-Za-z](?=[_^])|[b-hj-zA-HJ-Z])"  # no word
FUNCTION = rf"(?:sqrt|ceil|ln|max|min){PARENS}"
BARS = rf"(?:E ?)?(?:\|\|[^|`]+\|\||\|[^|`]+\|)(?:{EXPONENT})?"
NUMBER = rf"\d+(?:[.,]\d+)*(?:e-?\d+)?(?:{EXPONENT})?"
NAME = rf"(?:inf |E )?(?:{GREEK}|sum(?=_)|grad|{LETTER})(?:{INDEX})?(?:{EXPONENT})?(?:{PARENS})?"
TERM = rf"(?:{FUNCTION}|{BARS}|{NUMBER}|{NAME}|{PARENS}(?:{EXPONENT})?)(?![\w'])"
JOINT = r"(?: ?(?:<=|>=|[-+*/=<>]) ?(?=[^ ])| (?=[A-Za-z(|]))"
FORMULA = re.compile(rf"(?<![\w.'\"/\\-])-?{TERM}(?:{JOINT}{TERM})*")
TELLING = re.compile(rf"\b{GREEK}(?![a-z])|(?<![\w.])[A-Za-z](?:{INDEX}|\^)|[)|\d]\^|\|\||sqrt\(|\b1/[A-Za-z]\b|grad ")  # what no sentence has
WORDS = re.compile(rf"\b(?!grad|inf|{GREEK})[a-z]{{2,}},? (?!{GREEK})[a-z]{{2,}}\b(?!\()|\b(?:or|and|of|for|in)\b")
KEPT = re.compile(r"(``.*?``|:[\w:]+:`.*?`|`[^`]*`_*|^ *:\w+ ?[^:]*:|https?://\S+|\[[\w ]+\]_?)")  # code, references, and the names of fields
LATEX = (
    (rf"(?<![\w\\])(?!(?:{GREEK}|grad|sum|ln|max|min|inf|sqrt|ceil)(?![a-z]))([A-Za-z]{{2,}}(?:_[a-z]+)*)(?!\w)", lambda m: rf"\mathrm{{{m[1]}}}".replace("_", r"\_")),
    (r"\b1e(-?\d+)", r"10^{\1}"),
    (rf"(?<![\w\\{{])({GREEK})(?![a-z])", r"\\\1 "),
    (r"\\lam ", r"\\lambda "),
    (r"\\epsilon", r"\\varepsilon"),
    (r"\bgrad(?:_(\w+))?\s", lambda m: rf"\nabla_{{{m[1]}}} " if m[1] else r"\nabla "),
    (r"(?<!\\)\b(sum|ln|max|min|inf)(?![a-z])", r"\\\1"),
    (rf"sqrt({PARENS})", lambda m: rf"\sqrt{{{m[1][1:-1]}}}"),
    (rf"ceil({PARENS})", lambda m: rf"\lceil {m[1][1:-1]} \rceil"),
    (rf"\^({PARENS})", lambda m: f"^{{{m[1][1:-1]}}}"),
    (r"\^(-(?:\\mathrm\{\w+\}|\w+)|\w{2,})", r"^{\1}"),
    (r"(?<!\\)_(\w{2,})", r"_{\1}"),
    (r"<=", r"\\leq "),
    (r">=", r"\\geq "),
    (r" \* ", r" \\cdot "),
    (r"\|\|", r"\\|"),
)


def in_latex(formula: str) -> str:
    """A formula in plain characters, as LaTeX."""
    for plain, latex in LATEX:
        formula = re.sub(plain, latex, formula)  # type: ignore[arg-type]
    return formula.strip()


def typeset(text: str) -> str:
    """A piece of a docstring without code, its formulas as mathematics; other bars are no substitutions."""
    written, end = "", 0
    while (found := FORMULA.search(text, end)) is not None:
        formula = found[0]
        said = TELLING.search(formula) is not None
        if said and WORDS.search(formula):  # a remark in parentheses: formulas within it alone
            formula, said = formula[0], False
        written += text[end : found.start()].replace("|", r"\|") + (f":math:`{in_latex(formula)}`" if said else formula.replace("|", r"\|"))
        end = found.start() + len(formula)
    return written + text[end:].replace("|", r"\|")


def formulas(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Typeset all lines that are no example, and link the site's own pages."""
    example = False
    for place, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example and not line.lstrip().startswith(".. "):
            line = re.sub(r"\bdocs/(\w+)\.md\b", r":doc:`/\1`", line)
            lines[place] = "".join(part if k % 2 else typeset(part) for k, part in enumerate(KEPT.split(line)))


def setup(app: Sphinx) -> dict[str, Any]:
    """Typeset after the sections of docstrings were read."""
    app.connect("autodoc-process-docstring", formulas, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
