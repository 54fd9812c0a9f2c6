"""The interactive figure of a slice: f with kinks, gaps and smoothings, a slider for eta and one for the place on the line.

The sliders, the hover boxes and the legend's switches are Plotly's own. What hover shows is markup to Plotly, so names in it are
escaped like those of the page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.inspect.pictures.curves import Curve, curve, line_label
from hierfl.inspect.pictures.style import COLOURS
from hierfl.inspect.report.page import escaped, plotly
from hierfl.inspect.report.page_style import faint, outline, styled
from hierfl.inspect.report.places import Place

if TYPE_CHECKING:
    from hierfl.inspect.pictures.slice import Gap, Slice, Smoothed

STEPS = 401  # places of the slider
WIDEST = 56  # characters of a line in a hover box
NARROWEST, LETTER = 340, 7  # pixels of the figure in a narrow window, and of a letter
# of two markers at one place Plotly's hover prefers the smaller one: kinks are small with a thick rim
KINK = {"color": COLOURS[1], "size": 6, "line": {"color": COLOURS[1], "width": 3}}
ITERATE = {"color": "#6e7781", "size": 7, "symbol": "circle-open"}
GAPS = ("#e7ebef", "#d3dae1", "#bec8d2", "#a9b6c3")  # of the reasons for which f has no value


def line_figure(shown: Slice, said: Sequence[Place]) -> Any:
    """f along the line with everything known about it; returns Plotly's figure."""
    go = plotly().graph_objects
    figure, drawn, hovers = go.Figure(), curve(shown), _hovers(shown, said)
    _add_smoothings(figure, shown)
    figure.add_trace(
        go.Scatter(x=drawn.t, y=drawn.value, name="f", mode="lines", line={"color": COLOURS[0], "width": 2.2}, legendrank=1,
                   text=[hovers[k] if k >= 0 else "" for k in drawn.point], hoverinfo="text", meta="curve")
    )  # fmt: skip
    _add_gaps(figure, shown.gaps, shown.line.radius)
    _add_iterates(figure, shown, drawn)
    _add_kinks(figure, shown)
    _add_marker(figure, shown)
    sliders = [_place_slider(figure, shown, said), *_smoothing_slider(figure, shown.smoothed)]
    axis = escaped(textwrap.shorten(line_label(shown), 60, placeholder=" …"))
    figure.update_xaxes(title_text=axis, title_standoff=8, range=[shown.t[0], shown.t[-1]])
    figure.update_yaxes(title_text="f", title_standoff=4)
    return styled(figure, sliders=sliders, height=520 + 80 * len(sliders))


def _hovers(shown: Slice, said: Sequence[Place]) -> list[str]:
    """What the hover box tells at each point of f, with f^eta there: where curves meet only one of them is pointed at."""
    found = []
    for k, place in enumerate(said):
        smoothed = [f"f^η = {s.value[k]:.6g} ± {s.half_width[k]:.2g}, η = {s.eta:g}" for s in shown.smoothed]
        active = ["active: none"] if place.active == "none" else ["active:", *place.active.split("\n")]
        said_of_f = [f"t = {place.t}", f"f = {place.f}", f"slope = {place.slope}"]
        found.append(_boxed([*said_of_f, *smoothed, *place.y.split("\n"), *active]))
    return found


def _boxed(lines: Sequence[str]) -> str:
    return "<br>".join(escaped(part) for line in lines for part in textwrap.wrap(line, WIDEST) or [""])


# --- what is drawn ----------------------------------------------------------------------------------------------------


def _add_gaps(figure: Any, gaps: Sequence[Gap], radius: float) -> None:
    """Grey bands, named in the legend, and in place where the words fit in a window for telephones as well."""
    go = plotly().graph_objects
    reasons = list(dict.fromkeys(gap.reason for gap in gaps))
    greys = {reason: GAPS[number % len(GAPS)] for number, reason in enumerate(reasons)}
    for gap in gaps:
        label = {"text": escaped(gap.reason), "font": {"size": 12, "color": "#57606a"}, "textposition": "top center"}
        room = (gap.high - gap.low) / (2 * radius) * NARROWEST
        fits = {"label": label} if room > LETTER * (len(gap.reason) + 2) else {}
        grey = greys[gap.reason]
        figure.add_vrect(x0=gap.low, x1=gap.high, fillcolor=grey, opacity=1, line_width=0, layer="below", **fits)
    for reason, grey in greys.items():
        marker = {"symbol": "square", "size": 11, "color": grey}
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
                       hoverinfo="skip")
        )  # fmt: skip


def _add_iterates(figure: Any, shown: Slice, drawn: Curve) -> None:
    near = shown.iterates[np.abs(shown.iterates[:, 0]) <= shown.line.radius]
    if not len(near):
        return
    hover = "round %{customdata[1]:.0f}, projected on the line<br>t = %{x:.5g}, %{customdata[0]:.3g} away from the line"
    figure.add_trace(
        plotly().graph_objects.Scatter(
            x=near[:, 0], y=np.interp(near[:, 0], drawn.t, drawn.value), mode="markers", name="iterates", meta="iterates",
            marker=ITERATE, customdata=near[:, 1:], hovertemplate=hover + "<extra></extra>")
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
                       marker=KINK)
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


def _extent(shown: Slice) -> tuple[float | None, float | None]:
    finite = shown.value[np.isfinite(shown.value)]
    return (float(finite.min()), float(finite.max())) if finite.size else (None, None)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
