"""The page of a report: escaped text, tables, Plotly's figures, and the template that holds them.

Whatever a user named is text: it goes through :func:`escaped`, and nothing but this module's own tags is :class:`Html`.
Long texts are packed, to a third of their size: gzip in base64, which a browser unpacks by itself, without a network.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.errors import needing

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


FONT = {"family": "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif", "size": 13}


def styled(figure: Figure, **layout: Any) -> Figure:
    """Give a figure the report's style; returns it."""
    axis = {"gridcolor": "#e6e9ec", "zeroline": False, "linecolor": "#8c959f", "automargin": True}
    figure.update_layout(
        template="none",
        font=FONT,
        margin={"l": 12, "r": 12, "t": 60, "b": 12},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        hovermode="closest",
        hoverlabel={"align": "left", "font": {"size": 12}},
        **layout,
    )
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    figure.update_traces(selector={"type": "scatter", "mode": "lines"}, line_simplify=False)
    return figure


def faint(colour: str) -> str:
    """The colour of a band around a line of that colour."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"


def add_band(figure: Figure, t: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, **look: Any) -> None:
    """Draw the band around a line of that colour: the polygon between two curves, one for each stretch without gaps."""
    x: list[float | None] = []
    y: list[float | None] = []
    good = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
    for stretch in np.split(good, np.flatnonzero(np.diff(good) > 1) + 1):
        x += [*t[stretch].tolist(), *t[stretch][::-1].tolist(), None]
        y += [*high[stretch].tolist(), *low[stretch][::-1].tolist(), None]
    figure.add_scatter(x=x, y=y, fill="toself", mode="none", fillcolor=faint(colour), **look)


PLOT_SETTINGS = {"responsive": True, "displaylogo": False, "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]]}

CARD_COLUMNS = 4


class Html(str):
    """Markup, already escaped."""


class Section(NamedTuple):
    """A part of the page under its own heading; ``name`` is its anchor."""

    name: str
    title: str
    body: Html


def plotly() -> Any:
    """Import the package ``plotly``; raises ``MissingPackageError``, saying what to install."""
    with needing('a report needs plotly: pip install "hierfl[report]".'):
        import plotly.graph_objects
        import plotly.offline
    return plotly


def escaped(value: Any) -> Html:
    """Escape text, so that it can stand in markup; what is markup already stays."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def joined(parts: Iterable[Any], between: str = "\n") -> Html:
    """Put several pieces together, in order."""
    return Html(between.join(escaped(part) for part in parts))


def element(tag: str, content: Any, **attributes: str) -> Html:
    """Make ``<tag ...>content</tag>``; write ``class_`` for the attribute ``class``."""
    written = "".join(f' {name.rstrip("_")}="{escape(value)}"' for name, value in attributes.items())
    return Html(f"<{tag}{written}>{escaped(content)}</{tag}>")


def folded(summary: Any, body: Any, printed: bool = True) -> Html:
    """Fold a body below its summary; what is ``printed`` is open on paper."""
    kind = {"class_": "printed"} if printed else {}
    return element("details", joined([element("summary", summary), body]), **kind)


def paragraph(text: Any) -> Html:
    """Make a paragraph."""
    return element("p", text)


def notice(text: Any) -> Html:
    """Make a paragraph that must not be overlooked."""
    return element("p", text, class_="notice")


def preformatted(text: Any, wrapped: bool = False) -> Html:
    """Keep the spaces and line breaks of a text; ``wrapped`` breaks long lines as well."""
    return element("pre", text, class_="wrapped") if wrapped else element("pre", text)


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]], name: str) -> Html:
    """Make a table in a box that scrolls by itself; on a narrow screen each row of many columns becomes a card."""
    head = element("tr", joined((element("th", cell, scope="col") for cell in header), ""))
    body = joined(element("tr", joined(map(_cell, row, header), "")) for row in rows)
    kind = {"class_": "cards"} if len(header) >= CARD_COLUMNS else {}
    whole = element("table", joined([element("thead", head), element("tbody", body)]), id=name, **kind)
    return element("div", whole, class_="scroll")


def facts(pairs: Iterable[tuple[Any, Any]], name: str) -> Html:
    """Make a table of two columns: what, and its value."""
    rows = (element("tr", joined([element("th", what, scope="row"), _cell(value)], "")) for what, value in pairs)
    return element("div", element("table", element("tbody", joined(rows)), id=name, class_="facts"), class_="scroll")


def _cell(value: Any, label: str = "") -> Html:
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    named = {"data-label": label} if label else {}
    return element("td", number(value), class_="number", **named) if is_number else element("td", value, **named)


def number(value: Any) -> str:
    """Write a number to be read: ``1,234``, ``0.0123457``, ``1.2e-13``, ``unknown`` for NaN, ``infinite``."""
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    if np.isnan(value):
        return "unknown"
    return f"{float(value):.7g}" if np.isfinite(value) else ("−" if value < 0 else "") + "infinite"


def drawn(figure: Figure, name: str, label: str) -> Html:
    """Make a place with that id for a figure of Plotly, and its numbers, packed; the page's script draws it there.

    ``label`` says what it shows, to those who do not see it.
    """
    named = {"role": "figure", "aria-label": label}
    place = element("div", "", id=name, class_="plot", **named, style=f"height: {figure.layout.height or 420}px")
    written = json.dumps(json.loads(figure.to_json()) | {"config": PLOT_SETTINGS}, separators=(",", ":"))
    return joined([place, _packed_script(written, figure=name)])


def _packed_script(text: str, **data_names: str) -> Html:
    """An element that holds packed text, which the page's script finds by its ``data-`` attributes."""
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    named = "".join(f' data-{name}="{escape(value)}"' for name, value in data_names.items())
    return Html(f'<script type="text/plain"{named}>{packed}</script>')


@cache
def _plotly_script() -> Html:
    """The library itself, once in a page; packed once in a process."""
    return _packed_script(plotly().offline.get_plotlyjs(), library="plotly")


def data(values: Any, name: str) -> Html:
    """Hand values to the page's script, as packed JSON."""
    return _packed_script(json.dumps(values), values=name)


def page(title: str, summary: Html, sections: Sequence[Section]) -> str:
    """Fill the template: the whole file."""
    template = resources.files("hierfl.inspect.report").joinpath("page.html").read_text(encoding="utf-8")
    contents = joined(element("li", element("a", s.title, href=f"#{s.name}")) for s in sections)
    body = joined(element("section", joined([element("h2", s.title), s.body]), id=s.name) for s in sections)
    parts = {"title": escaped(title), "summary": summary, "contents": contents, "sections": body, "plotly": _plotly_script()}
    return Template(template).substitute(parts)
