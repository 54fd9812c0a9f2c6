"""The picture of a slice: f, its kinks with one-sided tangents, gaps, smoothings, a run's iterates, and y(x) below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hierfl.house_style import (
    COLOURS,
    COLUMN,
    GAPS,
    house_figure,
    house_style,
    line_style,
    require_axes,
    require_style,
)
from hierfl.inspect.pictures.response_panel import curve, draw_response, line_label, line_title, shows_response

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hierfl.inspect.pictures.slice import Slice

TANGENT = 0.08  # half the length of a tangent, in radii
KINKS_SHOWN = 40
DOT, FAINT_DOT = 4.5, 2.0  # sizes of dots
SCREEN_MARKER = 6.0  # matplotlib's own size
TIE_SHADE = 0.15
FAINT = 1e-3  # of the sharpest kink's leap of slope, below which a kink has a small dot


def plot_slice(
    shown: Slice, ax: Axes | None = None, response: bool | None = None, style: str = "screen", **line: Any
) -> Figure:
    """Draw a slice; ``line`` goes to the line of f. Returns the figure; errors as for ``Slice.plot``."""
    import matplotlib.pyplot as plt

    require_axes(ax)
    look = line_style(line)
    below = None
    with_response = shows_response(shown, response, ax is not None)
    with house_style(require_style(style)):
        if with_response:
            tall = (COLUMN, 3.2) if style == "paper" else (6.4, 5.4)
            figure, (panel, below) = plt.subplots(
                2, 1, sharex=True, figsize=tall, height_ratios=(3, 2), FigureClass=house_figure()
            )
        elif ax is None:
            flat = (COLUMN, 2.2) if style == "paper" else (6.4, 4.0)
            figure, panel = plt.subplots(figsize=flat, FigureClass=house_figure())
        else:
            figure, panel = ax.figure, ax
        drawn = curve(shown)
        panel.plot(drawn.t, drawn.value, **{"color": COLOURS[0], "label": "f", **look})
        for place, smooth in enumerate(shown.smoothed):
            colour = COLOURS[1 + place % (len(COLOURS) - 1)]
            panel.plot(shown.t, smooth.value, "--", color=colour, label=f"$f^\\eta$, η = {smooth.eta:g}")
            low, high = smooth.value - smooth.half_width, smooth.value + smooth.half_width
            panel.fill_between(shown.t, low, high, color=colour, alpha=0.2, linewidth=0)
        _draw_kinks(panel, shown)
        _draw_gaps(panel, shown)
        _draw_ties(panel, shown)
        if len(shown.iterates):
            inside = shown.iterates[np.abs(shown.iterates[:, 0]) <= shown.line.radius]
            panel.plot(inside[:, 0], np.interp(inside[:, 0], drawn.t, drawn.value), ".", color="0.45", label="iterates")
        panel.set(ylabel="f", title=line_title(shown))
        if below is not None:
            draw_response(below, shown)
        (panel if below is None else below).set_xlabel(line_label(shown))
        panel.legend(frameon=True, facecolor="white", framealpha=0.9, edgecolor="none")
    return cast("Figure", figure)


def _draw_kinks(panel: Axes, shown: Slice) -> None:
    """Draw dots, and the tangents on either side; where there are very many, those of the sharpest kinks."""
    import matplotlib as mpl

    kinks = sorted(shown.kinks, key=lambda kink: -kink.sharpness)[:KINKS_SHOWN]
    apart = np.diff([kink.t for kink in shown.kinks])
    scale = mpl.rcParams["lines.markersize"] / SCREEN_MARKER
    reach = min(TANGENT * shown.line.radius, max(2 * float(np.min(apart, initial=np.inf)), 0.02 * shown.line.radius))
    for number, kink in enumerate(kinks):
        label: dict[str, Any] = {"label": _kink_label(shown)} if number == 0 else {}
        size = scale * (DOT if kink.sharpness >= FAINT * kinks[0].sharpness else FAINT_DOT)
        panel.plot(kink.t, kink.value, "o", color=COLOURS[1], markersize=size, zorder=4, **label)
        for slope, far in ((kink.left_slope, reach), (kink.right_slope, -reach)):
            if np.isinf(slope):
                continue  # the curve itself is upright there
            # each tangent is carried past the kink, where it leaves the curve
            at = np.array([kink.t, kink.t + far])
            panel.plot(at, kink.value + slope * (at - kink.t), color=COLOURS[1], linewidth=1.0, linestyle=":", zorder=3)
    for number, jump in enumerate(shown.kinks.jumps):
        named: dict[str, Any] = {"label": "jump"} if number == 0 else {}
        panel.plot([jump.t, jump.t], [jump.left, jump.right], color=COLOURS[6], linestyle=":", **named)


def _kink_label(shown: Slice) -> str:
    count = len(shown.kinks)
    more = f", the {KINKS_SHOWN} sharpest" if count > KINKS_SHOWN else ""
    return f"{count} kink{'s' if count != 1 else ''}{more}"


def _draw_gaps(panel: Axes, shown: Slice) -> None:
    reasons = list(dict.fromkeys(gap.reason for gap in shown.gaps))
    for number, reason in enumerate(reasons):
        grey, hatch = GAPS[number % len(GAPS)]
        for place, gap in enumerate(gap for gap in shown.gaps if gap.reason == reason):
            label: dict[str, Any] = {"label": f"no value: {reason}"} if place == 0 else {}
            panel.axvspan(
                gap.low, gap.high, facecolor=grey, hatch=hatch, edgecolor="white", linewidth=0, zorder=0, **label
            )


def _draw_ties(panel: Axes, shown: Slice) -> None:
    """Shade where f is that of one of several lower solutions; single places are lines."""
    for number, tie in enumerate(shown.ties):
        label: dict[str, Any] = {"label": "several lower solutions"} if number == 0 else {}
        if tie.high > tie.low:
            panel.axvspan(tie.low, tie.high, facecolor=COLOURS[6], alpha=TIE_SHADE, linewidth=0, zorder=0, **label)
        else:
            panel.axvline(tie.low, color=COLOURS[6], alpha=2 * TIE_SHADE, zorder=0, **label)
