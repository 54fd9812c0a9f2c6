"""[NN] Figure 1, [2S] Figure 1: FedRZO_nn on a network of rectified units, by local steps and smoothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hierfl.reproduce.networks.relu_runs import (
    DIFFERS,
    LEFT_OPEN,
    draw_runs,
    end_of,
    first_of,
    relu_cell,
    run_relu,
    title_of,
)
from hierfl.reproduce.reproduction import Cell, DataSets, Measured, Reproduction, TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHING, STEPS = (0.1, 0.01, 0.001), (1, 5, 10, 20)


def _plan(full: bool, data: DataSets) -> list[Cell]:
    name = first_of(data, "MNIST")
    return [
        relu_cell(name, rounds=1000 if full else 200, seed=seed, local_steps=steps, smoothing=smoothing)
        for seed in range(5 if full else 3)
        for smoothing in (SMOOTHING if full else SMOOTHING[::2])
        for steps in (STEPS if full else (1, 20))
    ]


def _tables(measured: Measured) -> Sequence[TextTable]:
    rows = [["data", "eta", "H", "loss at the start", "loss", "test accuracy (%)"]]
    for data in measured.each("data"):
        for smoothing in measured.each("smoothing"):
            for steps in measured.each("local_steps"):
                runs = measured.of(data=data, smoothing=smoothing, local_steps=steps)
                begun = f"{runs[0]['loss'][0]:.4f}" if runs else ""
                ends = (end_of(runs, "loss", 4), end_of(runs, "accuracy", 1))
                rows.append([data, f"{smoothing:g}", f"{steps}", begun, *ends])
    return [TextTable(title_of(measured, "Training loss"), rows)]


def _draw(measured: Measured) -> Figure:
    """Draw a panel for each smoothing, a line with its band for each number of local steps."""
    from matplotlib.figure import Figure

    columns = measured.each("smoothing")
    figure = Figure(figsize=(4.0 * len(columns), 3.4))
    for ax, smoothing in zip(figure.subplots(1, len(columns), squeeze=False, sharey=True)[0], columns):
        for steps in measured.each("local_steps"):
            draw_runs(ax, measured.of(smoothing=smoothing, local_steps=steps), f"H = {steps}")
        ax.set(title=f"η = {smoothing:g}", xlabel="communication round", ylabel="training loss")
        ax.legend()
    return figure


REPRODUCTION = Reproduction(
    name="nn-fig1",
    about="a network of rectified units by FedRZO_nn, for eta and H, with 95 % bands",
    source="[NN] (Qiu, Shanbhag, Yousefian, 2023), Figure 1, §5.1; [2S] (2024), Figure 1, §6.1",
    caption=(
        "Performance of FedRZO_nn on a single-layer ReLU NN in terms of communication rounds for different no. of local steps and different values "
        "of the smoothing parameter η. FedRZO_nn benefits from larger number of local steps and shows robustness with respect to the choice of η."
    ),
    data=("MNIST",),
    plan=_plan,
    run=run_relu,
    tables=_tables,
    draw=_draw,
    smaller="200 of 1000 rounds, 3 of 5 seeds, eta = 0.1 and 0.001, H = 1 and 20; MNIST, or scikit-learn's digits",
    differs=DIFFERS,
    left_open=(*LEFT_OPEN, "the number of rounds and of seeds: 1000 and 5"),
)
