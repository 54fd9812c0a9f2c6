"""The picture of a federation: rows of each client and their classes, the spread of a number, or the weights."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from hierfl.errors import DataError
from hierfl.house_style import COLOURS, house_style, require_axes, require_style
from hierfl.language.federation.client import Client
from hierfl.language.federation.elsewhere import Elsewhere
from hierfl.language.federation.partition_plot import client_axis, client_panel, counted, plot_partition
from hierfl.language.federation.value_checks import described
from hierfl.language.sample import Sample
from hierfl.near_names import near_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES = 20  # more values than this are no classes
MIDDLE = (0.05, 0.5, 0.95)  # quantiles
WIDTH = {"screen": 66, "paper": 50}  # characters of a title's line


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
    chosen = _class_label(clients) if sample is None else _require_held(clients, sample)
    names = [str(place) if client.name is None else client.name for place, client in enumerate(clients)]
    if sample is None and chosen is None and not _has_rows(clients):
        chosen = next((held for held in clients[0].samples if held.size == 1), None)
    if chosen is None and not _has_rows(clients):
        figure = _weights(weights, names, ax, style)
    elif chosen is None:
        figure = _rows(clients, names, ax, style)
    elif _is_class_label(clients, chosen):
        counts, classes = counted(clients, chosen)
        unknown = [len(client.samples[chosen]) if _is_elsewhere(client, chosen) else 0 for client in clients]
        figure = plot_partition(counts, classes, ax, style, client_names=names, unknown=unknown)
        (figure.axes[0] if ax is None else ax).set_xlabel(f"samples, by their {chosen.name()}")
    else:
        figure = _spread(clients, chosen, names, ax, style)
    if ax is None:
        text = title.removeprefix("Federation(").removesuffix(")").replace("; weights uniform", "")
        with house_style(style):
            figure.suptitle(fill(text, WIDTH[style]), fontsize="medium" if style == "screen" else None)
    return figure


# --- what can be drawn -------------------------------------------------------------------------------------------------


def _require_held(clients: Sequence[Client], sample: Sample) -> Sample:
    known = [held.name() for held in clients[0].samples]
    if not isinstance(sample, Sample):
        raise DataError(f"plot({sample!r}): one of the clients' samples: {', '.join(known) or 'they hold none'}.")
    if any(not client.holds(sample) for client in clients):
        raise DataError(
            f"plot: the clients hold no data for {described(sample)}: {near_names(sample.name(), tuple(known))}"
        )
    if sample.size > 1 and not _is_class_label(clients, sample):
        raise DataError(f"plot: {described(sample)} is neither a class label (one-hot) nor one number: give another.")
    if all(_is_elsewhere(client, sample) for client in clients):
        raise DataError(f"plot: {described(sample)} is elsewhere at every client; plot() draws the numbers of rows.")
    return sample


def _class_label(clients: Sequence[Client]) -> Sample | None:
    return next((sample for sample in clients[0].samples if _is_class_label(clients, sample)), None)


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


def _rows(clients: Sequence[Client], names: list[str], ax: Axes | None, style: str) -> Figure:
    """Numbers of rows, of the table of the first sample that has some."""
    counted_by = next(
        sample for sample in clients[0].samples if any(client.num_samples(sample) is not None for client in clients)
    )
    rows = np.array([client.num_samples(counted_by) or 0 for client in clients])
    here = np.array([0 if _is_elsewhere(client, counted_by) else count for client, count in zip(clients, rows)])
    figure = plot_partition(here[:, None], [""], ax, style, client_names=names, unknown=rows - here)
    panel = figure.axes[0] if ax is None else ax
    panel.set_xlabel(f"samples of {counted_by.name()}")
    legend = panel.get_legend()
    if legend is not None:
        legend.remove()
        panel.set_xlabel(f"samples of {counted_by.name()} (hatched: elsewhere)")
    return figure


def _spread(clients: Sequence[Client], sample: Sample, names: list[str], ax: Axes | None, style: str) -> Figure:
    """Median and middle of a scalar at each client, of its rows or of its distribution."""
    low, middle, high = np.array([_quantiles(client, sample) for client in clients]).T
    places = np.arange(len(clients))
    with house_style(style):
        figure, panel = client_panel(ax, len(clients), style)
        panel.hlines(places, low, high, color=COLOURS[0], alpha=0.5, linewidth=4 if len(clients) <= 40 else 1)
        panel.plot(
            middle, places, linestyle="", marker="o", markersize=4 if len(clients) <= 40 else 2, color=COLOURS[1]
        )
        client_axis(panel, len(clients), names)
        elsewhere = ", elsewhere unknown" if np.isnan(middle).any() else ""
        panel.set_xlabel(f"{sample.name()}: median, and 5 to 95 %{elsewhere}")
    return figure


def _quantiles(client: Client, sample: Sample) -> np.ndarray:
    if _is_elsewhere(client, sample):
        return np.full(3, np.nan)
    if client.is_distribution(sample):
        return np.asarray(client.samples[sample].ppf(MIDDLE), float).reshape(3)
    return np.asarray(np.quantile(np.asarray(client.samples[sample], float), MIDDLE))


def _weights(weights: str | np.ndarray, names: list[str], ax: Axes | None, style: str) -> Figure:
    """What each client counts for in the objective."""
    shares = np.full(len(names), 1 / len(names)) if isinstance(weights, str) else weights
    with house_style(style):
        figure, panel = client_panel(ax, len(names), style)
        panel.barh(np.arange(len(names)), shares, height=0.8, color=COLOURS[0])
        client_axis(panel, len(names), names)
        panel.set_xlabel("weight in the objective")
    return figure
