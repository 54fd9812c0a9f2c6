"""Cards: how results are shown where nobody called ``print``: a dozen lines in a shell, a small table in a notebook.

A card is a title and labelled rows. Text is wrapped to ``WIDTH`` and cut to ``LINES``; the notebook's table has, folded below,
what the card leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from html import escape
from textwrap import wrap
from typing import Any

import numpy as np

from hierfl.language.printing.text import domain_text, point_text
from hierfl.near_names import suggests_names

WIDTH, LINES = 100, 12
LINES_OF_A_ROW = 2
SHORT = 8  # scalars that are written out
FOLDED_LINES = 200
ROUNDING = 1e-15  # below which digits of a slope or a residual say nothing
COUNTED = 1e9  # from which a count's digits say nothing


def size_text(value: float, form: str = ".2g") -> str:
    """A length, at least 0: rounding as such, whatever its digits."""
    return "0" if value == 0 else f"below {ROUNDING:g}" if value < ROUNDING else f"{value:{form}}"


def count_text(value: float) -> str:
    """A count: all of its digits where somebody could count so far, ``1.5e16`` beyond."""
    return f"{value:,.0f}" if value < COUNTED else f"{value:.1e}".replace("e+", "e")


@dataclass(frozen=True)
class Card:
    """A title, rows of (label, text), and ``(summary, text)`` that a notebook keeps folded."""

    title: str
    rows: Sequence[tuple[str, str]]
    folded: Sequence[tuple[str, str]] = ()

    def _labelled(self) -> list[tuple[str, str]]:
        """The rows, a label that comes again once."""
        before = ["", *(label for label, _ in self.rows)]
        return [("" if label == last else label, text) for last, (label, text) in zip(before, self.rows)]

    def text(self) -> str:
        """The card in at most ``LINES`` lines of at most ``WIDTH`` characters."""
        labelled = [(_clipped(label, WIDTH // 2), text) for label, text in self._labelled()]
        margin = max((len(label) for label, _ in labelled), default=0) + 4
        lines = [_clipped(self.title, WIDTH)]
        for label, text in labelled:
            parts = wrap(text, WIDTH - margin, max_lines=LINES_OF_A_ROW, placeholder=" ...") or [""]
            lines += [f"  {label:<{margin - 4}}  {parts[0]}", *(" " * margin + part for part in parts[1:])]
        if len(lines) > LINES:
            lines = [*lines[: LINES - 1], f"  ... {len(lines) - LINES + 1} more lines"]
        return "\n".join(line.rstrip() for line in lines)

    def html(self) -> str:
        """The card as a table, what is folded below it."""
        left = 'style="text-align:left"'
        cells = ((escape(label), escape(text)) for label, text in self._labelled())
        rows = "".join(f"<tr><th {left}>{label}</th><td {left}>{text}</td></tr>" for label, text in cells)
        below = ((escape(summary), escape(_cut(text))) for summary, text in self.folded if text)
        folded = "".join(f"<details><summary>{head}</summary><pre>{text}</pre></details>" for head, text in below)
        return f"<div><b>{escape(self.title)}</b><table>{rows}</table>{folded}</div>"


class Shown:
    """Mixin of what is shown as a card; a dataclass with it has ``repr=False``. Calls and attributes that do not fit are answered with what to write."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        suggests_names(cls)

    def _card(self) -> Card:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def brief(value: Any) -> str:
    """A point in a few words: numbers where they are few, else the shape and the range; mappings by variable."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        named = ((key if isinstance(key, str) else key.name(), part) for key, part in value.items())
        return ", ".join(f"{name} = {brief(part)}" for name, part in named)
    if isinstance(value, list):
        sizes = sum(np.size(part) for part in value)
        return f"{len(value)} arrays of {sizes:,} scalars together"
    array = np.asarray(value, dtype=float) + 0.0  # no -0
    if array.size <= SHORT:
        return point_text(array)
    low, high = f"{np.min(array):.4g}", f"{np.max(array):.4g}"
    return f"an array of {domain_text(array.shape)}, {f'all {low}' if low == high else f'entries from {low} to {high}'}"


def call_text(settings: Any) -> str:
    """Name a solver by what differs from the defaults, such as ``FedRZO(smoothing=0.2)``; those within it alike."""
    if not is_dataclass(settings) or isinstance(settings, type):
        return str(settings)
    given = (f"{f.name}={setting_text(getattr(settings, f.name))}" for f in changed_fields(settings) if f.repr)
    return f"{type(settings).__name__}({', '.join(given)})"


def changed_fields(settings: Any) -> list[Field[Any]]:
    """The settings that differ from their defaults, or have none."""
    changed = []
    for field in fields(settings):
        default: Any = field.default if field.default_factory is MISSING else field.default_factory()
        if not np.array_equal(getattr(settings, field.name), default):
            changed.append(field)
    return changed


def setting_text(value: Any) -> str:
    """A setting in a few words: solvers as calls, large arrays by their shape."""
    if is_dataclass(value):
        return call_text(value)
    if np.ndim(value) and np.size(value) > SHORT and not isinstance(value, str):
        array = np.asarray(value)
        return f"<{' x '.join(map(str, array.shape))} array of {array.dtype}>"
    return repr(value)


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 4] + " ..."


def _cut(text: str) -> str:
    lines = text.splitlines()
    more = len(lines) - FOLDED_LINES
    return text if more <= 0 else "\n".join([*lines[:FOLDED_LINES], f"... {more:,} more lines"])
