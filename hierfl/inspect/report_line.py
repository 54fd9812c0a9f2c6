"""The interactive figures of a slice: f with kinks, gaps and smoothings, a slider for eta and one for the place on the line.

The sliders, the hover boxes and the legend's switches are Plotly's own. What hover shows is markup to Plotly, so names in it are
escaped like those of the page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.inspect.report_page import escaped, plotly
from hierfl.inspect.report_places import Place
from hierfl.inspect.style import COLOURS

if TYPE_CHECKING:
    from hierfl.inspect.slice import Gap, Slice, Smoothed

STEPS = 401  # places of the slider
CLIENTS = 20  # more terms than this are shown as a band
WIDEST = 56  # characters of a line in a hover box
GAP = "#e7ebef"
FONT = {"family": "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif", "size": 13}


def styled(figure: Any, **layout: Any) -> Any:
    """The figure in the report's style."""
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


def line_figure(shown: Slice, said: Sequence[Place]) -> Any:
    """f along the line with everything known about it; returns Plotly's figure."""
    go = plotly().graph_objects
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(x=shown.t, y=shown.value, name="f", mode="lines", line={"color": COLOURS[0], "width": 2.2},
                   text=[_hover(place) for place in said], hoverinfo="text", meta="curve")
    )  # fmt: skip
    _add_gaps(figure, shown.gaps, shown.line.radius)
    _add_smoothings(figure, shown)
    _add_iterates(figure, shown)
    _add_kinks(figure, shown)
    _add_marker(figure, shown)
    sliders = [_place_slider(figure, shown, said), *_smoothing_slider(figure, shown.smoothed)]
    names = ", ".join(variable.name() for variable in shown.problem.upper_variables)
    axis = escaped(textwrap.shorten(f"t, where {names} = centre + t · direction", 60, placeholder=" …"))
    figure.update_xaxes(title_text=axis, title_standoff=8, range=[shown.t[0], shown.t[-1]])
    figure.update_yaxes(title_text="f", title_standoff=4)
    return styled(figure, sliders=sliders, height=520 + 80 * len(sliders))


def terms_figure(shown: Slice) -> Any:
    """The server's term and each client's own, unweighted; of many clients the median and the band of all."""
    go = plotly().graph_objects
    figure, clients = go.Figure(), shown.clients
    if shown.problem.objective.server is not None:
        figure.add_trace(
            go.Scatter(x=shown.t, y=shown.server, name="server", mode="lines", line={"color": "#000000", "width": 2})
        )
    if clients.shape[1] <= CLIENTS:
        for i, term in enumerate(clients.T):
            dash = ("solid", "dash", "dot")[i // len(COLOURS) % 3]
            line = {"color": COLOURS[i % len(COLOURS)], "dash": dash, "width": 1.6}
            figure.add_trace(go.Scatter(x=shown.t, y=term, name=f"client {i}", mode="lines", line=line))
    else:
        good = np.isfinite(clients).all(axis=1)
        x, y = outline(
            shown.t, np.where(good, clients.min(axis=1), np.nan), np.where(good, clients.max(axis=1), np.nan)
        )
        name = f"all {clients.shape[1]} clients"
        figure.add_trace(go.Scatter(x=x, y=y, name=name, fill="toself", mode="none", fillcolor=faint(COLOURS[0])))
        middle = np.median(clients, axis=1)
        figure.add_trace(
            go.Scatter(x=shown.t, y=middle, name="median client", mode="lines", line={"color": COLOURS[0]})
        )
    figure.update_xaxes(title_text="t", title_standoff=8)
    figure.update_yaxes(title_text="term, unweighted", title_standoff=4)
    styled(figure, height=460, showlegend=True)
    # many names stand below, where they can take several lines
    return figure.update_layout(legend={"y": -0.2, "yanchor": "top"}, margin={"t": 36})


def _hover(place: Place) -> str:
    """A point's lines for a hover box."""
    lines = [f"t = {place.t}", f"f = {place.f}", f"slope = {place.slope}", *place.y.split("\n")]
    active = place.active.split("\n")
    lines += ["active: none"] if active == ["none"] else ["active:", *active]
    return _boxed(lines)


def _boxed(lines: Sequence[str]) -> str:
    return "<br>".join(escaped(part) for line in lines for part in textwrap.wrap(line, WIDEST) or [""])


# --- what is drawn ----------------------------------------------------------------------------------------------------


def _add_gaps(figure: Any, gaps: Sequence[Gap], radius: float) -> None:
    go = plotly().graph_objects
    for gap in gaps:
        wide = gap.high - gap.low > 0.5 * radius
        label = {"text": escaped(gap.reason), "textangle": 0 if wide else -90, "font": {"size": 12, "color": "#57606a"},
                 "textposition": "top center" if wide else "middle center"}  # fmt: skip
        figure.add_vrect(x0=gap.low, x1=gap.high, fillcolor=GAP, opacity=1, line_width=0, layer="below", label=label)
    for reason in dict.fromkeys(gap.reason for gap in gaps):
        marker = {"symbol": "square", "size": 11, "color": GAP}
        name = escaped(f"no value: {reason}")
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, meta="gap"))


