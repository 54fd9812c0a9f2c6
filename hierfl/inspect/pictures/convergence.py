"""The convergence figures of a run, and of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierfl.inspect.pictures.style import house_style, require_axes
from hierfl.runs import half_width

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hierfl.result import Result
    from hierfl.runs import Runs


def plot_result(result: Result, ax: Axes | None = None) -> Figure:
    """Draw the objective by round (estimates, with their moving mean) and one panel per metric; returns the figure.

    Raises
    ------
    SettingError
        If ``ax`` is no matplotlib axes.
    """
    import matplotlib.pyplot as plt

    require_axes(ax)
    names = [name for name in result.metrics if name != "round"]
    with house_style():
        if ax is None:
            figure, axes = plt.subplots(1, 1 + len(names), figsize=(4.6 * (1 + len(names)), 3.4), squeeze=False)
            panels = list(axes[0])
        else:
            figure, panels, names = ax.figure, [ax], []
        _objective(panels[0], result)
        for panel, name in zip(panels[1:], names):
            panel.plot(result.metrics["round"], result.metrics[name], marker="o", markersize=3)
            panel.set(xlabel="round", ylabel=name, title=name)
    return figure


def _objective(panel: Axes, result: Result) -> None:
    estimates = result.history.get("objective", np.zeros(0))
    rounds = np.arange(1, len(estimates) + 1)
    window = max(1, len(estimates) // 25)
    panel.plot(rounds, estimates, alpha=0.3 if window > 1 else 1.0, label="estimate of a round")
    if window > 1:
        mean = np.convolve(estimates, np.full(window, 1 / window), mode="valid")
        panel.plot(rounds[window - 1 :], mean, color="C0", label=f"mean of {window} rounds")
    panel.axhline(result.value, color="C1", linestyle="--", label=f"f(x) at the end: {result.value:.4g}")
    panel.set(xlabel="round", ylabel="objective", title="objective")
    panel.legend(fontsize=8)


def plot_runs(groups: Mapping[str, Runs], ax: Axes | None = None) -> Figure:
    """Draw a line with its 95% band for each group of runs; a panel for the objective and one per metric. Returns the figure.

    Raises
    ------
    SettingError
        If ``ax`` is no matplotlib axes.
    """
    import matplotlib.pyplot as plt

    require_axes(ax)
    shown = {name: runs for name, runs in groups.items() if runs.finished}
    metrics = {name: None for runs in shown.values() for name in runs.finished[0].metrics if name != "round"}
    with house_style():
        if ax is None:
            columns = 1 + len(metrics)
            figure, axes = plt.subplots(1, columns, figsize=(4.8 * columns, 3.6), squeeze=False)
            panels = list(axes[0])
        else:
            figure, panels = ax.figure, [ax]
        for panel, name in zip(panels, ("objective", *metrics)):
            windows = [
                _band(panel, runs, name, label or f"mean of {len(runs.finished)} seeds, 95% band")
                for label, runs in shown.items()
            ]
            title = f"{name}, mean of {max(windows)} rounds" if max(windows, default=1) > 1 else name
            panel.set(xlabel="round", ylabel=name, title=title)
        if shown:
            panels[0].legend(fontsize=8)
    return figure


def _band(panel: Axes, runs: Runs, name: str, label: str) -> int:
    """Draw one mean with its band; returns the rounds of the moving mean that every run's history goes through first."""
    values, window = runs.values(name), 1
    if name in runs.finished[0].metrics:
        rounds = runs.rounds(name)
    else:
        window = max(1, values.shape[1] // 25)
        if values.shape[1]:
            values = np.apply_along_axis(np.convolve, 1, values, np.full(window, 1 / window), mode="valid")
        rounds = np.arange(window, window + values.shape[1])
    middle, half = np.mean(values, axis=0), half_width(values)
    (line,) = panel.plot(rounds, middle, label=label)
    panel.fill_between(rounds, middle - half, middle + half, color=line.get_color(), alpha=0.2, linewidth=0)
    return window
