"""Names of curves at their ends, where a legend would hide some of them; below the figure where there is no room for that."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, cast

import numpy as np
from scipy.optimize import isotonic_regression

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation

HANDLE = 10  # characters that a legend needs beside a name
BESIDE = 1.05  # of a panel's width: where names begin
LINE = 1.5  # of a legend, in sizes of its type
SPACING = 1.25  # of a line of type
LEADER = {
    "arrowstyle": "-",
    "linestyle": ":",
    "linewidth": 1.0,
    "shrinkA": 1,
    "shrinkB": 1,
    "relpos": (0, 0.5),
}  # dotted: it is no curve
SHORT = 0.9  # of a panel's width: a curve that ends before has a dot there, and the line to its name begins at the panel's edge
WIDEST = 0.4  # of a panel's width: longer names stand below the figure


def name_curves(panels: Sequence[Axes], curves: Sequence[Sequence[Line2D]], names: Sequence[str]) -> None:
    """Write the names of the curves of each panel, given in the order of the names.

    They stand at the height of the curves' right ends, apart from each other, with a dotted line to each, in a figure that makes room for
    them: one with a constrained layout. Names that are too long, or too many, are written in a legend below the panels.
    """
    figure = cast("Figure", panels[0].figure)
    written = [_beside(panel, own, names) for panel, own in zip(panels, curves)]
    figure.draw_without_rendering()  # a first layout, by which names and panels are measured
    if not all(_fit(panel, own) for panel, own in zip(panels, written)):
        for label in (label for own in written for label in own):
            label.remove()
        across = int(figure.get_figwidth() * 72 / (0.6 * _font_size()))  # characters
        shown = [fill(name, max(12, across - HANDLE)) for name in names]
        longest = max(len(line) for name in shown for line in name.splitlines())
        columns = max(1, min(len(names), across // (longest + HANDLE)))
        lines = -(-len(names) // columns) * max(name.count("\n") + 1 for name in shown)
        figure.set_figheight(figure.get_figheight() + lines * LINE * _font_size() / 72)  # panels keep their height
        figure.legend(curves[0], shown, loc="outside lower center", ncols=columns)
        return
    for label in (label for own in written for label in own):
        label.set_in_layout(True)
    for _ in range(2):  # the layout moves with the names, a little
        for panel, own in zip(panels, written):
            _move_apart(panel, own)
        figure.draw_without_rendering()


def _beside(panel: Axes, curves: Sequence[Line2D], names: Sequence[str]) -> list[Annotation]:
    ends = [_end(panel, curve) for curve in curves]
    for place, curve in enumerate(curves):
        x, y = ends[place]
        if panel.transAxes.inverted().transform(panel.transData.transform((x, y)))[0] < SHORT:
            # across the panel its dotted line would be taken for the curve going on
            panel.plot([x], [y], "o", color=curve.get_color(), markersize=4, clip_on=False, zorder=4)
            ends[place] = float(panel.get_xlim()[1]), y
    return [
        panel.annotate(
            name,
            end,
            (BESIDE, 0.5),
            textcoords="axes fraction",
            arrowprops={**LEADER, "color": curve.get_color()},
            verticalalignment="center",
            annotation_clip=False,
            in_layout=False,  # until it is known that there is room for it
            fontsize="small" if _font_size() > 8 else None,
        )
        for name, curve, end in zip(names, curves, ends)
    ]


def _end(panel: Axes, curve: Line2D) -> tuple[float, float]:
    """Where a curve ends that has a point in the panel; else the panel's lower right corner."""
    x, y = (np.asarray(values, float) for values in curve.get_data())
    shown = np.isfinite(x) & np.isfinite(y) & (y > 0 if panel.get_yscale() == "log" else True)
    if not shown.any():
        return float(panel.get_xlim()[1]), float(panel.get_ylim()[0])
    last = np.flatnonzero(shown)[-1]
    return float(x[last]), float(y[last])


def _fit(panel: Axes, labels: Sequence[Annotation]) -> bool:
    box = panel.get_window_extent()
    widest = max(_extent(label).width for label in labels)
    return widest <= WIDEST * box.width and len(labels) * _line(labels) <= box.height


def _move_apart(panel: Axes, labels: Sequence[Annotation]) -> None:
    """As near to the curves' ends as they can stand with a line of type between them: least squares, in the ends' order."""
    box, step = panel.get_window_extent(), _line(labels)
    ends = np.array([panel.transData.transform(label.xy)[1] for label in labels])
    order = np.argsort(np.clip(ends, box.y0, box.y1), kind="stable")
    ranks = step * np.arange(len(labels))
    free = isotonic_regression(np.clip(ends, box.y0, box.y1)[order] - ranks).x
    heights = np.clip(free, box.y0 + step / 2, box.y1 - step / 2 - ranks[-1]) + ranks
    for place, height in zip(order, heights):
        labels[place].set_position((BESIDE, float((height - box.y0) / box.height)))


def _line(labels: Sequence[Annotation]) -> float:
    """Pixels from one name to the next."""
    return SPACING * max(_extent(label).height for label in labels)


def _extent(label: Annotation):  # of the words alone
    from matplotlib.text import Text

    return Text.get_window_extent(label)


def _font_size() -> float:
    import matplotlib as mpl

    return float(mpl.rcParams["font.size"])