def _add_smoothings(figure: Any, shown: Slice) -> None:
    go = plotly().graph_objects
    for place, smooth in enumerate(shown.smoothed):
        colour, visible = COLOURS[1 + (place + 1) % (len(COLOURS) - 2)], place == 0
        x, y = outline(shown.t, smooth.value - smooth.half_width, smooth.value + smooth.half_width)
        figure.add_trace(
            go.Scatter(x=x, y=y, fill="toself", mode="none", fillcolor=faint(colour), hoverinfo="skip",
                       name=f"95% band, η = {smooth.eta:g}", showlegend=False, visible=visible, meta="band")
        )  # fmt: skip
        figure.add_trace(
            go.Scatter(x=shown.t, y=smooth.value, mode="lines", line={"color": colour, "dash": "dash", "width": 2},
                       name=f"f<sup>η</sup>, η = {smooth.eta:g}", visible=visible, meta="smoothed",
                       customdata=smooth.half_width, hovertemplate="t = %{x:.5g}<br>f<sup>η</sup> = %{y:.6g} ± %{customdata:.2g}")
        )  # fmt: skip


def _add_iterates(figure: Any, shown: Slice) -> None:
    near = shown.iterates[np.abs(shown.iterates[:, 0]) <= shown.line.radius]
    if not len(near):
        return
    hover = "round %{customdata[1]:.0f}, projected on the line<br>t = %{x:.5g}, %{customdata[0]:.3g} away from the line"
    figure.add_trace(
        plotly().graph_objects.Scatter(
            x=near[:, 0], y=np.interp(near[:, 0], shown.t, shown.value), mode="markers", name="iterates", meta="iterates",
            marker={"color": "#6e7781", "size": 5}, customdata=near[:, 1:], hovertemplate=hover + "<extra></extra>")
    )  # fmt: skip


def _add_kinks(figure: Any, shown: Slice) -> None:
    go, kinks = plotly().graph_objects, shown.kinks
    if len(kinks):
        words = [
            _boxed([f"kink at t = {kink.t:.6g}, f = {kink.value:.6g}",
                    f"slope {kink.left_slope:.6g} before, {kink.right_slope:.6g} after", kink.cause])
            for kink in kinks
        ]  # fmt: skip
        figure.add_trace(
            go.Scatter(x=[kink.t for kink in kinks], y=[kink.value for kink in kinks], mode="markers", hoverinfo="text",
                       name=f"{len(kinks)} kink{'s' if len(kinks) > 1 else ''}", text=words, meta="kinks",
                       marker={"color": COLOURS[1], "size": 9})
        )  # fmt: skip
    for number, jump in enumerate(kinks.jumps):
        words = [_boxed([f"f jumps at t = {jump.t:.6g} from {jump.left:.6g} to {jump.right:.6g}", jump.cause])] * 2
        figure.add_trace(
            go.Scatter(x=[jump.t, jump.t], y=[jump.left, jump.right], text=words, hoverinfo="text", name="jump",
                       mode="lines+markers", line={"color": COLOURS[1], "dash": "dot"}, showlegend=number == 0, meta="jump")
        )  # fmt: skip


