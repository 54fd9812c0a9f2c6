"""What the figures of a report have in common: axes, fonts, and bands that stop at gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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


def outline(t: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[list[float | None], list[float | None]]:
    """Trace the polygon between two curves, one for each stretch without gaps."""
    x: list[float | None] = []
    y: list[float | None] = []
    good = np.isfinite(low) & np.isfinite(high)
    stretches = np.split(np.flatnonzero(good), np.flatnonzero(np.diff(np.flatnonzero(good)) > 1) + 1)
    for stretch in stretches:
        x += [*t[stretch].tolist(), *t[stretch][::-1].tolist(), None]
        y += [*high[stretch].tolist(), *low[stretch][::-1].tolist(), None]
    return x, y


def faint(colour: str) -> str:
    """The colour of a band around a line of that colour."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"
