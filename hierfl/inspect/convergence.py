"""The convergence figure of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.inspect.style import house_style

if TYPE_CHECKING:
    from hierfl.result import Result


def plot_result(result: Result, ax: Any = None) -> Any:
    """Objective by round (estimates, with their moving mean) and one panel per metric; returns the figure."""
    import matplotlib.pyplot as plt

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


def _objective(panel: Any, result: Result) -> None:
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