def _add_marker(figure: Any, shown: Slice) -> None:
    """The place that the slider points at: a line across the figure, and a ring on the curve."""
    go, start = plotly().graph_objects, len(shown.t) // 2
    low, high = _extent(shown)
    t = float(shown.t[start])
    grey = {"color": "#24292f", "width": 1, "dash": "dot"}
    figure.add_trace(
        go.Scatter(x=[t, t], y=[low, high], mode="lines", line=grey, hoverinfo="skip", showlegend=False, meta="here")
    )
    ring = {"color": "rgba(255,255,255,0.6)", "size": 13, "line": {"color": "#24292f", "width": 2}}
    figure.add_trace(
        go.Scatter(x=[t], y=[_finite(shown.value[start])], mode="markers", marker=ring, hoverinfo="skip",
                   showlegend=False, meta="place")
    )  # fmt: skip


# --- the sliders ------------------------------------------------------------------------------------------------------


def slider_points(shown: Slice) -> np.ndarray:
    """The points of the slice at which the slider stops, both ends and the middle among them."""
    count = len(shown.t)
    return np.unique(np.linspace(0, count - 1, min(count, STEPS)).round().astype(int))


def _place_slider(figure: Any, shown: Slice, said: Sequence[Place]) -> dict[str, Any]:
    ring = len(figure.data) - 1
    stops = slider_points(shown)
    steps = [
        {"method": "restyle", "label": f"{shown.t[k]:.3g}",
         "args": [{"x": [[float(shown.t[k])] * 2, [float(shown.t[k])]], "y": [list(_extent(shown)), [_finite(shown.value[k])]]},
                  [ring - 1, ring]]}
        for k in stops
    ]  # fmt: skip
    return _slider("place", "place on the line: t = ", steps, int(np.searchsorted(stops, len(shown.t) // 2)), 56)


def _smoothing_slider(figure: Any, smoothed: Sequence[Smoothed]) -> list[dict[str, Any]]:
    """One stop without f^eta, and one for each eta."""
    if not smoothed:
        return []
    traces = [place for place, trace in enumerate(figure.data) if trace.meta in ("band", "smoothed")]
    labels = ["not shown", *(f"{smooth.eta:g}" for smooth in smoothed)]
    steps = [
        {"method": "restyle", "label": label,
         "args": [{"visible": [1 + place // 2 == number for place in range(len(traces))]}, traces]}
        for number, label in enumerate(labels)
    ]  # fmt: skip
    return [_slider("smoothing", "smoothing: η = ", steps, 1, 148)]


def _slider(name: str, prefix: str, steps: list[dict[str, Any]], active: int, below: int) -> dict[str, Any]:
    many = len(steps) > 12
    return {
        "name": name,
        "steps": steps,
        "active": active,
        "currentvalue": {"prefix": prefix, "xanchor": "left", "font": {"size": 13, "color": "#24292f"}},
        "pad": {"t": below, "b": 0, "l": 10, "r": 10},
        "len": 1.0,
        "x": 0,
        "minorticklen": 0 if many else 4,
        "ticklen": 0 if many else 4,
        "font": {"size": 11, "color": "rgba(0,0,0,0)" if many else "#24292f"},
        "bgcolor": "#d8dee4",
        "bordercolor": "#8c959f",
        "transition": {"duration": 0},
    }


# --- numbers ----------------------------------------------------------------------------------------------------------


def outline(t: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[list[float | None], list[float | None]]:
    """The polygon between two curves, one for each stretch without gaps."""
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


def _extent(shown: Slice) -> tuple[float | None, float | None]:
    finite = shown.value[np.isfinite(shown.value)]
    return (float(finite.min()), float(finite.max())) if finite.size else (None, None)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
