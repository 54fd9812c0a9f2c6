"""The convergence figures of a report: one panel for each quantity, of one run or with bands over several seeds.

All figures of a report have their axes, fonts, and bands that stop at gaps from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.house_style import COLOURS
from hierfl.inspect.report.page import escaped, plotly
from hierfl.runs import half_width

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from hierfl.result import Result
    from hierfl.runs import Runs


FONT = {"family": "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif", "size": 13}


def styled(figure: Figure, **layout: Any) -> Figure:
    """Give a figure the report's style; returns it."""
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


def outline(t: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[list[float | None], list[float | None]]:
    """Trace the polygon between two curves, one for each stretch without gaps."""
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


SHOWN = 1500  # points of a curve
COLUMNS = {
    "objective": "objective, the run's own estimates",
    "gradient_norm": "norm of the gradient's estimate",
    "lower_residual": "residual of the lower level in the run",
}
WIDE_RANGE = 1e3  # of positive numbers: above, the axis is logarithmic


class ConvergenceCurve(NamedTuple):
    """A quantity by round; ``half_width`` is that of the 95% band over seeds, None for a single run."""

    rounds: np.ndarray
    value: np.ndarray
    half_width: np.ndarray | None
    window: int


def quantities(result: Result) -> list[str]:
    """List the columns of the history that hold anything (a residual that is always 0 does not), and the metrics."""
    columns = [name for name in COLUMNS if np.isfinite(result.history.get(name, np.zeros(0))).any()]
    if not np.any(result.history.get("lower_residual", 0.0)):
        columns = [name for name in columns if name != "lower_residual"]
    return columns + [name for name in result.metrics if name != "round" and len(result.metrics[name])]


def _convergence_curve(result: Result, runs: Runs | None, name: str) -> ConvergenceCurve:
    """Follow one quantity of a run; of several runs its mean over the seeds, with the moving mean that smooths estimates."""
    metric = name in result.metrics
    group = runs if runs is not None and len(runs.finished) > 1 else None
    values = np.atleast_2d(group.values(name) if group is not None else _column(result, name))
    window = 1 if metric else max(1, values.shape[1] // 25)
    if window > 1:
        values = np.apply_along_axis(np.convolve, 1, values, np.full(window, 1 / window), mode="valid")
    count = values.shape[1]
    made = (
        group.rounds(name) if group is not None else result.metrics["round"] if metric else np.arange(1, window + count)
    )
    return ConvergenceCurve(
        made[window - 1 :], values.mean(axis=0), half_width(values) if len(values) > 1 else None, window
    )


def convergence_figure(result: Result, runs: Runs | None, name: str) -> Figure:
    """Draw a quantity by round; returns Plotly's figure."""
    go = plotly().graph_objects
    figure, shown = go.Figure(), _convergence_curve(result, runs, name)
    seeds = len(runs.finished) if runs is not None and shown.half_width is not None else 1
    if shown.window > 1 and seeds == 1:
        every = _thinned(len(_column(result, name)))
        figure.add_trace(
            go.Scatter(x=1 + every, y=_column(result, name)[every], name="each round", mode="lines",
                       line={"color": faint(COLOURS[0]), "width": 1})
        )  # fmt: skip
    every = _thinned(len(shown.value))
    if shown.half_width is not None:
        low, high = shown.value - shown.half_width, shown.value + shown.half_width
        x, y = outline(shown.rounds[every], low[every], high[every])
        figure.add_trace(
            go.Scatter(
                x=x, y=y, fill="toself", mode="none", fillcolor=faint(COLOURS[0]), name="95% band", hoverinfo="skip"
            )
        )
    figure.add_trace(
        go.Scatter(x=shown.rounds[every], y=shown.value[every], name=_label(shown.window, seeds),
                   mode="lines+markers" if len(every) < 30 else "lines", line={"color": COLOURS[0], "width": 2})
    )  # fmt: skip
    if name == "objective" and np.isfinite(result.value):
        ends = [0, int(shown.rounds[-1]) if len(shown.rounds) else 1]
        label = f"f at the end{' of the best run' if seeds > 1 else ''}: {result.value:.6g}"
        figure.add_trace(
            go.Scatter(
                x=ends, y=[result.value] * 2, name=label, mode="lines", line={"color": COLOURS[1], "dash": "dash"}
            )
        )
    figure.update_xaxes(title_text="round", title_standoff=8)
    figure.update_yaxes(type="log" if _is_wide(shown.value) else "linear", exponentformat="power")
    return styled(figure, height=360, showlegend=True)


def title(name: str) -> str:
    """Say what a panel shows."""
    return escaped(COLUMNS.get(name, name))


def _column(result: Result, name: str) -> np.ndarray:
    return np.asarray(result.history[name] if name in result.history else result.metrics[name], dtype=float)


def _label(window: int, seeds: int) -> str:
    over = f"mean of {window} rounds" if window > 1 else ""
    if seeds > 1:
        return f"mean of {seeds} seeds" + (f", {over}" if over else "")
    return over or "each round"


def _thinned(count: int) -> np.ndarray:
    return (
        np.unique(np.linspace(0, max(0, count - 1), min(count, SHOWN)).round().astype(int))
        if count
        else np.zeros(0, int)
    )


def _is_wide(values: np.ndarray) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size and finite.min() > 0 and finite.max() > WIDE_RANGE * finite.min())
