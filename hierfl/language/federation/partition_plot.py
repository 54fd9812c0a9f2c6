"""The label histogram over the clients: how heterogeneous a federation is, at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hierfl.errors import DataError
from hierfl.house_style import COLOURS, COLUMN, house_figure, house_style, require_axes, require_style
from hierfl.language.federation.client import Client
from hierfl.language.federation.elsewhere import Elsewhere
from hierfl.language.sample import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hierfl.language.federation.federated_data import Federation

BARS = 100  # clients: more have a band of each class, drawn as one, in place of bars
APART = 6  # colours of the palette that differ to every eye; more classes run from dark to light
UNKNOWN = {"color": "0.85", "hatch": "///", "edgecolor": "white"}  # rows whose classes are not known here
TICKS = 20  # more client names than this would overlap
_ROWS = 10  # legend entries in one column
_NAME = 16  # characters of a client's name


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
    Integers ``(clients, classes)``; zeros for a client whose rows are :class:`hierfl.Elsewhere`.

    Raises
    ------
    DataError
        If a client does not hold the label, holds a distribution, or the label is neither scalar nor one-hot; if a
        client holds a value outside ``classes``, or the rows of all are elsewhere.
    """
    return counted(federation.clients, label, classes)[0]


def counted(clients: Sequence[Client], label: Sample, classes: Any = None) -> tuple[np.ndarray, list[str]]:
    """``label_counts`` of some clients, and the names of the classes."""
    rows = [_label_rows(client, index, label) for index, client in enumerate(clients)]
    here = [own for own in rows if own is not None]
    if not here:
        raise DataError(f"sample {label.name()!r} is elsewhere at every client: its classes are not known here.")
    if label.ndim == 1 and label.size > 1:
        if classes is not None:
            raise DataError(f"classes= is for scalar labels; sample {label.name()!r} is one-hot.")
        counts = np.stack([np.zeros(label.size, int) if r is None else r.astype(int).sum(axis=0) for r in rows])
        return counts, [str(place) for place in range(label.size)]
    values = np.unique(np.concatenate(here)) if classes is None else np.asarray(classes)
    counts = np.stack([np.zeros(len(values), int) if r is None else (r[:, None] == values).sum(axis=0) for r in rows])
    for index, (row, total) in enumerate(zip(rows, counts.sum(axis=1))):
        if row is not None and total != len(row):
            raise DataError(f"client {index} holds {len(row) - total} values of {label.name()!r} outside classes.")
    return counts, [f"{value:g}" for value in values]


def plot_partition(
    counts: Any,
    class_names: Sequence[str] | None = None,
    ax: Axes | None = None,
    style: str = "screen",
    *,
    client_names: Sequence[str] | None = None,
    unknown: Any = None,
) -> Figure:
    """Draw stacked horizontal bars, one per client.

    Up to six classes have the colours of the palette that everybody can tell apart; more run from dark to light, readable without
    colour vision. Over a hundred clients have a band of each class in place of bars.

    Parameters
    ----------
    counts
        ``(clients, classes)`` numbers of samples, as :func:`label_counts` gives them.
    class_names
        Names in the legend; default the class indices. There is no legend where they are empty.
    ax
        Axes to draw on; a new figure by default.
    style
        ``"screen"``, or ``"paper"`` for a column of 3.4 inches.
    client_names
        Names along the axis; default the clients' indices.
    unknown
        ``(clients,)`` numbers of samples of no known class, drawn in grey behind the others.

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
    from matplotlib.ticker import MaxNLocator

    require_axes(ax)
    counts = _matrix(counts)
    clients, classes = counts.shape
    names = [str(c) for c in range(classes)] if class_names is None else [str(name) for name in class_names]
    if len(names) != classes:
        raise DataError(f"class_names has {len(names)} names for {classes} classes, the columns of counts.")
    rest = np.zeros(clients) if unknown is None else np.asarray(unknown, float)
    with house_style(require_style(style)):
        figure, ax = client_panel(ax, clients, style)
        looks = [{"color": shade, "edgecolor": "white"} for shade in _shades(classes)]
        left = np.zeros(clients)
        for label, (name, look) in enumerate(zip(names, looks)):
            _stack(ax, left, counts[:, label], label=name, **look)
            left = left + counts[:, label]
        if rest.any():
            _stack(ax, left, rest, label="elsewhere", **UNKNOWN)
            left = left + rest
        client_axis(ax, clients, client_names)
        # explicit: an empty last class would pin matplotlib's own limit to the end of the longest bar
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        ax.set(xlabel="samples", xlim=(0, 1.03 * left.max() or 1))
        if any(names) or rest.any():
            ax.legend(
                title="class" if any(names) else None,
                title_fontsize=plt.rcParams["legend.fontsize"],
                loc="center left",
                bbox_to_anchor=(1.0, 0.5),
                ncols=-(-(classes + 1) // _ROWS) if classes > _ROWS else 1,
            )
    return figure


def client_panel(ax: Axes | None, clients: int, style: str) -> tuple[Figure, Axes]:
    """The axes that are given, or those of a new figure for so many clients below each other: one of hundreds still fits a screen."""
    import matplotlib.pyplot as plt

    if ax is not None:
        return cast("Figure", ax.figure), ax
    height = float(max(2.2, 0.9 + min(0.3 * clients, 4.4)))
    size = (COLUMN, min(height, 4.0)) if style == "paper" else (6.5, height)
    figure, panel = plt.subplots(figsize=size, FigureClass=house_figure())
    return figure, panel


def client_axis(ax: Axes, clients: int, names: Sequence[str] | None) -> None:
    """Label the axis along which clients stand, the first on top."""
    ticks = list(range(0, clients, -(-clients // TICKS)))
    ax.set(ylabel="client", ylim=(clients - 0.4, -0.6))
    ax.set_yticks(ticks, None if names is None else [shortened(names[place]) for place in ticks])
    ax.grid(visible=False, axis="y")
    ax.set_axisbelow(True)


def shortened(name: str) -> str:
    """A client's name where there is little room."""
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def _shades(classes: int) -> Sequence[Any]:
    import matplotlib.pyplot as plt

    if classes <= APART:
        return COLOURS[:classes]
    return list(plt.get_cmap("viridis")(np.linspace(0, 1, classes)))


def _stack(ax: Axes, left: np.ndarray, width: np.ndarray, **look: Any) -> None:
    """One class of every client, from ``left`` on."""
    places = np.arange(len(left))
    if len(left) <= BARS:
        ax.barh(places, width, left=left, height=0.8, linewidth=0.5 if len(left) <= 2 * TICKS else 0.0, **look)
        return
    edges, start, end = (np.append(values, values[-1]) for values in (places - 0.5, left, left + width))
    edges[-1] = len(left) - 0.5
    ax.fill_betweenx(edges, start, end, step="post", linewidth=0.0, **look)


def _label_rows(client: Client, index: int, label: Sample) -> np.ndarray | None:
    """The label of every row of a client; None where the rows are elsewhere."""
    what = f"sample {label.name()!r}"
    if not client.holds(label):
        raise DataError(f"client {index} holds no data for {what}.")
    if client.is_distribution(label):
        raise DataError(f"client {index} holds {what} as a distribution: it has no counts.")
    if isinstance(client.samples[label], Elsewhere):
        return None
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
