"""The convergence figures of a run, and of several: what they are drawn against, how values are scaled, and the curves.

Curves have their names at their ends, where a legend would hide some of them; below the figure where there is no room for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.optimize import isotonic_regression

from hierfl.errors import SettingError
from hierfl.house_style import COLOURS, house_style, panels, require_axes
from hierfl.inspect.implicit.points import Points
from hierfl.jaxtools.precision import double_precision
from hierfl.near_names import near_names
from hierfl.result import SAME, Result
from hierfl.runs import half_width

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation

    from hierfl.runs import Runs

HANDLE = 10  # characters that a legend needs beside a name
BESIDE = 1.05  # of a panel's width: where names begin
LINE = 1.5  # of a legend, in sizes of its type
SPACING = 1.25  # of a line of type
LEADER = {"arrowstyle": "-", "linestyle": ":", "linewidth": 1.0, "shrinkA": 1, "shrinkB": 1, "relpos": (0, 0.5)}  # dotted: it is no curve
SHORT = 0.9  # of a panel's width: a curve that ends before has a dot there, and the line to its name begins at the panel's edge
WIDEST = 0.4  # of a panel's width: longer names stand below the figure


def plain(name: str) -> str:
    """A name as matplotlib writes it, not as mathematics between dollars."""
    return name.replace("$", r"\$")


def name_curves(panels: Sequence[Axes], curves: Sequence[Sequence[Line2D]], names: Sequence[str]) -> None:
    """Write the names of the curves of each panel, given in the order of the names.

    They stand at the height of the curves' right ends, apart from each other, with a dotted line to each, in a figure that makes room for
    them: one with a constrained layout. Names that are too long, or too many, are written in a legend below the panels.
    """
    figure, names = cast("Figure", panels[0].figure), list(map(plain, names))
    written = [_beside(panel, own, names) for panel, own in zip(panels, curves)]
    figure.draw_without_rendering()  # a first layout, by which names and panels are measured
    labels = [label for own in written for label in own]
    if not all(_fit(panel, own) for panel, own in zip(panels, written)):
        for label in labels:
            label.remove()
        legend_outside(figure, "lower", curves[0], names)
        return
    for label in labels:
        label.set_in_layout(True)
    for _ in range(2):  # the layout moves with the names, a little
        for panel, own in zip(panels, written):
            _move_apart(panel, own)
        figure.draw_without_rendering()


def legend_outside(figure: Figure, side: str, curves: Sequence[Artist], names: Sequence[str]) -> None:
    """A legend at the ``"lower"`` or ``"upper"`` side of a figure with a constrained layout, whose panels keep their height."""
    across = int(figure.get_figwidth() * 72 / (0.6 * _font_size()))  # characters
    shown = [fill(name, max(12, across - HANDLE)) for name in names]
    longest = max(len(line) for name in shown for line in name.splitlines())
    columns = max(1, min(len(names), across // (longest + HANDLE)))
    lines = -(-len(names) // columns) * max(name.count("\n") + 1 for name in shown)
    figure.set_figheight(figure.get_figheight() + lines * LINE * _font_size() / 72)
    figure.legend(curves, shown, loc=f"outside {side} center", ncols=columns)


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
    return float(x[last]), float(np.clip(y[last], *panel.get_ylim()))


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


AXES = {"rounds": "round", "communication": "scalars sent, down and up", "seconds": "seconds", "lower solves": "lower solves"}
SCALES = ("linear", "log", "gap")
_PER_ROUND = {"communication": "scalars", "seconds": "seconds", "lower solves": "lower_solves"}


@dataclass(frozen=True)
class ConvergenceAxes:
    """The choice of an ``axis`` and a ``scale``, as for ``Runs.plot``; raises ``SettingError``, naming what there is instead."""

    axis: str = "rounds"
    scale: str = "linear"

    def __post_init__(self) -> None:
        for name, value, known in (("axis", self.axis, tuple(AXES)), ("scale", self.scale, SCALES)):
            if value not in known:
                raise SettingError(f"{name}={value!r}: {near_names(value, known)}")

    def at(self, results: Sequence[Result], rounds: Any) -> np.ndarray:
        """Where rounds (0 is the start) are on the axis: the mean over some runs."""
        rounds = np.asarray(rounds, int)
        if self.axis == "rounds":
            return rounds
        name = _PER_ROUND[self.axis]
        for result in results:
            if name not in result.history:
                instead = "Write axis='rounds', 'communication' or 'seconds'."
                why = f"this run was saved before its history had {name!r}."
                if name == "lower_solves" and result.y is None:
                    why = f"the problem has no lower level to solve. {instead}"
                elif name == "lower_solves":
                    solver = result.settings.get("solver_given", "this run")
                    why = f"{solver} counted none: it moves y along with x, or was saved before solves were counted. {instead}"
                raise SettingError(f"axis={self.axis!r}: {why}")
        spent = [np.concatenate([[0.0], np.cumsum(result.history[name])])[rounds] for result in results]
        return np.asarray(np.mean(spent, axis=0))

    def least(self, results: Sequence[Result]) -> float | None:
        """The value of the reference, of a gap; None for other scales.

        Raises ``SettingError`` if there is no reference: x is too large, or a result was loaded without its problem.
        """
        return results[0].require_problem("scale='gap'").reference().value if self.scale == "gap" else None

    def scaled(self, values: Any, least: float | None) -> np.ndarray:
        """Values of the objective as they are drawn; gaps that are 0, or below, are left out."""
        values = np.asarray(values, float)
        if least is None:
            return values
        return np.where(values == least, np.nan, np.abs(values - least))

    def finish(self, panel: Axes, name: str, *, objective: bool) -> None:
        """Label a panel and scale its axes."""
        gap = objective and self.scale == "gap"
        panel.set(xlabel=AXES[self.axis], ylabel="distance to reference()" if gap else plain(name))
        if gap or self.scale == "log":
            if not any((np.asarray(line.get_ydata(), float) > 0).any() for line in panel.lines):
                why = "no value but that of reference()" if gap else "no value is above 0: take scale='linear'"
                panel.text(0.5, 0.5, why, transform=panel.transAxes, horizontalalignment="center")
            panel.set_yscale("log", nonpositive="mask")
            low, high = panel.get_ylim()
            panel.set_ylim(bottom=max(low, 1e-16 * high))  # below it is rounding


DASHES = [style for style in ("-", "--", ":", "-.") for _ in COLOURS] * 8  # colours come again with other dashes
EVALUATED = 25  # points of a trajectory at which f is computed for its figure


def plot_result(
    result: Result, ax: Axes | None = None, axis: str = "rounds", scale: str = "linear", style: str = "screen"
) -> Figure:
    """Draw the objective by round (estimates, with their moving mean) and one panel per metric; returns the figure.

    Where the run's own y is not the exact one, f with the lower level solved is drawn along the trajectory, and the run's own
    estimates are thin. Errors as for ``Runs.plot``.
    """
    require_axes(ax)
    how = ConvergenceAxes(axis, scale)
    least = how.least([result])
    names = [name for name in result.metrics if name != "round"]
    with house_style(style):
        figure, drawn = panels(1 + len(names), 4.6, 3.4, style) if ax is None else (cast("Figure", ax.figure), [ax])
        _objective(drawn[0], result, how, least)
        for panel, name in zip(drawn[1:], names):
            panel.plot(how.at([result], result.metrics["round"]), result.metrics[name], marker="o", markersize=3)
            panel.set_title(plain(name))
            how.finish(panel, name, objective=False)
    return figure


def _objective(panel: Axes, result: Result, how: ConvergenceAxes, least: float | None) -> None:
    estimates = np.asarray(result.history.get("objective", np.zeros(0)), float)
    at = how.at([result], np.arange(1, len(estimates) + 1))
    exact, (smooth, window) = _exact_along(result), smoothed(estimates)
    whose = "the run's own y: " if exact is not None else ""
    look: dict[str, Any] = {"color": COLOURS[0], **({} if exact is None else {"linewidth": 0.8})}
    look |= {"marker": "o", "markersize": 3} if len(estimates) == 1 else {}
    thin = {"linewidth": 0.8, "alpha": 0.35} if window > 1 or exact is not None else {}
    panel.plot(at, how.scaled(estimates, least), label=f"{whose}estimate of a round", **{**look, **thin})
    if window > 1:
        panel.plot(at, how.scaled(smooth, least), label=f"{whose}mean of {window} rounds", **look)
    if exact is not None:
        rounds, values = exact
        look = {"color": COLOURS[1], "markersize": 3, "label": "f(x), the lower level solved"}
        panel.plot(how.at([result], rounds), how.scaled(values, least), "-o", **look)
    (end,) = how.scaled([result.value], least)
    if np.isfinite(end):
        said = f"at the end: {result.value:.4g}" if least is None else f"- f of reference() at the end: {end:.2g}"
        panel.axhline(end, color=COLOURS[1], linestyle="--", label=f"f(x) {said}")
    panel.set_title("objective")
    how.finish(panel, "objective", objective=True)
    panel.legend()


def smoothed(values: np.ndarray) -> tuple[np.ndarray, int]:
    """(histories, by round along the last axis, each through its moving mean; the rounds of that: a 25th of all)."""
    window = max(1, values.shape[-1] // 25)
    return np.apply_along_axis(moving_mean, -1, values, window) if window > 1 else values, window


def moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of the last ``window`` values, of as many as there are at the beginning."""
    sums = np.convolve(np.append(values, 0.0), np.ones(window))[: len(values)]  # no differences of sums, in which small values vanish
    return np.asarray(sums / np.minimum(np.arange(1, len(values) + 1), window))


