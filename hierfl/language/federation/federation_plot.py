"""The picture of a federation: rows of each client and their classes, the spread of a number, or the weights."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hierfl.errors import DataError
from hierfl.house_style import COLOURS, COLUMN, house_figure, house_style, require_axes, require_style
from hierfl.language.federation.client import Client
from hierfl.language.federation.sample_values import Elsewhere, described
from hierfl.language.sample import Sample
from hierfl.near_names import near_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES = 20  # more values than this are no classes
MIDDLE = (0.05, 0.5, 0.95)  # quantiles
WIDTH = {"screen": 66, "paper": 50}  # characters of a title's line
BARS = 100  # clients: more have a band of each class, drawn as one, in place of bars
APART = 6  # colours of the palette that differ to every eye; more classes run from dark to light
UNKNOWN = {"color": "0.85", "hatch": "///", "edgecolor": "white"}  # rows whose classes are not known here
TICKS = 20  # more client names than this would overlap
LEGEND_ROWS = 10  # entries in one column
NAME = 16  # characters of a client's name


def plot_federation(
    clients: Sequence[Client],
    weights: str | np.ndarray,
    title: str,
    sample: Sample | None,
    ax: Axes | None,
    style: str,
) -> Figure:
    """Draw what clients hold; see ``Federation.plot``."""
    require_axes(ax)
    require_style(style)
    labels = (own for own in clients[0].samples if _is_class_label(clients, own))
    chosen = next(labels, None) if sample is None else _require_held(clients, sample)
    names = [str(place) if client.name is None else client.name for place, client in enumerate(clients)]
    if sample is None and chosen is None and not _has_rows(clients):
        chosen = next((held for held in clients[0].samples if held.size == 1), None)
    with house_style(style):
        figure, panel = _panel(ax, len(clients), style)
        if chosen is None and not _has_rows(clients):
            _weights(panel, weights, len(clients))
        elif chosen is None:
            _rows(panel, clients)
        elif _is_class_label(clients, chosen):
            _classes(panel, clients, chosen)
        else:
            _spread(panel, clients, chosen)
        _axis(panel, names)
        if ax is None:
            text = title.removeprefix("Federation(").removesuffix(")").replace("; weights uniform", "")
            figure.suptitle(fill(text, WIDTH[style]), fontsize="medium" if style == "screen" else None)
    return figure


# --- what can be drawn -------------------------------------------------------------------------------------------------


def _require_held(clients: Sequence[Client], sample: Sample) -> Sample:
    known = [held.name() for held in clients[0].samples]
    if not isinstance(sample, Sample):
        raise DataError(f"plot({sample!r}): one of the clients' samples: {', '.join(known) or 'they hold none'}.")
    if any(not client.holds(sample) for client in clients):
        hint = near_names(sample.name(), known)
        raise DataError(f"plot: the clients hold no data for {described(sample)}: {hint}")
    if sample.size > 1 and not _is_class_label(clients, sample):
        raise DataError(f"plot: {described(sample)} is neither a class label (one-hot) nor one number: give another.")
    if all(_is_elsewhere(client, sample) for client in clients):
        raise DataError(f"plot: {described(sample)} is elsewhere at every client; plot() draws the numbers of rows.")
    return sample


def _is_class_label(clients: Sequence[Client], sample: Sample) -> bool:
    """Whether all rows that are here are one-hot, or whole numbers of which there are few."""
    if sample.ndim > 1 or sample.size > CLASSES or any(client.is_distribution(sample) for client in clients):
        return False
    here = [np.asarray(client.samples[sample]) for client in clients if not _is_elsewhere(client, sample)]
    if sample.size > 1:
        return bool(here) and all(np.isin(rows, (0, 1)).all() and (rows.sum(axis=1) == 1).all() for rows in here)
    values: np.ndarray = np.zeros(0)
    for rows in here:
        values = np.union1d(values, rows)
        if len(values) > CLASSES or (values != np.round(values)).any():
            return False
    return len(values) > 1


def _is_elsewhere(client: Client, sample: Sample) -> bool:
    return isinstance(client.samples[sample], Elsewhere)


def _has_rows(clients: Sequence[Client]) -> bool:
    return any(client.num_samples(sample) is not None for client in clients for sample in client.samples)


# --- the pictures ------------------------------------------------------------------------------------------------------


def _classes(panel: Axes, clients: Sequence[Client], label: Sample) -> None:
    """How many rows of each class each client has; rows that are elsewhere are grey."""
    rows = [None if _is_elsewhere(client, label) else np.asarray(client.samples[label]) for client in clients]
    unknown = np.array([len(client.samples[label]) if own is None else 0 for client, own in zip(clients, rows)])
    if label.size > 1:
        values = np.arange(label.size)
        rows = [None if own is None else own.argmax(axis=1) for own in rows]
    else:
        values = np.unique(np.concatenate([own.ravel() for own in rows if own is not None]))
    counts = [np.zeros(len(values), int) if own is None else (own.reshape(-1, 1) == values).sum(axis=0) for own in rows]
    _stacked(panel, np.stack(counts), [f"{value:g}" for value in values], unknown)
    panel.set_xlabel(f"samples, by their {label.name()}")
    _name_classes(panel, len(values))


def _rows(panel: Axes, clients: Sequence[Client]) -> None:
    """Numbers of rows, of the table of the first sample that has some."""
    held = clients[0].samples
    counted_by = next(own for own in held if any(client.num_samples(own) is not None for client in clients))
    rows = np.array([client.num_samples(counted_by) or 0 for client in clients])
    here = np.array([0 if _is_elsewhere(client, counted_by) else count for client, count in zip(clients, rows)])
    _stacked(panel, here[:, None], [""], rows - here)
    elsewhere = " (hatched: elsewhere)" if (rows > here).any() else ""
    panel.set_xlabel(f"samples of {counted_by.name()}{elsewhere}")


def _spread(panel: Axes, clients: Sequence[Client], sample: Sample) -> None:
    """Median and middle of a scalar at each client, of its rows or of its distribution."""
    low, middle, high = np.array([_quantiles(client, sample) for client in clients]).T
    places, few = np.arange(len(clients)), len(clients) <= 40
    panel.hlines(places, low, high, color=COLOURS[0], alpha=0.5, linewidth=4 if few else 1)
    panel.plot(middle, places, linestyle="", marker="o", markersize=4 if few else 2, color=COLOURS[1])
    elsewhere = ", elsewhere unknown" if np.isnan(middle).any() else ""
    panel.set_xlabel(f"{sample.name()}: median, and 5 to 95 %{elsewhere}")


def _quantiles(client: Client, sample: Sample) -> np.ndarray:
    if _is_elsewhere(client, sample):
        return np.full(3, np.nan)
    if client.is_distribution(sample):
        return np.asarray(client.samples[sample].ppf(MIDDLE), float).reshape(3)
    return np.asarray(np.quantile(np.asarray(client.samples[sample], float), MIDDLE))


def _weights(panel: Axes, weights: str | np.ndarray, clients: int) -> None:
    shares = np.full(clients, 1 / clients) if isinstance(weights, str) else weights
    panel.barh(np.arange(clients), shares, height=0.8, color=COLOURS[0])
    panel.set_xlabel("weight in the objective")


# --- their parts -------------------------------------------------------------------------------------------------------


def _stacked(ax: Axes, counts: np.ndarray, classes: list[str], unknown: np.ndarray) -> None:
    """A bar for each client of its counts (clients, classes), with what is of no known class in grey behind them.

    Up to six classes have the colours of the palette that everybody can tell apart; more run from dark to light, readable without
    colour vision. Over a hundred clients have a band of each class in place of bars.
    """
    from matplotlib.ticker import MaxNLocator

    left = np.zeros(len(counts))
    for count, name, shade in zip(counts.T, classes, _shades(len(classes))):
        _stack(ax, left, count, label=name, color=shade, edgecolor="white")
        left = left + count
    if unknown.any():
        _stack(ax, left, unknown, label="elsewhere", **UNKNOWN)
        left = left + unknown
    # explicit: an empty last class would pin matplotlib's own limit to the end of the longest bar
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    ax.set(xlim=(0, 1.03 * left.max() or 1))


def _name_classes(ax: Axes, classes: int) -> None:
    import matplotlib.pyplot as plt

    columns, small = -(-(classes + 1) // LEGEND_ROWS) if classes > LEGEND_ROWS else 1, plt.rcParams["legend.fontsize"]
    ax.legend(title="class", title_fontsize=small, loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=columns)


def _panel(ax: Axes | None, clients: int, style: str) -> tuple[Figure, Axes]:
    """The axes that are given, or those of a new figure for so many clients below each other: one of hundreds still fits a screen."""
    import matplotlib.pyplot as plt

    if ax is not None:
        return cast("Figure", ax.figure), ax
    height = float(max(2.2, 0.9 + min(0.3 * clients, 4.4)))
    size = (COLUMN, min(height, 4.0)) if style == "paper" else (6.5, height)
    figure, panel = plt.subplots(figsize=size, FigureClass=house_figure())
    return figure, panel


def _axis(ax: Axes, names: Sequence[str]) -> None:
    """Label the axis along which clients stand, the first on top."""
    apart = -(-len(names) // TICKS)
    ax.set(ylabel="client", ylim=(len(names) - 0.4, -0.6))
    shown = [name if len(name) <= NAME else f"{name[: NAME - 1]}…" for name in names[::apart]]
    ax.set_yticks(range(0, len(names), apart), shown)
    ax.grid(visible=False, axis="y")
    ax.set_axisbelow(True)


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
