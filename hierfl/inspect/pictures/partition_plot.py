"""The label histogram over the clients: how heterogeneous a federation is, at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hierfl.errors import DataError
from hierfl.inspect.pictures.style import COLUMN, house_figure, house_style, require_axes, require_style
from hierfl.language.federation.federated_data import Federation
from hierfl.language.sample import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TICKS = 40  # more client names than this would overlap
_ROWS = 10  # legend entries in one column


def label_counts(federation: Federation, label: Sample, classes: Any = None) -> np.ndarray:
    """Count how many samples of each class each client holds.

    Parameters
    ----------
    label
        The sample that holds the classes: one-hot, ``(classes,)``, or a scalar.
    classes
        For a scalar label, its values in the order of the columns; default all values that occur, sorted.

    Returns
    -------
    Integers ``(clients, classes)``.

    Raises
    ------
    DataError
        If a client does not hold the label, holds a distribution, or the label is neither scalar nor one-hot; if a
        client holds a value outside ``classes``.
    """
    rows = [_label_rows(federation, index, label) for index in range(federation.num_clients)]
    if label.ndim == 1 and label.size > 1:
        if classes is not None:
            raise DataError(f"classes= is for scalar labels; sample {label.name()!r} is one-hot.")
        return np.stack([r.astype(int).sum(axis=0) for r in rows])
    values = np.unique(np.concatenate(rows)) if classes is None else np.asarray(classes)
    counts = np.stack([(r[:, None] == values).sum(axis=0) for r in rows])
    for index, (row, counted) in enumerate(zip(rows, counts.sum(axis=1))):
        if counted != len(row):
            raise DataError(f"client {index} holds {len(row) - counted} values of {label.name()!r} outside classes.")
    return counts


def plot_partition(
    counts: Any, class_names: Sequence[str] | None = None, ax: Axes | None = None, style: str = "screen"
) -> Figure:
    """Draw stacked horizontal bars, one per client; the classes run from dark to light, readable without colour vision.

    Parameters
    ----------
    counts
        ``(clients, classes)`` numbers of samples, as :func:`label_counts` gives them.
    class_names
        Names in the legend; default the class indices.
    ax
        Axes to draw on; a new figure by default.
    style
        ``"screen"``, or ``"paper"`` for a column of 3.4 inches.

    Returns
    -------
    The matplotlib figure.

    Raises
    ------
    DataError
        If ``counts`` is not a matrix of nonnegative numbers, or ``class_names`` differ in number from its columns.
    SettingError
        If ``ax`` is no matplotlib axes; for a style that there is not.
    """
    import matplotlib.pyplot as plt

    require_axes(ax)
    counts = _matrix(counts)
    clients, classes = counts.shape
    names = [str(c) for c in range(classes)] if class_names is None else [str(name) for name in class_names]
    if len(names) != classes:
        raise DataError(f"class_names has {len(names)} names for {classes} classes, the columns of counts.")
    with house_style(require_style(style)):
        if ax is None:
            height = max(2.2, 0.8 + min(0.3 * clients, 9.0))
            size = (COLUMN, min(height, 4.0)) if style == "paper" else (6.5, height)
            _, ax = plt.subplots(figsize=size, FigureClass=house_figure())
        shades = plt.get_cmap("viridis")(np.linspace(0, 1, classes))
        edge: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.5} if clients <= _TICKS else {}
        left = np.zeros(clients)
        for label, (name, shade) in enumerate(zip(names, shades)):
            ax.barh(np.arange(clients), counts[:, label], left=left, color=shade, label=name, height=0.8, **edge)
            left += counts[:, label]
        ax.set(xlabel="samples", ylabel="client", yticks=np.arange(0, clients, -(-clients // _TICKS)))
        # explicit: an empty last class would pin matplotlib's own limit to the end of the longest bar
        ax.set(xlim=(0, 1.03 * left.max() or 1), ylim=(clients - 0.4, -0.6))
        ax.grid(visible=False, axis="y")
        ax.set_axisbelow(True)
        ax.legend(
            title="class",
            title_fontsize=plt.rcParams["legend.fontsize"],
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            ncols=-(-classes // _ROWS),
        )
    return cast("Figure", ax.figure)


def _label_rows(federation: Federation, index: int, label: Sample) -> np.ndarray:
    client, what = federation.clients[index], f"sample {label.name()!r}"
    if not client.holds(label):
        raise DataError(f"client {index} holds no data for {what}.")
    if client.is_distribution(label):
        raise DataError(f"client {index} holds {what} as a distribution: it has no counts.")
    rows = np.asarray(client.samples[label])
    if label.size == 1:
        return rows.reshape(-1)
    if label.ndim != 1 or not np.isin(rows, (0, 1)).all() or (rows.sum(axis=1) != 1).any():
        raise DataError(f"{what} of client {index} is not a class label: one number, or one-hot.")
    return rows


def _matrix(counts: Any) -> np.ndarray:
    array = np.asarray(counts)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "biuf":
        raise DataError(f"counts has shape {array.shape} and dtype {array.dtype}; expected numbers (clients, classes).")
    if not np.isfinite(array).all() or (array < 0).any():
        raise DataError("counts must be finite and not negative.")
    return array