@double_precision
def _exact_along(result: Result) -> tuple[np.ndarray, np.ndarray] | None:
    """(rounds, f there) along the trajectory, where the run's own y is not y(x); None where it is, or the problem is not known."""
    points = result.trajectory.get("x", np.zeros((0, 0)))
    if result.problem is None or result.own_value is None or not len(points):
        return None
    if abs(result.own_value - result.value) <= SAME * (1.0 + abs(result.value)):
        return None
    some = np.unique(np.linspace(0, len(points) - 1, min(len(points), EVALUATED)).round().astype(int))
    f = Points(result.problem.compile())
    return result.trajectory["round"][some], f.values(f.projected(np.asarray(points[some], float))).value


def plot_runs(
    groups: Mapping[str, Runs], ax: Axes | None = None, axis: str = "rounds", scale: str = "linear", style: str = "screen"
) -> Figure:
    """Draw a line with its 95% band for each group of runs; a panel for the objective and one per metric. Returns the figure; errors as for ``Runs.plot``."""
    require_axes(ax)
    how = ConvergenceAxes(axis, scale)
    shown = {name: runs for name, runs in groups.items() if runs.finished}
    metrics = {name: None for runs in shown.values() for name in runs.finished[0].metrics if name != "round"}
    with house_style(style):
        figure, drawn = panels(1 + len(metrics), 4.8, 3.6, style) if ax is None else (cast("Figure", ax.figure), [ax])
        curves = []
        for panel, name in zip(drawn, ("objective", *metrics)):
            lines: list[Line2D] = []
            window = 1
            for dashes, (label, runs) in zip(DASHES, shown.items()):
                count = len(runs.finished)
                called = label or (f"mean of {count} seeds, 95% band" if runs.over == "seeds" else f"the best of {count} starts")
                line, rounds = _band(panel, runs, name, called, dashes, how)
                lines, window = [*lines, line], max(window, rounds)
            curves.append(lines)
            panel.set_title(plain(f"{name}, mean of {window} rounds" if window > 1 else name))
            how.finish(panel, name, objective=name == "objective")
        if len(shown) > 1 and ax is None:
            name_curves(drawn, curves, list(shown))
        elif shown:
            drawn[0].legend()
    return figure


