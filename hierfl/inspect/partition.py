"""The label histogram over the clients: how heterogeneous a federation is, at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hierfl.inspect.style import house_style


def plot_partition(counts: np.ndarray, class_names: Sequence[str] | None = None, ax: Any = None) -> Any:
    """Stacked horizontal bars, one per client.

    Parameters
    ----------
    counts
        ``(clients, classes)`` numbers of samples.
    class_names
        Names in the legend; default the class indices.

    Returns
    -------
    The matplotlib figure.
    """
    import matplotlib.pyplot as plt

    names = [str(c) for c in range(counts.shape[1])] if class_names is None else list(class_names)
    with house_style():
        if ax is None:
            _, ax = plt.subplots(figsize=(6.5, 0.6 + 0.3 * len(counts)))
        shades = plt.get_cmap("viridis")(np.linspace(0, 1, counts.shape[1]))
        left = np.zeros(len(counts))
        for label, (name, shade) in enumerate(zip(names, shades)):
            ax.barh(np.arange(len(counts)), counts[:, label], left=left, color=shade, label=name, height=0.8)
            left += counts[:, label]
        ax.set(xlabel="samples", ylabel="client", yticks=np.arange(len(counts)))
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.legend(title="class", fontsize=7, title_fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax.figure
