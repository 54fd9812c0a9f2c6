"""Label counts agree with the data, and the figure shows those counts and nothing else."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.language.federation.partition_plot import label_counts, plot_partition

matplotlib.use("Agg")


def counted(digits: np.ndarray, classes: int = 4) -> tuple[hf.Federation, hf.Sample, hf.Sample]:
    onehot, digit = hf.Sample(classes, name="onehot"), hf.Sample(name="digit")
    federation = hf.Federation.split(
        {onehot: np.eye(classes)[digits], digit: digits}, clients=3, scheme=hf.Dirichlet(0.5, digits, min_samples=1)
    )
    return federation, onehot, digit


def test_counts_of_one_hot_and_scalar_labels_agree_with_the_data() -> None:
    digits = np.random.default_rng(0).integers(0, 4, 200)
    federation, onehot, digit = counted(digits)
    expected = np.stack([np.bincount(c.samples[digit], minlength=4) for c in federation.clients])
    np.testing.assert_array_equal(label_counts(federation, onehot), expected)
    np.testing.assert_array_equal(label_counts(federation, digit), expected)
    np.testing.assert_array_equal(label_counts(federation, digit, classes=[3, 2, 1, 0]), expected[:, ::-1])
    assert expected.sum() == 200


def test_counts_refuse_what_is_not_a_label() -> None:
    s, u, v = hf.Sample(name="s"), hf.Sample(2, name="u"), hf.Sample(2, name="v")
    federation = hf.Federation([hf.Client({s: scipy.stats.norm(), u: np.full((3, 2), 0.5)})])
    with pytest.raises(hf.DataError, match="client 0 holds sample 's' as a distribution"):
        label_counts(federation, s)
    with pytest.raises(hf.DataError, match="sample 'u' of client 0 is not a class label"):
        label_counts(federation, u)
    with pytest.raises(hf.DataError, match="client 0 holds no data for sample 'v'"):
        label_counts(federation, v)


def test_values_outside_the_classes_are_not_dropped() -> None:
    digit = hf.Sample(name="digit")
    federation = hf.Federation([hf.Client({digit: [0, 1]}), hf.Client({digit: [1, 9, 9]})])
    with pytest.raises(hf.DataError, match="client 1 holds 2 values of 'digit' outside classes"):
        label_counts(federation, digit, classes=[0, 1])


@pytest.mark.parametrize("shape", [(1, 1), (3, 4), (60, 10)])
def test_bars_are_the_counts(shape: tuple[int, int]) -> None:
    counts = np.random.default_rng(0).integers(0, 50, shape)
    axes = plot_partition(counts).axes[0]
    widths = np.array([[bar.get_width() for bar in group] for group in axes.containers]).T
    starts = np.array([[bar.get_x() for bar in group] for group in axes.containers]).T
    np.testing.assert_array_equal(widths, counts)
    np.testing.assert_array_equal(starts, np.cumsum(counts, axis=1) - counts)
    assert axes.get_xlabel() == "samples" and axes.get_ylabel() == "client"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [str(c) for c in range(shape[1])]


def test_the_first_client_is_on_top_and_no_bar_touches_the_edge() -> None:
    axes = plot_partition([[5, 0], [2, 3], [9, 0]]).axes[0]
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 9
    bottom, top = axes.get_ylim()
    assert top < 0 < 2 < bottom


def test_class_names_and_given_axes_are_used() -> None:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    assert plot_partition([[1, 2], [3, 4]], ["cat", "dog"], ax=ax) is figure
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["cat", "dog"]


def test_shades_differ_in_lightness() -> None:
    axes = plot_partition(np.ones((2, 10))).axes[0]
    rgb = np.array([group[0].get_facecolor()[:3] for group in axes.containers])
    luminance = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
    lightness = 116 * np.cbrt(luminance) - 16
    assert np.diff(lightness).min() > 4  # CIE L* of neighbours


@pytest.mark.parametrize("counts", [np.ones(3), np.ones((0, 2)), [["a"]], [[-1]], [[np.nan]]])
def test_wrong_counts_are_refused(counts: object) -> None:
    with pytest.raises(hf.DataError, match="counts"):
        plot_partition(counts)


def test_wrong_number_of_class_names_is_refused() -> None:
    with pytest.raises(hf.DataError, match="3 names for 2 classes"):
        plot_partition(np.ones((2, 2)), ["a", "b", "c"])
