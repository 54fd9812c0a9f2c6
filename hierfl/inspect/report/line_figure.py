"""The interactive figures of a slice: f with kinks, gaps and smoothings, and the marker that the page's sliders move.

The hover boxes and the legend's switches are Plotly's own. What hover shows, x, f, y(x), slope and active constraints of each point in
words, is markup to Plotly, so names in it are escaped like those of the page. The sliders, one for the place on the line and one for eta,
are the browser's own: arrows, Home and End move them, and screen readers say where they stand. A second figure has the parties' own terms
along the slice.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.house_style import COLOURS
from hierfl.inspect.implicit.points import KEPT_LIMIT, REASONS, Points, owner_called
from hierfl.inspect.pictures.slice_plot import BrokenCurve, broken, curve, entries, line_label
from hierfl.inspect.report.convergence_part import faint, outline, styled
from hierfl.inspect.report.page import Html, data, element, escaped, joined, plotly, void
from hierfl.jaxtools.precision import double_precision

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from hierfl.inspect.pictures.slice import Gap, Slice, Tie

SCALARS = 4  # entries of x and of y that are written out
CONSTRAINTS = 4


class PointNotes(NamedTuple):
    """What is said about one point; ``f`` says why where there is no value."""

    t: str
    f: str
    slope: str
    x: str
    y: str
    active: str


@double_precision
def notes_along(shown: Slice, exact_slopes: bool) -> list[PointNotes]:
    """Describe the points of a slice, in order; slopes are exact where there are such and they are wanted, else by differences."""
    compiled, reason = shown.compiled, shown.sampled.reason
    points, x, slopes = Points(compiled, shown.tolerance), shown.line.at(shown.t), _slopes(shown, exact_slopes)
    labels, kept = _answer_labels(shown), points.switches.entries <= KEPT_LIMIT
    return [
        PointNotes(
            t=f"{t:.6g}",
            f=f"{shown.value[k]:.8g}" if reason[k] == 0 else f"no value: {REASONS[reason[k]]}",
            slope=slopes[k],
            x=_listed(zip(entries(compiled.upper), x[k]), compiled.upper.size),
            y=_answer(shown, labels, k),
            active=_active(shown.active(k), kept),
        )
        for k, t in enumerate(shown.t)
    ]


def _slopes(shown: Slice, exact_slopes: bool) -> list[str]:
    points = Points(shown.compiled, shown.tolerance)
    if exact_slopes and points.differentiable:
        exact = points.slopes(shown.line.at(shown.t), shown.line.direction)[1]
        return [f"{slope:.6g}" if np.isfinite(slope) else "unknown" for slope in exact]
    rough = np.gradient(shown.value, shown.t)
    return [f"about {slope:.4g}, by differences" if np.isfinite(slope) else "unknown" for slope in rough]


def _answer_labels(shown: Slice) -> list[str]:
    """Name the first scalars of y, with their owners where there are several."""
    compiled, owners = shown.compiled, shown.answers.shape[1] if shown.answers.ndim == 3 else 0
    named = ((owner, entry) for owner in range(owners) for entry in entries(compiled.lower))
    alone = owners == 1
    return [
        entry if alone else f"{entry} of {owner_called(compiled, owner)}" for owner, entry in islice(named, SCALARS)
    ]


def _answer(shown: Slice, labels: list[str], k: int) -> str:
    if shown.compiled.declaration.lower_level is None:
        return "no lower level"
    if not labels:
        return "not kept: over 100,000 scalars"
    if shown.sampled.reason[k] != 0:
        return "none"
    return _listed(zip(labels, shown.answers[k].ravel()), shown.answers[k].size)


def _listed(named: Iterable[tuple[str, float]], size: int) -> str:
    written = [f"{name} = {value + 0.0:.6g}" for name, value in islice(named, SCALARS)]
    return "\n".join([*written, *([f"and {size - SCALARS:,} more"] if size > SCALARS else [])])


def _active(constraints: tuple[str, ...], kept: bool) -> str:
    if not kept:
        return "not kept: over 100,000 constraints"
    more = [f"and {len(constraints) - CONSTRAINTS:,} more"] if len(constraints) > CONSTRAINTS else []
    return "\n".join([*constraints[:CONSTRAINTS], *more]) or "none"


STEPS = 401  # places of the slider


def slider_points(shown: Slice) -> np.ndarray:
    """The points of the slice at which the slider stops, both ends and the middle among them."""
    count = len(shown.t)
    return np.unique(np.linspace(0, count - 1, min(count, STEPS)).round().astype(int))


def line_sliders(shown: Slice, said: list[PointNotes]) -> Html:
    """Make the sliders, with what is said at each stop: the place begins in the middle, eta at the first f^eta."""
    stops = slider_points(shown)
    middle = int(np.searchsorted(stops, len(shown.t) // 2))
    low, high = extent(shown)
    moved = {
        "t": [float(shown.t[k]) for k in stops],
        "f": [finite(shown.value[k]) for k in stops],
        "extent": [low, high],
    }
    etas = [f"{smooth.eta:g}" for smooth in shown.smoothed]
    return joined(
        [
            _slider("place", "place on the line: t = ", said[stops[middle]].t, len(stops) - 1, middle),
            *([_slider("smoothing", "smoothing: η = ", etas[0], len(etas), 1)] if etas else []),
            data([said[k]._asdict() for k in stops], "line-places"),
            data(moved, "line-stops"),
            data(["not shown", *etas], "line-smoothings"),
        ]
    )


def _slider(name: str, label: str, shown: str, last: int, start: int) -> Html:
    stops: dict[str, Any] = {"min": "0", "max": str(last), "step": "1", "value": str(start)}
    words = joined([element("label", label, for_=f"{name}-slider"), element("output", shown, id=f"{name}-at")], "")
    bar = void("input", type="range", id=f"{name}-slider", autocomplete="off", **stops)
    return element("div", joined([element("div", words), bar]), class_="slider")


def extent(shown: Slice) -> tuple[float | None, float | None]:
    """The least and the largest value of f on the slice; None where f has no value at all."""
    finite = shown.value[np.isfinite(shown.value)]
    return (float(finite.min()), float(finite.max())) if finite.size else (None, None)


def finite(value: float) -> float | None:
    """A number that JSON knows: None for one that is not finite."""
    return float(value) if np.isfinite(value) else None


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
