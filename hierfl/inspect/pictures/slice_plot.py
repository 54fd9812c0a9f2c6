"""The picture of a slice: f, its kinks with one-sided tangents, gaps, smoothings, a run's iterates, and y(x) in a panel below.

Before it what every picture of a slice needs: curves broken at jumps, and the words along the axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from hierfl.errors import SettingError
from hierfl.house_style import COLOURS, COLUMN, GAPS, house_figure, house_style, line_style, require_axes, require_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hierfl.compiler.layout import Layout
    from hierfl.inspect.pictures.slice import Slice

SAME_PLACE = 1e-6  # in radii: a point so near to a jump is on it
ON_THE_LINE = 1e-12  # of a unit vector's entry
SHOWN_ENTRIES = 4  # of a direction in a title


class BrokenCurve(NamedTuple):
    """f to be drawn as a line: (k,) each, NaN where the line is broken; ``point`` is the slice's, -1 for what was put in."""

    t: np.ndarray
    value: np.ndarray
    point: np.ndarray


def curve(shown: Slice) -> BrokenCurve:
    """f along the slice, through its kinks. At a jump the line ends at its left value and begins again at its right one."""
    jumps = [jump.t for jump in shown.kinks.jumps]
    near = np.min(np.abs(np.subtract.outer(shown.t, jumps)), axis=1, initial=np.inf) <= SAME_PLACE * shown.line.radius
    put_in = [(kink.t, kink.value) for kink in shown.kinks]
    put_in += [(jump.t, value) for jump in shown.kinks.jumps for value in (jump.left, np.nan, jump.right)]
    at, values = np.reshape(put_in, (-1, 2)).T
    t = np.concatenate([shown.t[~near], at])
    point = np.concatenate([np.flatnonzero(~near), np.full(len(at), -1)])
    order = np.argsort(t, kind="stable")
    return BrokenCurve(t[order], np.concatenate([shown.value[~near], values])[order], point[order])


