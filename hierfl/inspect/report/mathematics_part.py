r"""The declared mathematics as inline SVG, set by matplotlib's mathtext: no network, no fonts of the reader's machine.

Each row of ``Problem.latex()``, an ``aligned`` display, is set by itself; the rows are put below each other with their ``&`` in
one vertical line. Where mathtext or its fonts do not know something, the caller gets None and shows the text form.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.path import Path

SIZE = 16.0  # of the letters, in pixels
LEADING = 0.7 * SIZE  # between two rows
MARGIN = 2.0
_PHANTOM = re.compile(r"\\phantom\{(\\text\{[^{}]*\})\}")
_DELIMITED = re.compile(r"\\left(\\[vV]ert|\(|\[)((?:(?!\\left|\\right|\\frac|\\underset).)*)\\right(\\[vV]ert|\)|\])")
_COMMANDS = {1: ("M", 1), 2: ("L", 1), 3: ("Q", 2), 4: ("C", 3), 79: ("Z", 0)}  # of matplotlib's path codes


class _TypesetSide(NamedTuple):
    """One side of a row, typeset: its outline (a path and the scale of its numbers), and its extent around the base line."""

    path: tuple[Path, float] | None
    width: float
    height: float
    depth: float


def mathematics_svg(latex: str, spoken: str) -> str | None:
    """An ``aligned`` display as an ``<svg>`` element; None where mathtext cannot set it faithfully.

    Parameters
    ----------
    latex
        What ``Problem.latex()`` gives.
    spoken
        The same as text, for screen readers.
    """
    inner = latex.removeprefix("\\begin{aligned}\n").removesuffix("\n\\end{aligned}")
    sides = [(left, right) for row in inner.split(" \\\\\n") for left, _, right in (row.partition("&"),)]
    try:
        with _missing_glyphs_are_errors():
            rows = [(_typeset(left), _typeset(right)) for left, right in sides]
    except (ValueError, RuntimeError):  # mathtext's parse errors; and a glyph that its fonts do not have
        return None
    return _stacked(rows, spoken)


def _stacked(rows: list[tuple[_TypesetSide, _TypesetSide]], spoken: str) -> str:
    """Put the rows below each other, left sides flush right, right sides flush left."""
    column = max(left.width for left, _ in rows)
    width = 2 * MARGIN + column + max(right.width for _, right in rows)
    drawn, y = [], MARGIN
    for left, right in rows:
        y += max(left.height, right.height)
        for piece, x in ((left, MARGIN + column - left.width), (right, MARGIN + column)):
            if piece.path is not None:
                drawn.append(f'<path transform="translate({x:.2f} {y:.2f}) scale(.01)" d="{_outline(piece.path)}"/>')
        y += max(left.depth, right.depth) + LEADING
    height = y - LEADING + MARGIN
    return (
        f'<svg class="mathematics" role="img" aria-label="{escape(spoken)}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.2f} {height:.2f}" fill="currentColor">{"".join(drawn)}</svg>'
    )


def _typeset(latex: str) -> _TypesetSide:
    from matplotlib.font_manager import FontProperties
    from matplotlib.path import Path
    from matplotlib.textpath import text_to_path

    if not latex.strip():
        return _TypesetSide(None, 0.0, 0.0, 0.0)
    font = FontProperties(size=SIZE, math_fontfamily="stix")

    def extent(inside: str) -> tuple[float, float, float]:
        return text_to_path.get_text_width_height_descent(f"${inside}$", font, ismath=True)

    def blank(phantom: re.Match[str]) -> str:
        """Write an empty space as wide as what a \\phantom hides: mathtext has none."""
        em = extent(r"\hspace{1}")[0]
        return rf"\hspace{{{extent(phantom[1])[0] / em:.4f}}}"

    visible = _PHANTOM.sub(blank, _plain_delimiters(latex.strip()))
    vertices, codes = text_to_path.get_text_path(font, f"${visible}$", ismath=True)
    scale = SIZE / text_to_path.FONT_SCALE
    width, height, depth = extent(visible)
    path = Path(vertices, codes) if len(vertices) else None
    return _TypesetSide(None if path is None else (path, scale), width, height - depth, depth)


def _plain_delimiters(latex: str) -> str:
    r"""Take away the \left and \right around what is no higher than a line: mathtext makes these delimiters too small."""
    plain = _DELIMITED.sub(r"\1\2\3", latex)
    return plain if plain == latex else _plain_delimiters(plain)


def _outline(scaled: tuple[Path, float]) -> str:
    """Write SVG path data, in hundredths of a pixel, each point from the one before; SVG's y axis points down."""
    path, scale = scaled
    parts, here, begun = [], (0, 0), (0, 0)
    for points, code in path.iter_segments(simplify=False):
        command, count = _COMMANDS[int(code)]
        ends = [(round(100 * scale * x), round(-100 * scale * y)) for x, y in points[: 2 * count].reshape(-1, 2)]
        moved = " ".join(f"{x - here[0]} {y - here[1]}" for x, y in ends)
        parts.append(command.lower() + moved.replace(" -", "-"))
        here = ends[-1] if ends else begun
        begun = here if command == "M" else begun
    return "".join(parts)


@contextmanager
def _missing_glyphs_are_errors() -> Iterator[None]:
    """Mathtext only logs a character that no font has, and draws another one for it."""

    class Refuse(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record.getMessage())

    logger, handler = logging.getLogger("matplotlib.mathtext"), Refuse(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
