"""[2S] Figure 2: FedRZO_nn on rectified units beside methods that need gradients, on softplus units of several sharpnesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hierfl.reproduce.networks.relu_runs import (
    BASELINES,
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

SHARPNESS, STEPS, SMOOTHING = (1.0, 5.0, 10.0, 50.0), 10, 0.01
LOOKS: dict[str, Any] = {
    "FedAvg": "--",
    "FedProx": (3, (3, 3)),
    "FedMSPP": ":",
    "Scaffnew": "-.",
}  # curves may coincide


def _plan(full: bool, data: DataSets) -> list[Cell]:
    name, rounds = first_of(data, "MNIST"), 1000 if full else 200
    cells = []
    for seed in range(3 if full else 1):
        cells.append(relu_cell(name, rounds=rounds, seed=seed, local_steps=STEPS, smoothing=SMOOTHING))
        for beta in SHARPNESS if full else SHARPNESS[::2]:
            for method in BASELINES:
                cells.append(relu_cell(name, rounds=rounds, seed=seed, local_steps=STEPS, method=method, softplus=beta))
    return cells


def _tables(measured: Measured) -> Sequence[TextTable]:
    rows = [["data", "beta", "method", "loss with rectified units", "test accuracy (%)"]]
    for data in measured.each("data"):
        for beta in measured.each("softplus"):
            for method in measured.each("method", softplus=beta):
                runs = measured.of(data=data, softplus=beta, method=method)
                shown = "rectified" if beta is None else f"{beta:g}"
                rows.append([data, shown, method, end_of(runs, "loss", 4), end_of(runs, "accuracy", 1)])
    return [TextTable(title_of(measured, "Training loss"), rows)]


def _draw(measured: Measured) -> Figure:
    """Draw a panel for each sharpness, a line for each method; FedRZO's is the same in all."""
    from matplotlib.figure import Figure

    columns = [beta for beta in measured.each("softplus") if beta is not None]
    figure = Figure(figsize=(3.6 * len(columns), 3.4))
    for ax, beta in zip(figure.subplots(1, len(columns), squeeze=False, sharey=True)[0], columns):
        draw_runs(ax, measured.of(method="FedRZO"), "FedRZO")
        for method, look in LOOKS.items():
            draw_runs(ax, measured.of(method=method, softplus=beta), method, linestyle=look)
        ax.set(title=f"baselines with β = {beta:g}", xlabel="communication round", ylabel="training loss")
        ax.legend()
    return figure


REPRODUCTION = Reproduction(
    name="2s-fig2",
    about="the same network: FedRZO_nn beside FedAvg, FedProx, FedMSPP and Scaffnew on softplus units",
    source="[2S] (Qiu, Shanbhag, Yousefian, 2024), Figure 2, §6.1",
    caption=(
        "Comparison between FedRZO_nn on ReLU NN and standard FL methods when they are implemented on an NN with a smoothed variant of ReLU, "
        "characterized by a parameter β. The performance of the standard FL methods appears to be sensitive to the choice of β"
    ),
    data=("MNIST",),
    plan=_plan,
    run=run_relu,
    tables=_tables,
    draw=_draw,
    smaller="200 of 1000 rounds, one of 3 seeds, beta = 1 and 10; MNIST, or scikit-learn's digits",
    differs=(
        *DIFFERS,
        "The baselines have exact gradients of minibatches, without the noise of directions; at equal step sizes all are about as fast: FedRZO ends before "
        "those whose softplus is far from rectified units (beta = 1), and after those whose is near (beta = 10).",
    ),
    left_open=(
        *LEFT_OPEN,
        "beta in {1, 5, 10, 50}, H = 10 (Scaffnew: 10 on average), and FedRZO's step 1e-5 for all; proximal weight 1 of FedProx and FedMSPP",
    ),
)
