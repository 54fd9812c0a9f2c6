"""Names at the ends of curves: apart from each other, in the ends' order, inside the figure, and below it where there is no room."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Annotation, Text

import hierfl as hf
from hierfl.house_style import house_style, panels
from hierfl.inspect.pictures.convergence import name_curves
from hierfl.solvers import FedAvg


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def drawn(ends: list[float], names: list[str] | None = None, style: str = "screen", scale: str = "linear") -> Any:
    """(figure, panel, names written there) of straight lines from 1 to their ends; NaN is a line that has no point."""
    names = names or [f"q = {place}" for place in range(len(ends))]
    with house_style(style):
        figure, (panel,) = panels(1, 4.8, 3.6, style)
        curves = [panel.plot([0, 1], [1 + 0 * end, end])[0] for end in ends]
        panel.set_yscale(scale)
        name_curves([panel], [curves], names)
        figure.canvas.draw()
    return figure, panel, [child for child in panel.get_children() if isinstance(child, Annotation)]


def box(label: Annotation) -> Any:
    return Text.get_window_extent(label)  # of the words, without the line to the curve


@pytest.mark.parametrize("style", ["screen", "paper"])
@pytest.mark.parametrize(
    ("ends", "scale"),
    [
        ([0.5, 0.5, 0.5, 0.5], "linear"),  # all end at one place
        ([0.51, 0.5, 3.0, 0.505], "linear"),
        ([1e-9, 1e-3, 1.1e-3, 1e-9], "log"),
        ([5.0, 0.5, np.nan, 0.5], "linear"),
        (list(np.linspace(0.9, 1.0, 9)), "linear"),
    ],
)
def test_names_stand_apart_in_the_order_of_the_ends(ends: list[float], scale: str, style: str) -> None:
    figure, panel, labels = drawn(ends, style=style, scale=scale)
    assert len(labels) == len(ends) and panel.get_legend() is None
    assert not any(box(one).overlaps(box(other)) for one, other in combinations(labels, 2))
    for label in labels:
        assert box(label).x0 > panel.get_window_extent().x1
        assert figure.bbox.contains(*box(label).min) and figure.bbox.contains(*box(label).max)
    heights = [box(label).y0 for label, end in zip(labels, ends) if np.isfinite(end)]
    for (end, height), (other, above) in combinations(zip([end for end in ends if np.isfinite(end)], heights), 2):
        assert end == other or (end < other) == (height < above)


def test_the_line_to_a_name_does_not_run_across_the_panel() -> None:
    """A curve that ends early, as of a method that sends less, has a dot there: a dotted line from it would look like its going on."""
    with house_style():
        figure, (panel,) = panels(1, 4.8, 3.6, "screen")
        (short,), (whole,) = panel.plot([0, 0.3], [1, 2]), panel.plot([0, 1], [1, 3])
        name_curves([panel], [[short, whole]], ["short", "whole"])
        figure.canvas.draw()
    (dot,) = [line for line in panel.lines if line.get_marker() == "o"]
    assert (dot.get_xdata()[0], dot.get_ydata()[0], dot.get_color()) == (0.3, 2.0, short.get_color())
    labels = [child for child in panel.get_children() if isinstance(child, Annotation)]
    assert [label.xy for label in labels] == [(panel.get_xlim()[1], 2.0), (1.0, 3.0)]


@pytest.mark.parametrize("style", ["screen", "paper"])
@pytest.mark.parametrize(("count", "name"), [(3, "ZOHFL(smoothing=0.05, step_size=0.05, directions=4)"), (40, "q")])
def test_names_that_have_no_room_stand_below_the_panel(count: int, name: str, style: str) -> None:
    names = [f"{name} {place}" for place in range(count)]
    figure, panel, labels = drawn(list(np.linspace(0, 1, count)), names, style)
    assert not labels
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert extent.y1 <= panel.get_tightbbox().y0 + 1 and extent.x0 >= 0 and extent.x1 <= figure.bbox.x1
    assert [text.get_text().replace("\n", " ") for text in legend.get_texts()] == names


def test_a_sweep_names_its_curves_in_every_panel_and_on_axes_of_others_has_a_legend() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    compared = hf.sweep(
        problem,
        {f"step {size}": FedAvg(step_size=size) for size in (0.1, 0.2)},
        seeds=2,
        rounds=5,
        progress=False,
        metrics={"size": lambda x, y: float(x.sum())},
    )
    for panel in compared.plot().axes:
        names = [child.get_text() for child in panel.get_children() if isinstance(child, Annotation)]
        assert names == ["step 0.1", "step 0.2"] and panel.get_legend() is None
    _, own = plt.subplots()
    compared.plot(own)
    assert [text.get_text() for text in own.get_legend().get_texts()] == ["step 0.1", "step 0.2"]
