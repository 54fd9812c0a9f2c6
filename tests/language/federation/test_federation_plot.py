"""The picture of a federation shows what the clients hold, whatever that is: classes, rows, spreads, or nothing but weights."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.stats
from matplotlib.colors import to_hex

import hierfl as hf
from hierfl.house_style import COLOURS

label, kind, demand = hf.Sample(name="label"), hf.Sample(3, name="kind"), hf.Sample(name="demand")
features = hf.Sample(2, name="features")


def panel(federation: hf.Federation, *given: Any, **settings: Any) -> Any:
    return federation.plot(*given, **settings).axes[0]


def widths(axes: Any) -> np.ndarray:
    """(clients, groups of bars)."""
    return np.array([[bar.get_width() for bar in group] for group in axes.containers]).T


def test_bars_are_the_counts_of_the_classes_and_names_are_the_clients() -> None:
    federation = hf.Federation(
        [
            hf.Client({features: np.ones((5, 2)), label: [0, 1, 1, 7, 7]}, name="north"),
            hf.Client({features: np.ones((2, 2)), label: [7, 7]}, name="the hospital of the southern islands"),
        ],
        weights="samples",
    )
    axes = panel(federation)
    np.testing.assert_array_equal(widths(axes), [[1, 2, 2], [0, 0, 2]])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "1", "7"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["north", "the hospital of…"]
    assert "label" in axes.get_xlabel() and "by samples" in axes.figure.get_suptitle()
    colours = [to_hex(group[0].get_facecolor()).upper() for group in axes.containers]
    assert colours == list(COLOURS[:3])  # which differ to every eye: test_paper_style


@pytest.mark.parametrize(("clients", "classes"), [(2, 2), (3, 4), (60, 10)])
def test_bars_lie_end_to_end_and_agree_with_the_data(clients: int, classes: int) -> None:
    digits = np.random.default_rng(0).permutation(np.arange(40 * classes) % classes)
    split = hf.Dirichlet(0.5, digits, min_samples=1)
    federation = hf.Federation.split({kind_of(classes): np.eye(classes)[digits], label: digits}, clients, split)
    expected = np.stack([np.bincount(c.samples[label], minlength=classes) for c in federation.clients])
    for axes in (panel(federation), panel(federation, label)):
        np.testing.assert_array_equal(widths(axes), expected)
        starts = np.array([[bar.get_x() for bar in group] for group in axes.containers]).T
        np.testing.assert_array_equal(starts, np.cumsum(expected, axis=1) - expected)
        assert axes.get_ylabel() == "client"
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [str(c) for c in range(classes)]


def kind_of(classes: int) -> hf.Sample:
    return hf.Sample(classes, name="one_hot")


def test_the_first_client_is_on_top_and_no_bar_touches_the_edge() -> None:
    axes = panel(hf.Federation([hf.Client({label: [0] * n + [1]}) for n in (5, 2, 9)]))
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 10
    bottom, top = axes.get_ylim()
    assert top < 0 < 2 < bottom


def test_rows_where_there_are_no_classes() -> None:
    federation = hf.Federation([hf.Client({features: np.random.default_rng(0).normal(size=(n, 2))}) for n in (3, 9)])
    axes = panel(federation)
    np.testing.assert_array_equal(widths(axes), [[3], [9]])
    assert axes.get_legend() is None and axes.get_xlabel() == "samples of features"


def test_rows_elsewhere_are_hatched_and_have_no_classes() -> None:
    mixed = hf.Federation([hf.Client({label: hf.Elsewhere(9)}), hf.Client({label: [1, 2, 2]})])
    axes = panel(mixed)
    np.testing.assert_array_equal(widths(axes), [[0, 0, 9], [1, 2, 0]])
    assert axes.containers[-1][0].get_hatch() and axes.get_legend().get_texts()[-1].get_text() == "elsewhere"
    all_elsewhere = hf.Federation([hf.Client({label: hf.Elsewhere(n)}) for n in (9, 4)])
    axes = panel(all_elsewhere)
    np.testing.assert_array_equal(widths(axes)[:, -1], [9, 4])
    assert "elsewhere" in axes.get_xlabel()
    with pytest.raises(hf.DataError, match="'label' is elsewhere at every client"):
        all_elsewhere.plot(label)


def test_spreads_of_distributions_and_of_numbers() -> None:
    laws = [scipy.stats.expon(scale=2.0), scipy.stats.uniform(0, 10)]
    axes = panel(hf.Federation([hf.Client({demand: law}) for law in laws]))
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [2 * np.log(2), 5])
    segments = [[low[0], high[0]] for low, high in axes.collections[0].get_segments()]
    np.testing.assert_allclose(segments, [[-2 * np.log(0.95), -2 * np.log(0.05)], [0.5, 9.5]])
    prices = np.linspace(0, 1, 101)
    axes = panel(hf.Federation([hf.Client({demand: prices}), hf.Client({demand: 3 * prices})]), demand)
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [0.5, 1.5])


def test_weights_where_nobody_holds_anything() -> None:
    axes = panel(hf.Federation([hf.Client() for _ in range(4)]))
    np.testing.assert_allclose(widths(axes)[:, 0], 0.25)
    axes = panel(hf.Federation([hf.Client(), hf.Client()], weights=[3, 1]))
    np.testing.assert_allclose(widths(axes)[:, 0], [3, 1])
    assert axes.get_xlabel() == "weight in the objective"


def test_hundreds_of_clients_fit_a_screen_and_are_drawn_at_once() -> None:
    digits = np.random.default_rng(0).integers(0, 10, 5000)
    federation = hf.Federation.split({label: digits}, 500, hf.Dirichlet(1.0, digits, min_samples=0), min_samples=0)
    began = time.perf_counter()
    figure = federation.plot()
    figure.canvas.draw()
    assert time.perf_counter() - began < 10  # a bar for each client and class takes half a minute
    assert figure.get_size_inches()[1] < 6
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in axes.get_yticklabels() if text.get_text()]
    assert len(boxes) > 5 and not any(one.overlaps(other) for one, other in pairwise(boxes))
    # the last class ends where the client's rows do
    ends = axes.collections[-1].get_paths()[0].vertices[:, 0].max()
    assert ends == max(client.num_samples(label) for client in federation.clients)


def test_axes_of_others_are_drawn_on() -> None:
    figure, (_, right) = plt.subplots(1, 2)
    for federation in (
        hf.Federation([hf.Client({label: [0, 1]})]),
        hf.Federation([hf.Client({features: np.ones((3, 2))})]),
        hf.Federation([hf.Client({demand: scipy.stats.norm()})]),
        hf.Federation([hf.Client()]),
    ):
        right.clear()
        assert federation.plot(ax=right) is figure and right.get_xlabel()
        assert figure.axes[0].get_xlabel() == ""


def test_what_cannot_be_drawn_is_named() -> None:
    federation = hf.Federation([hf.Client({features: np.zeros((3, 2)), label: [0, 1, 1]})])
    with pytest.raises(hf.DataError, match="no data for Sample 'demand': there are"):
        federation.plot(demand)
    with pytest.raises(hf.DataError, match=r"plot\('labels'\): one of the clients' samples: features, label"):
        federation.plot("labels")  # type: ignore[arg-type]
    with pytest.raises(hf.DataError, match="'features' is neither a class label"):
        federation.plot(features)
    with pytest.raises(hf.SettingError, match="did you mean 'paper'"):
        federation.plot(style="papper")
