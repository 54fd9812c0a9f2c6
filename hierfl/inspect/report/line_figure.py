"""The interactive figure of a slice: f with kinks, gaps and smoothings, and the marker that the page's slider moves.

The hover boxes and the legend's switches are Plotly's own. What hover shows is markup to Plotly, so names in it are
escaped like those of the page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hierfl.house_style import COLOURS
from hierfl.inspect.pictures.curves import BrokenCurve, curve, line_label
from hierfl.inspect.report.line_sliders import extent, finite
from hierfl.inspect.report.page import escaped, plotly
from hierfl.inspect.report.page_style import faint, outline, styled
from hierfl.inspect.report.point_notes import PointNotes

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from hierfl.inspect.pictures.drawable import Gap, Tie
    from hierfl.inspect.pictures.slice import Slice

WIDEST = 56  # characters of a line in a hover box
NARROWEST, LETTER = 340, 7  # pixels of the figure in a narrow window, and of a letter
# of two markers at one place Plotly's hover prefers the smaller one: kinks are small with a thick rim
KINK = {"color": COLOURS[1], "size": 6, "line": {"color": COLOURS[1], "width": 3}}
ITERATE = {"color": "#6e7781", "size": 7, "symbol": "circle-open"}
TIED = "#f5dcc3"
GAPS = ("#e7ebef", "#d3dae1", "#bec8d2", "#a9b6c3")  # of the reasons for which f has no value


def line_figure(shown: Slice, said: Sequence[PointNotes]) -> Figure:
    """Draw f along the line with everything known about it; returns Plotly's figure."""
    go = plotly().graph_objects
    figure, drawn, hovers = go.Figure(), curve(shown), _hovers(shown, said)
    _add_smoothings(figure, shown)
    figure.add_trace(
        go.Scatter(x=drawn.t, y=drawn.value, name="f", mode="lines", line={"color": COLOURS[0], "width": 2.2}, legendrank=1,
                   text=[hovers[k] if k >= 0 else "" for k in drawn.point], hoverinfo="text", meta="curve")
    )  # fmt: skip
    _add_gaps(figure, shown.gaps, shown.line.radius)
    _add_ties(figure, shown.ties)
    _add_iterates(figure, shown, drawn)
    _add_kinks(figure, shown)
    _add_marker(figure, shown)
    axis = escaped(textwrap.shorten(line_label(shown), 60, placeholder=" …"))
    figure.update_xaxes(title_text=axis, title_standoff=8, range=[shown.t[0], shown.t[-1]])
    figure.update_yaxes(title_text="f", title_standoff=4)
    return styled(figure, height=520)


def _hovers(shown: Slice, said: Sequence[PointNotes]) -> list[str]:
    """Write what the hover box tells at each point of f, with f^eta there: where curves meet only one of them is pointed at."""
    hovers = []
    for k, notes in enumerate(said):
        smoothed = [f"f^η = {s.value[k]:.6g} ± {s.half_width[k]:.2g}, η = {s.eta:g}" for s in shown.smoothed]
        active = ["active: none"] if notes.active == "none" else ["active:", *notes.active.split("\n")]
        said_of_f = [f"t = {notes.t}", f"f = {notes.f}", f"slope = {notes.slope}"]
        hovers.append(_boxed([*said_of_f, *smoothed, *notes.y.split("\n"), *active]))
    return hovers


def _boxed(lines: Sequence[str]) -> str:
    return "<br>".join(escaped(part) for line in lines for part in textwrap.wrap(line, WIDEST) or [""])


def _add_gaps(figure: Figure, gaps: Sequence[Gap], radius: float) -> None:
    """Draw grey bands, named in the legend, and in place where the words fit in a window for telephones as well."""
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


def _add_ties(figure: Figure, ties: Sequence[Tie]) -> None:
    """Shade where f is that of one of several lower solutions."""
    for tie in ties:
        line = {"color": TIED, "width": 1 if tie.high == tie.low else 0}
        figure.add_vrect(x0=tie.low, x1=tie.high, fillcolor=TIED, opacity=0.5, line=line, layer="below")
    if ties:
        marker = {"symbol": "square", "size": 11, "color": TIED}
        trace = plotly().graph_objects.Scatter(
            x=[None], y=[None], mode="markers", name="several lower solutions", marker=marker, meta="tie"
        )
        figure.add_trace(trace)


def _add_smoothings(figure: Figure, shown: Slice) -> None:
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


def _add_iterates(figure: Figure, shown: Slice, drawn: BrokenCurve) -> None:
    near = shown.iterates[np.abs(shown.iterates[:, 0]) <= shown.line.radius]
    if not len(near):
        return
    hover = "round %{customdata[1]:.0f}, projected on the line<br>t = %{x:.5g}, %{customdata[0]:.3g} away from the line"
    figure.add_trace(
        plotly().graph_objects.Scatter(
            x=near[:, 0], y=np.interp(near[:, 0], drawn.t, drawn.value), mode="markers", name="iterates", meta="iterates",
            marker=ITERATE, customdata=near[:, 1:], hovertemplate=hover + "<extra></extra>")
    )  # fmt: skip


def _add_kinks(figure: Figure, shown: Slice) -> None:
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


def _add_marker(figure: Figure, shown: Slice) -> None:
    """Mark the place that the slider points at: a line across the figure, and a ring on the curve."""
    go, start = plotly().graph_objects, len(shown.t) // 2
    low, high = extent(shown)
    t = float(shown.t[start])
    grey = {"color": "#24292f", "width": 1, "dash": "dot"}
    figure.add_trace(
        go.Scatter(x=[t, t], y=[low, high], mode="lines", line=grey, hoverinfo="skip", showlegend=False, meta="here")
    )
    ring = {"color": "rgba(255,255,255,0.6)", "size": 13, "line": {"color": "#24292f", "width": 2}}
    figure.add_trace(
        go.Scatter(x=[t], y=[finite(shown.value[start])], mode="markers", marker=ring, hoverinfo="skip",
                   showlegend=False, meta="place")
    )  # fmt: skip
