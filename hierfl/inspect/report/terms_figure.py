"""The figure of the parties' own terms along a slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierfl.house_style import COLOURS
from hierfl.inspect.pictures.curves import broken, line_label
from hierfl.inspect.report.page import escaped, plotly
from hierfl.inspect.report.page_style import faint, outline, styled

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from hierfl.inspect.pictures.slice import Slice

SERVER = "#000000"
PALETTE = tuple(colour for colour in COLOURS if colour != SERVER)
CLIENTS = 20  # more terms than this are shown as a band


def terms_figure(shown: Slice) -> Figure:
    """Draw the server's term and each client's own, unweighted; of many clients the median and the band of all."""
    go = plotly().graph_objects
    figure, clients = go.Figure(), shown.clients
    if shown.compiled.declaration.objective.server is not None:
        t, value = broken(shown, shown.server)
        figure.add_trace(go.Scatter(x=t, y=value, name="server", mode="lines", line={"color": SERVER, "width": 2}))
    if clients.shape[1] <= CLIENTS:
        for i, term in enumerate(clients.T):
            dash = ("solid", "dash", "dot")[i // len(PALETTE) % 3]
            line = {"color": PALETTE[i % len(PALETTE)], "dash": dash, "width": 1.6}
            t, value = broken(shown, term)
            name = shown.compiled.declaration.client_called(i)
            figure.add_trace(go.Scatter(x=t, y=value, name=name, mode="lines", line=line))
    else:
        good = np.isfinite(clients).all(axis=1)
        t, least = broken(shown, np.where(good, clients.min(axis=1), np.nan))
        x, y = outline(t, least, broken(shown, np.where(good, clients.max(axis=1), np.nan))[1])
        name = f"all {clients.shape[1]} clients"
        figure.add_trace(go.Scatter(x=x, y=y, name=name, fill="toself", mode="none", fillcolor=faint(COLOURS[0])))
        t, middle = broken(shown, np.median(clients, axis=1))
        figure.add_trace(go.Scatter(x=t, y=middle, name="median client", mode="lines", line={"color": COLOURS[0]}))
    figure.update_xaxes(title_text=escaped(line_label(shown)), title_standoff=8)
    figure.update_yaxes(title_text="term, unweighted", title_standoff=4)
    styled(figure, height=460, showlegend=True)
    # many names stand below, where they can take several lines
    return figure.update_layout(legend={"y": -0.2, "yanchor": "top"}, margin={"t": 36})
