"""The convergence figures of a run, and of several: what they are drawn against, how values are scaled, and the curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hierfl.errors import SettingError
from hierfl.house_style import COLOURS, house_style, panels, require_axes, require_style
from hierfl.inspect.implicit.points import Points
from hierfl.inspect.pictures.line_labels import name_curves
from hierfl.jaxtools.precision import double_precision
from hierfl.near_names import near_names
from hierfl.result import SAME, Result
from hierfl.runs import half_width

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from hierfl.result import Result
    from hierfl.runs import Runs


AXES = {
    "rounds": "round",
    "communication": "scalars sent, down and up",
    "seconds": "seconds",
    "lower solves": "lower solves",
}
SCALES = ("linear", "log", "gap")
_PER_ROUND = {"communication": "scalars", "seconds": "seconds", "lower solves": "lower_solves"}


@dataclass(frozen=True)
class ConvergenceAxes:
    """The choice of an ``axis`` and a ``scale``.

    Parameters
    ----------
    axis
        ``"rounds"``, ``"communication"`` (scalars sent up to a round), ``"seconds"`` (that rounds took up to it, compilation left out) or
        ``"lower solves"`` (one y at one point each, as the run counted them).
    scale
        ``"linear"``, ``"log"``, or ``"gap"``: the distance of objectives to ``problem.reference()``, on a logarithmic axis.

    Raises
    ------
    SettingError
        Naming what there is instead.
    """

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
                raise SettingError(f"axis={self.axis!r}: {self._why_missing(name, result)}")
        spent = [np.concatenate([[0.0], np.cumsum(result.history[name])])[rounds] for result in results]
        return np.asarray(np.mean(spent, axis=0))

    def _why_missing(self, name: str, result: Result) -> str:
        instead = "Write axis='rounds', 'communication' or 'seconds'."
        if name != "lower_solves":
            return f"this run was saved before its history had {name!r}."
        if result.y is None:
            return f"the problem has no lower level to solve. {instead}"
        solver = result.settings.get("solver_given", "this run")
        return f"{solver} counted none: it moves y along with x, or was saved before solves were counted. {instead}"

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
        gap = np.abs(values - least)
        return np.where(gap > 0, gap, np.nan)

    def finish(self, panel: Axes, name: str, *, objective: bool) -> None:
        """Label a panel and scale its axes."""
        gap = objective and self.scale == "gap"
        panel.set(xlabel=AXES[self.axis], ylabel="distance to reference()" if gap else name)
        if gap or self.scale == "log":
            panel.set_yscale("log", nonpositive="mask")


DASHES = [style for style in ("-", "--", ":", "-.") for _ in COLOURS] * 8  # colours come again with other dashes
EVALUATED = 25  # points of a trajectory at which f is computed for its figure


def plot_result(
    result: Result, ax: Axes | None = None, axis: str = "rounds", scale: str = "linear", style: str = "screen"
) -> Figure:
    """Draw the objective by round (estimates, with their moving mean) and one panel per metric; returns the figure.

    Where the run's own y is not the exact one, f with the lower level solved is drawn along the trajectory, and the run's own
    estimates are thin.

    Raises ``SettingError`` if ``ax`` is no matplotlib axes; for an axis, a scale or a style that there is not, and a
    gap without a reference.
    """
    require_axes(ax)
    how = ConvergenceAxes(axis, scale)
    least = how.least([result])
    names = [name for name in result.metrics if name != "round"]
    with house_style(require_style(style)):
        if ax is None:
            figure, drawn = panels(1 + len(names), 4.6, 3.4, style)
        else:
            figure, drawn, names = cast("Figure", ax.figure), [ax], []
        _objective(drawn[0], result, how, least)
        for panel, name in zip(drawn[1:], names):
            panel.plot(how.at([result], result.metrics["round"]), result.metrics[name], marker="o", markersize=3)
            panel.set_title(name)
            how.finish(panel, name, objective=False)
    return figure


def _objective(panel: Axes, result: Result, how: ConvergenceAxes, least: float | None) -> None:
    estimates = np.asarray(result.history.get("objective", np.zeros(0)), float)
    at = how.at([result], np.arange(1, len(estimates) + 1))
    window, exact = max(1, len(estimates) // 25), exact_along(result)
    whose = "the run's own y: " if exact is not None else ""
    thin: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.35} if window > 1 or exact is not None else {}
    panel.plot(at, how.scaled(estimates, least), color=COLOURS[0], label=f"{whose}estimate of a round", **thin)
    if window > 1:
        look: dict[str, Any] = {"linewidth": 0.8} if exact is not None else {}
        mean = how.scaled(moving_mean(estimates, window), least)
        panel.plot(at, mean, color=COLOURS[0], label=f"{whose}mean of {window} rounds", **look)
    if exact is not None:
        rounds, values = exact
        f = how.scaled(values, least)
        panel.plot(
            how.at([result], rounds), f, "-o", color=COLOURS[1], markersize=3, label="f(x), the lower level solved"
        )
    (end,) = how.scaled([result.value], least)
    if np.isfinite(end):
        said = (
            f"f(x) at the end: {result.value:.4g}"
            if least is None
            else f"f(x) - f of reference() at the end: {end:.2g}"
        )
        panel.axhline(end, color=COLOURS[1], linestyle="--", label=said)
    panel.set_title("objective")
    how.finish(panel, "objective", objective=True)
    panel.legend()


def moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of the last ``window`` values, of as many as there are at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(last - window, 0)
    return np.asarray((sums[last] - sums[first]) / (last - first))


@double_precision
def exact_along(result: Result) -> tuple[np.ndarray, np.ndarray] | None:
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
    groups: Mapping[str, Runs],
    ax: Axes | None = None,
    axis: str = "rounds",
    scale: str = "linear",
    style: str = "screen",
) -> Figure:
    """Draw a line with its 95% band for each group of runs; a panel for the objective and one per metric. Returns the figure.

    Raises ``SettingError`` if ``ax`` is no matplotlib axes; for an axis, a scale or a style that there is not, and a
    gap without a reference.
    """
    require_axes(ax)
    how = ConvergenceAxes(axis, scale)
    shown = {name: runs for name, runs in groups.items() if runs.finished}
    metrics = {name: None for runs in shown.values() for name in runs.finished[0].metrics if name != "round"}
    with house_style(require_style(style)):
        if ax is None:
            figure, drawn = panels(1 + len(metrics), 4.8, 3.6, style)
        else:
            figure, drawn = cast("Figure", ax.figure), [ax]
        curves = []
        for panel, name in zip(drawn, ("objective", *metrics)):
            bands = [
                _band(panel, runs, name, label or f"mean of {len(runs.finished)} seeds, 95% band", DASHES[place], how)
                for place, (label, runs) in enumerate(shown.items())
            ]
            curves.append([line for line, _ in bands])
            window = max((window for _, window in bands), default=1)
            panel.set_title(f"{name}, mean of {window} rounds" if window > 1 else name)
            how.finish(panel, name, objective=name == "objective")
        if len(shown) > 1 and ax is None:
            name_curves(drawn, curves, list(shown))
        elif shown:
            drawn[0].legend()
    return figure


def _band(panel: Axes, runs: Runs, name: str, label: str, dashes: str, how: ConvergenceAxes) -> tuple[Line2D, int]:
    """Draw one mean with its band; also gives the rounds of the moving mean that every run's history goes through first."""
    values, window = runs.values(name), 1
    if name in runs.finished[0].metrics:
        rounds = runs.rounds(name)
    else:
        window = max(1, values.shape[1] // 25)
        values = np.stack([moving_mean(row, window) for row in values])
        rounds = np.arange(1, 1 + values.shape[1])
    if name == "objective":
        values = how.scaled(values, how.least(runs.finished))
    middle, half, at = np.mean(values, axis=0), half_width(values), how.at(runs.finished, rounds)
    (line,) = panel.plot(at, middle, dashes, label=label)
    low = middle - half
    if how.scale != "linear":  # what has no logarithm is drawn to a tenth of the least mean
        low = np.maximum(low, np.nanmin(np.where(middle > 0, middle, np.nan)) / 10) if (middle > 0).any() else low
    panel.fill_between(at, low, middle + half, color=line.get_color(), alpha=0.2, linewidth=0)
    return line, window