def _band(panel: Axes, runs: Runs, name: str, label: str, dashes: str, how: ConvergenceAxes) -> tuple[Line2D, int]:
    """Draw one mean with its band, of starts the best run and, thin, the others.

    Also gives the rounds of the moving mean that every run's history goes through first.
    """
    values, window = runs.values(name), 1
    if name not in runs.finished[0].metrics:
        values, window = smoothed(values)
    if name == "objective":
        values = how.scaled(values, how.least(runs.finished))
    at = how.at(runs.finished, runs.rounds(name))
    if runs.over == "starts":  # no sample of anything: no band
        (line,) = panel.plot(at, values[runs.finished.index(runs.best)], dashes, label=label)
        panel.plot(at, values.T, dashes, color=line.get_color(), linewidth=0.6, alpha=0.5)
        return line, window
    middle, half = np.mean(values, axis=0), half_width(values)
    (line,) = panel.plot(at, middle, dashes, label=label)
    low = middle - half
    if how.scale != "linear":  # what has no logarithm is drawn to a tenth of the least mean
        low = np.maximum(low, np.nanmin(np.where(middle > 0, middle, np.nan)) / 10) if (middle > 0).any() else low
    panel.fill_between(at, low, middle + half, color=line.get_color(), alpha=0.2, linewidth=0)
    return line, window