def broken(shown: Slice, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(t, values) of a term (k,) along the slice, broken by NaN at each jump of f."""
    place = np.searchsorted(shown.t, [jump.t for jump in shown.kinks.jumps])
    at = np.insert(shown.t, place, [jump.t for jump in shown.kinks.jumps])
    return at, np.insert(values, place, np.nan)


def entries(layout: Layout) -> Iterable[str]:
    """``x[0, 1]`` for every scalar of the flat vector, in order; a scalar variable has its bare name."""
    for variable in layout.variables:
        for index in np.ndindex(variable.shape):
            yield f"{variable.name()}[{', '.join(map(str, index))}]" if index else variable.name()


def line_title(shown: Slice) -> str:
    """Along which line f is drawn: by name where one scalar moves, by the unit vector where x is small, else how it was chosen."""
    layout = shown.compiled.upper
    (moving,) = np.nonzero(np.abs(shown.line.direction) > ON_THE_LINE)
    if len(moving) == 1:
        return f"f along {list(entries(layout))[moving[0]]}"
    if layout.size <= SHOWN_ENTRIES:
        return f"f along ({', '.join(f'{entry:.3g}' for entry in shown.line.direction)})"
    return f"f along {shown.chosen}"


def line_label(shown: Slice) -> str:
    """What t is, in the declared names: ``t   (x = 0.3 + t)`` where one scalar moves, else with centre and direction."""
    layout = shown.compiled.upper
    (moving,) = np.nonzero(np.abs(shown.line.direction) > ON_THE_LINE)
    if len(moving) > 1:
        names = ", ".join(variable.name() for variable in layout.variables)
        return f"t   ({names} = centre + t · direction)"
    (place,) = moving
    name, start = list(entries(layout))[place], float(f"{shown.line.centre[place]:.4g}")
    sign = "+" if shown.line.direction[place] > 0 else "−"
    moved = f"{start:g} {sign} t" if start else "t" if sign == "+" else "−t"
    return f"t   ({name} = {moved}{', the rest fixed' if layout.size > 1 else ''})"


READABLE = COLOURS[:-1]  # names in yellow cannot be read
FEW = 8  # scalars of y that are drawn without being asked for
NAMED = 12  # curves that have a name at their end
LINES = ("-", "--", ":", "-.")  # of the owners, where an entry of y has several


def shows_response(shown: Slice, asked: bool | None, own_axes: bool) -> bool:
    """Whether to draw y(x) as well: where asked for, or where y is small and there is room for a panel.

    Raises ``SettingError`` if it is asked for where there is none, or on axes of the caller's.
    """
    scalars = int(np.prod(shown.answers.shape[1:]))
    if asked and not scalars:
        raise SettingError("response=True: this slice holds no y(x): no lower level, or over 100,000 scalars.")
    if asked and own_axes:
        raise SettingError(
            "response=True draws a panel of its own: leave out ax=, or draw slice.response() on axes of yours."
        )
    return not own_axes and 0 < scalars <= FEW if asked is None else asked


def draw_response(panel: Axes, shown: Slice) -> None:
    """Draw the curves of all scalars of y, and their names where they are few."""
    import matplotlib as mpl

    owners, size = shown.answers.shape[1:]
    names = list(entries(shown.compiled.lower))
    ends: dict[str, tuple[float, str]] = {}
    for owner in range(owners):
        for place in range(size):
            t, values = broken(shown, shown.answers[:, owner, place])
            alone = size == 1
            colour = READABLE[(owner if alone else place) % len(READABLE)]
            look: dict[str, Any] = {"color": colour, "linestyle": "-" if alone else LINES[owner % len(LINES)]}
            label = names[place] if owners == 1 else f"{names[place]}, {owner}"
            panel.plot(t, values, label=label, linewidth=0.9 * mpl.rcParams["lines.linewidth"], **look)
            finite = np.flatnonzero(np.isfinite(values))
            if len(finite):
                ends[label] = (float(values[finite[-1]]), colour)
    panel.set_ylabel("y(x)")
    panel.margins(y=0.08)
    if len(ends) <= NAMED:
        _name_the_ends(panel, ends)


def _name_the_ends(panel: Axes, ends: dict[str, tuple[float, str]]) -> None:
    """Write each curve's name to its right, moved up or down where names would meet."""
    import matplotlib as mpl

    low, high = panel.get_ylim()
    panel.set_ylim(low, high)
    labels = sorted(ends, key=lambda label: ends[label][0])
    at = apart(np.array([(ends[label][0] - low) / (high - low) for label in labels]), _line_height(panel))
    fontsize = mpl.rcParams["legend.fontsize"]
    for label, height in zip(labels, at):
        panel.text(
            1.015,
            height,
            label,
            transform=panel.transAxes,
            color=ends[label][1],
            va="center",
            fontsize=fontsize,
            clip_on=False,
        )


def apart(places: np.ndarray, least: float) -> np.ndarray:
    """Sorted places (k,) pushed apart by ``least``, kept around where they were, and on [0, 1] where there is room."""
    if not len(places):
        return places
    pushed = places.copy()
    for k in range(1, len(pushed)):
        pushed[k] = max(pushed[k], pushed[k - 1] + least)
    pushed -= np.mean(pushed - places)
    pushed -= max(0.0, pushed[-1] - 1.0)
    pushed += max(0.0, -pushed[0])
    return pushed


def _line_height(panel: Axes) -> float:
    """What a name takes, in heights of the panel as it will be laid out: about two fifths of the figure's, less its axis."""
    import matplotlib as mpl
    from matplotlib.font_manager import FontProperties

    points = FontProperties(size=mpl.rcParams["legend.fontsize"]).get_size_in_points()
    figure = cast("Figure", panel.get_figure(root=True))
    return float(1.15 * points / (72 * 0.3 * figure.get_figheight()))


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
