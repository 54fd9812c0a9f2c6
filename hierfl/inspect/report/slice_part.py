"""The sections of a report on the slice through x: its interactive figures, what is said of every point, and the table of its kinks.

f has its kinks, gaps and smoothings, and a marker that the page's sliders move. The hover boxes and the legend's switches are Plotly's own. What
hover shows, x, f, y(x), slope and active constraints of each point in words, is markup to Plotly, so names in it are escaped like those of the
page. The sliders, one for the place on the line and one for eta, are the browser's own: arrows, Home and End move them, and screen readers say
where they stand. A second figure has the parties' own terms along the slice.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.compiler.lower_level.diagnosis import owner_name
from hierfl.house_style import COLOURS
from hierfl.inspect.implicit.points import KEPT_LIMIT, REASONS
from hierfl.inspect.kinks.kink import Kinks
from hierfl.inspect.kinks.kink_search import effort
from hierfl.inspect.pictures.slice import BrokenCurve, Slice, broken, curve, line_label, stretches
from hierfl.inspect.report import page as html
from hierfl.jaxtools.precision import double_precision

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from hierfl.result import Result

SCALARS = 4  # entries of x and of y, and constraints, that are written out


class PointNotes(NamedTuple):
    """What is said about one point; ``f`` says why where there is no value."""

    t: str
    f: str
    slope: str
    x: str
    y: str
    active: str


@double_precision
def _notes_along(shown: Slice, exact_slopes: bool) -> list[PointNotes]:
    """Describe the points of a slice, in order; slopes are exact where there are such and they are wanted, else by differences."""
    compiled, reason, x = shown.compiled, shown.sampled.reason, shown.line.at(shown.t)
    points = shown.points
    exact = exact_slopes and points.differentiable
    slopes = points.slopes(x, shown.line.direction)[1] if exact else np.gradient(shown.value, shown.t)
    owners = shown.answers.shape[1] if shown.answers.ndim == 3 else 0
    of = [""] if owners == 1 else [f" of {owner_name(compiled, owner)}" for owner in range(min(owners, SCALARS))]
    labels = [entry + owner for owner in of for entry in compiled.lower.entries[:SCALARS]][:SCALARS]
    names = compiled.upper.entries[:SCALARS]
    notes = []
    for k, t in enumerate(shown.t):
        f, y = f"{shown.value[k]:.8g}" if reason[k] == 0 else f"no value: {REASONS[reason[k]]}", "none"
        if not labels:
            y = "no lower level" if compiled.declaration.lower_level is None else "not kept: over 100,000 scalars"
        elif reason[k] == 0:
            y = _listed(_equations(labels, shown.answers[k].ravel()), shown.answers[k].size)
        active = _listed(shown.active(k)) or "none" if points.switches.entries <= KEPT_LIMIT else "not kept: over 100,000 constraints"
        slope = "unknown"
        if np.isfinite(slopes[k]):
            slope = f"{slopes[k]:.6g}" if exact else f"about {slopes[k]:.4g}, by differences"
        at = _listed(_equations(names, x[k]), compiled.upper.size)
        notes.append(PointNotes(f"{t:.6g}", f, slope, at, y, active))
    return notes


def _equations(names: Sequence[str], values: np.ndarray) -> list[str]:
    return [f"{name} = {value + 0.0:.6g}" for name, value in zip(names, values)]


def _listed(lines: Sequence[str], count: int | None = None) -> str:
    """The first of so many lines, and how many more there are."""
    more = (len(lines) if count is None else count) - SCALARS
    return "\n".join([*lines[:SCALARS], *([f"and {more:,} more"] if more > 0 else [])])


STEPS = 401  # places of the slider


def _line_sliders(shown: Slice, said: list[PointNotes]) -> html.Html:
    """Make the sliders, with what is said at each stop: the place begins in the middle, eta at the first f^eta."""
    count = len(shown.t)
    stops = np.unique(np.linspace(0, count - 1, min(count, STEPS)).round().astype(int))  # both ends and the middle among them
    middle = int(np.searchsorted(stops, count // 2))
    moved = {"t": shown.t[stops].tolist(), "f": [finite(shown.value[k]) for k in stops], "extent": _extent(shown)}
    etas = [f"{smooth.eta:g}" for smooth in shown.smoothed]
    sliders = [_slider("place", "place on the line: t = ", said[stops[middle]].t, len(stops) - 1, middle)]
    sliders += [_slider("smoothing", "smoothing: η = ", etas[0], len(etas), 1)] if etas else []
    places = html.data([said[k]._asdict() for k in stops], "line-places")
    return html.joined([*sliders, places, html.data(moved, "line-stops"), html.data(["not shown", *etas], "line-smoothings")])


def _slider(name: str, label: str, shown: str, last: int, start: int) -> html.Html:
    words = html.joined([html.element("label", label, for_=f"{name}-slider"), html.element("output", shown, id=f"{name}-at")], "")
    bar = html.Html(f'<input type="range" id="{name}-slider" autocomplete="off" min="0" max="{last}" step="1" value="{start}">')
    return html.element("div", html.joined([html.element("div", words), bar]), class_="slider")


def _extent(shown: Slice) -> tuple[float | None, float | None]:
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


def _line_figure(shown: Slice, said: Sequence[PointNotes]) -> Figure:
    figure, drawn, hovers = html.plotly().graph_objects.Figure(), curve(shown), _hovers(shown, said)
    _add_smoothings(figure, shown)
    look = {"mode": "lines", "line": {"color": COLOURS[0], "width": 2.2}, "legendrank": 1, "hoverinfo": "text", "meta": "curve"}
    text = [hovers[k] if k >= 0 else "" for k in drawn.point]
    figure.add_scatter(x=drawn.t, y=drawn.value, name="f", text=text, **look)
    _add_stretches(figure, shown)
    _add_iterates(figure, shown, drawn)
    _add_kinks(figure, shown)
    _add_marker(figure, shown)
    axis = html.escaped(textwrap.shorten(line_label(shown), 60, placeholder=" …"))
    figure.update_xaxes(title_text=axis, title_standoff=8, range=[shown.t[0], shown.t[-1]])
    figure.update_yaxes(title_text="f", title_standoff=4)
    return html.styled(figure, height=520)


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
    return "<br>".join(html.escaped(part) for line in lines for part in textwrap.wrap(line, WIDEST) or [""])


def _add_stretches(figure: Figure, shown: Slice) -> None:
    """Draw the bands behind f, named in the legend, and in place where the words fit in a window for telephones as well."""
    named: set[str] = set()
    for one in stretches(shown):
        name, colour = html.escaped(one.name), html.faint(one.colour) if one.over else one.colour
        label = {"text": name, "font": {"size": 12, "color": "#57606a"}, "textposition": "top center"}
        room = (one.high - one.low) / (2 * shown.line.radius) * NARROWEST
        fits = {"label": label} if room > LETTER * (len(one.name) + 2) else {}
        line = {"color": one.colour, "width": 0 if one.high > one.low else 1}
        figure.add_vrect(x0=one.low, x1=one.high, fillcolor=colour, opacity=1, line=line, layer="below", **fits)
        if one.name not in named:
            square = {"symbol": "square", "size": 11, "color": colour}
            figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=square, meta="stretch")
        named.add(one.name)


def _add_smoothings(figure: Figure, shown: Slice) -> None:
    for place, smooth in enumerate(shown.smoothed):
        colour, given = COLOURS[1 + (place + 1) % (len(COLOURS) - 2)], {"visible": place == 0, "hoverinfo": "skip"}
        low, high, name = smooth.value - smooth.half_width, smooth.value + smooth.half_width, f"95% band, η = {smooth.eta:g}"
        html.add_band(figure, shown.t, low, high, colour, name=name, showlegend=False, meta="band", **given)
        dashed = {"color": colour, "dash": "dash", "width": 2}
        name = f"f<sup>η</sup>, η = {smooth.eta:g}"
        figure.add_scatter(x=shown.t, y=smooth.value, mode="lines", line=dashed, name=name, meta="smoothed", **given)


def _add_iterates(figure: Figure, shown: Slice, drawn: BrokenCurve) -> None:
    near = shown.iterates[np.abs(shown.iterates[:, 0]) <= shown.line.radius]
    if not len(near):
        return
    hover = "round %{customdata[1]:.0f}, projected on the line<br>t = %{x:.5g}, %{customdata[0]:.3g} away from the line<extra></extra>"
    look = {"mode": "markers", "marker": ITERATE, "name": "iterates", "meta": "iterates", "hovertemplate": hover}
    f = np.interp(near[:, 0], drawn.t, drawn.value)
    figure.add_scatter(x=near[:, 0], y=f, customdata=near[:, 1:], **look)


def _add_kinks(figure: Figure, shown: Slice) -> None:
    kinks = shown.kinks
    if len(kinks):
        words = []
        for kink in kinks:
            slopes = f"slope {kink.left_slope:.6g} before, {kink.right_slope:.6g} after"
            words.append(_boxed([f"kink at t = {kink.t:.6g}, f = {kink.value:.6g}", slopes, kink.cause]))
        t, f, name = [kink.t for kink in kinks], [kink.value for kink in kinks], f"{len(kinks)} kink{'s' if len(kinks) > 1 else ''}"
        figure.add_scatter(x=t, y=f, name=name, text=words, mode="markers", hoverinfo="text", meta="kinks", marker=KINK)
    look = {"mode": "lines+markers", "line": {"color": COLOURS[1], "dash": "dot"}, "hoverinfo": "text", "name": "jump", "meta": "jump"}
    for number, jump in enumerate(kinks.jumps):
        words = [_boxed([f"f jumps at t = {jump.t:.6g} from {jump.left:.6g} to {jump.right:.6g}", jump.cause])] * 2
        figure.add_scatter(x=[jump.t, jump.t], y=[jump.left, jump.right], text=words, showlegend=number == 0, **look)


def _add_marker(figure: Figure, shown: Slice) -> None:
    """Mark the place that the slider points at: a line across the figure, and a ring on the curve."""
    start, silent = len(shown.t) // 2, {"hoverinfo": "skip", "showlegend": False}
    t = float(shown.t[start])
    grey = {"color": "#24292f", "width": 1, "dash": "dot"}
    figure.add_scatter(x=[t, t], y=_extent(shown), mode="lines", line=grey, meta="here", **silent)
    ring = {"color": "rgba(255,255,255,0.6)", "size": 13, "line": {"color": "#24292f", "width": 2}}
    figure.add_scatter(x=[t], y=[finite(shown.value[start])], mode="markers", marker=ring, meta="place", **silent)


SERVER = "#000000"
PALETTE = tuple(colour for colour in COLOURS if colour != SERVER)
CLIENTS = 20  # more terms than this are shown as a band


def _client_terms(shown: Slice) -> np.ndarray:
    """The clients' own terms (k, m); (k, 0) where the objective has none of theirs."""
    return shown.clients if shown.compiled.declaration.objective.clients is not None else shown.clients[:, :0]


