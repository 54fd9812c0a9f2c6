"""Formulas as MathML, made at the build: pages need no script and no network, and read aloud."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

CONVERTER = LatexToMathML(macros={"argmin": r"\operatorname*{arg\,min}"})


def _mathml(latex: str, display: bool) -> str:
    try:
        return CONVERTER.convert_with_local_state(latex, displaystyle=display)
    except LatexError as error:
        raise ExtensionError(f"no MathML for {latex!r}: {error}") from error


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_mathml(node.astext(), False))
    raise nodes.SkipNode


def _display(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="mathml">{_mathml(node.astext(), True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer that ``html_math_renderer`` names."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