def _terms_figure(shown: Slice) -> Figure:
    """Draw the server's term and each client's own, unweighted; of many clients the median and the band of all."""
    figure, clients = html.plotly().graph_objects.Figure(), _client_terms(shown)
    if shown.compiled.declaration.objective.server is not None:
        t, value = broken(shown, shown.server)
        figure.add_scatter(x=t, y=value, name="server", mode="lines", line={"color": SERVER, "width": 2})
    if clients.shape[1] <= CLIENTS:
        for i, term in enumerate(clients.T):
            dash = ("solid", "dash", "dot")[i // len(PALETTE) % 3]
            line = {"color": PALETTE[i % len(PALETTE)], "dash": dash, "width": 1.6}
            t, value = broken(shown, term)
            name = shown.compiled.declaration.client_called(i)
            figure.add_scatter(x=t, y=value, name=name, mode="lines", line=line)
    else:
        good = np.isfinite(clients).all(axis=1)
        t, least = broken(shown, np.where(good, clients.min(axis=1), np.nan))
        most = broken(shown, np.where(good, clients.max(axis=1), np.nan))[1]
        html.add_band(figure, t, least, most, COLOURS[0], name=f"all {clients.shape[1]} clients")
        t, middle = broken(shown, np.median(clients, axis=1))
        figure.add_scatter(x=t, y=middle, name="median client", mode="lines", line={"color": COLOURS[0]})
    figure.update_xaxes(title_text=html.escaped(line_label(shown)), title_standoff=8)
    figure.update_yaxes(title_text="term, unweighted", title_standoff=4)
    html.styled(figure, height=460, showlegend=True)
    # many names stand below, where they can take several lines
    return figure.update_layout(legend={"y": -0.2, "yanchor": "top"}, margin={"t": 36})


class ReportSettings(NamedTuple):
    """The arguments of ``Result.report``."""

    radius: float | None
    smoothing: float | Sequence[float] | None
    points: int
    samples: int
    seed: int
    check: bool
    progress: bool
    time_budget: float
    overwrite: bool


ASIDE = 1e-3  # of a step
FEW = 64  # points that are timed: a whole piece of those that are evaluated together
SLOPES_FOR_KINKS = 4  # evaluations of a slope for each point of a slice, about, in a search for kinks


@double_precision
def _timed(shown: Slice, function: Callable[[np.ndarray], Any], after: float) -> float:
    """Seconds for all points of a slice, by a few in the middle that are evaluated together; what they compile is not counted.

    They are a share ``after`` of a step behind the slice's own points, a little aside, and compiled for at others: lower levels that
    are solved on the host remember what they were asked, and answer it again in no time; along the line all may be one question.
    """
    t = shown.t
    count = min(FEW, len(t) - 1)
    few, step = t[(len(t) - count) // 2 :][:count], t[1] - t[0]
    places = shown.line.at(few + step / 3)
    aside = ASIDE * step * after * np.cos(np.arange(1, places.shape[-1] + 1) ** 2)
    function(places + 0.5 * aside)
    began = perf_counter()
    function(shown.line.at(few + after * step) + aside)
    return (perf_counter() - began) / count * len(t)


TIES = 5  # written out
LEAST_DRAWS = 16  # for f^eta to be worth looking at
SHARES = (0.1, 0.3)  # of the radius: smoothings that can be seen, beside the run's own
_LABELS = {"t": "t", "f": "f", "slope": "slope along the line", "x": "x", "y": "y(x)", "active": "active constraints"}


def report_slice(result: Result, settings: ReportSettings) -> tuple[Slice, bool, list[str]]:
    """Make (the slice through x, whether its slopes are exact, what is left out of its figure since it would take too long); its kinks say it themselves."""
    radius = settings.radius if settings.radius is not None else _radius(result)
    implicit = result.require_problem("a report").implicit
    asked: dict[str, Any] = {"radius": radius, "points": settings.points, "samples": settings.samples}
    asked |= {"seed": settings.seed, "progress": settings.progress}
    shown = implicit.slice(result, smoothing=settings.smoothing, **asked)
    if not (shown.sampled.reason == 0).any():
        return shown, False, []
    points, notes = shown.points, []
    of_values = _timed(shown, points.values, 2 / 3)
    if settings.smoothing is None:
        # the run's own eta and two that can be seen in the window
        own = result.settings.get("smoothing")
        etas = tuple(sorted({float(f"{share * radius:.1g}") for share in SHARES} | ({float(own)} if own else set())))
        seconds = of_values * len(etas) * settings.samples
        if seconds <= settings.time_budget:
            shown = implicit.slice(result, smoothing=etas, **asked)
        else:
            notes.append(_smoothing_note(of_values, etas, settings, seconds))
    of_slopes = _timed(shown, points.gradients, 0) if points.differentiable else 0.0
    exact = of_slopes <= settings.time_budget
    if not exact:
        notes.append(f"Slopes are by differences: exact ones would take about {_said_seconds(of_slopes)}.")
    seconds = effort(shown.t, shown.sampled) / len(shown.t) * of_values + SLOPES_FOR_KINKS * of_slopes
    if seconds > settings.time_budget:
        why = f"Kinks were not looked for: that would take about {_said_seconds(seconds)}. Write time_budget={_rounded_up(seconds)} for a report"
        shown = replace(shown, without_kinks=f"{why} that has them, or points=101 for a coarser line.")
    return shown, exact, notes


def _smoothing_note(per_draw: float, etas: tuple[float, ...], settings: ReportSettings, seconds: float) -> str:
    """Say what f^eta would take, and what to write for as much of it as there is time for, or for all."""
    samples, points, coarser = int(settings.time_budget / per_draw) // 2 * 2, settings.points, ""
    if samples < LEAST_DRAWS:
        samples, points, coarser = LEAST_DRAWS, 51, ", points=51"
    else:
        samples = min(samples, settings.samples)
    less = f"smoothing={etas[0]:g}, samples={samples}{coarser} takes about {_said_seconds(per_draw * samples * points / settings.points)}"
    out = f"f^η is left out: for η = {', '.join(f'{eta:g}' for eta in etas)} it would take about {_said_seconds(seconds)}"
    return f"{out}. {less}; time_budget={_rounded_up(seconds)} gives all of it."


def _said_seconds(seconds: float) -> str:
    """A time to be read: ``0.4 s``, ``35 s``, ``12 minutes``."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.2g} minutes" if seconds < 6000 else f"{seconds / 3600:,.3g} hours"


def _rounded_up(seconds: float) -> int:
    return int(np.ceil(1.5 * seconds / 10) * 10)


def _radius(result: Result) -> float:
    """The radius of a window that holds all iterates; 1 without any."""
    path = result.trajectory.get("x", np.zeros((0, 1)))
    if not len(path):
        return 1.0
    layout = result.require_problem("a report").compile().upper
    reach = float(np.max(np.linalg.norm(path - layout.flatten(result.x, "x"), axis=1)))
    return float(f"{1.1 * reach:.2g}") if 0 < reach < np.inf else 1.0


def line_section(shown: Slice, exact_slopes: bool, notes: Sequence[str]) -> html.Html:
    """Lay out the figures of the slice with what is said about it."""
    said = _notes_along(shown, exact_slopes)
    middle = said[len(shown.t) // 2]
    names, count = ", ".join(variable.name() for variable in shown.compiled.upper.variables), _client_terms(shown).shape[1]
    line_of = f"f at {names} = centre + t · direction: the centre is the run's x, the direction {shown.chosen}."
    parts = [html.paragraph(f"{line_of} {_accuracy(shown)}")]
    parts += map(html.notice, notes)
    parts += (html.paragraph(f"No value for {gap}.") for gap in shown.gaps)
    parts += (html.notice(f"Not feasible for {one}.") for one in shown.violated[:TIES])
    parts += (html.notice(f"For {tie}.") for tie in shown.ties[:TIES])
    parts += [html.element("div", html.drawn(_line_figure(shown, said), "line-figure", _spoken(shown)), class_="figure"), _line_sliders(shown, said)]
    there = ((html.element("dt", label), html.element("dd", getattr(middle, key), id=f"place-{key}")) for key, label in _LABELS.items())
    parts += [html.element("dl", html.joined(map(html.joined, there)), class_="place", id="place"), html.element("h3", "Terms along the line")]
    many = f"; of {count} clients the median and the band of all" if count > CLIENTS else ""
    parts.append(html.paragraph(f"Each party's own term, unweighted{many}. A click on a name hides or shows it."))
    terms = html.drawn(_terms_figure(shown), "terms-figure", "Each party's own term along the line")
    return html.joined([*parts, html.element("div", terms, class_="figure")])


def _spoken(shown: Slice) -> str:
    """What the figure shows, to those who do not see it."""
    low, high = _extent(shown)
    span = "without a value" if low is None else f"between {low:.4g} and {high:.4g}"
    said = f"f along a line through x, t from {shown.t[0]:.4g} to {shown.t[-1]:.4g}: {span}"
    if shown.kinks.unknown:
        return said
    count, jumps = len(shown.kinks), len(shown.kinks.jumps)
    return f"{said}, {count} kink{'' if count == 1 else 's'}" + (f", {jumps} jump{'' if jumps == 1 else 's'}" if jumps else "")


def _accuracy(shown: Slice) -> str:
    """Say where f has a value, and what the worst residual and error bound there are."""
    good = shown.sampled.reason == 0
    at = f"f has a value at {good.sum():,} of {len(good):,} points"
    if shown.compiled.declaration.lower_level is None:
        return f"There is no lower level, and {at}."
    if not good.any():
        return f"{at}."
    bound = np.max(shown.error_bound[good])
    words = f"at most {bound:.1e}" if np.isfinite(bound) else "unknown"
    return f"{at}, where the lower level's residual is at most {np.max(shown.residual[good]):.1e}, the error of y {words}."


ROWS = 200


def kinks_table(kinks: Kinks) -> html.Html:
    """Show the kinks and jumps of the slice, with what could be told apart; or why they are not known."""
    if kinks.unknown:
        return html.notice(kinks.unknown)
    sharpest = sorted(sorted(kinks, key=lambda kink: -kink.sharpness)[:ROWS], key=lambda kink: kink.t)
    rows = [[k.t, k.value, k.left_slope, k.right_slope, k.bend, k.cause] for k in sharpest]
    header = ["t", "f", "slope before", "slope after", "bends", "cause"]
    listed = html.element("div", html.table(header, rows, "kink-rows"), class_="long")
    parts = [listed if rows else html.paragraph("No kinks in this window.")]
    if len(kinks) > ROWS:
        parts.append(html.paragraph(f"The {ROWS} sharpest of {len(kinks):,} kinks."))
    if kinks.jumps:
        jumps = [[jump.t, jump.left, jump.right, jump.cause] for jump in kinks.jumps[:ROWS]]
        parts += [html.element("h3", "Jumps"), html.table(["t", "f before", "f after", "cause"], jumps, "jump-rows")]
    if kinks.sampled is not None:
        parts.append(html.paragraph(f"{kinks.sampled}."))
    return html.joined([*parts, html.paragraph(f"Resolved: {kinks.resolution}.")])
