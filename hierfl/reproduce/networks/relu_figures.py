"""FedRZO_nn on networks of rectified units: three figures of [2S] §6.1, the first also of [NN].

[NN] Figure 1, [2S] Figure 1: by local steps and smoothing. [2S] Figure 2: beside methods that need gradients, on softplus units of
several sharpnesses. [2S] Figure 3: on CIFAR-10 with networks of 4, 20 and 100 units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
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


SMOOTHING, STEPS = (0.1, 0.01, 0.001), (1, 5, 10, 20)


def _plan_of_steps(full: bool, data: DataSets) -> list[Cell]:
    name = first_of(data, "MNIST")
    return [
        relu_cell(name, rounds=1000 if full else 200, seed=seed, local_steps=steps, smoothing=smoothing)
        for seed in range(5 if full else 3)
        for smoothing in (SMOOTHING if full else SMOOTHING[::2])
        for steps in (STEPS if full else (1, 20))
    ]


def _tables_of_steps(measured: Measured) -> Sequence[TextTable]:
    return _tables_by(measured, {"smoothing": "eta", "local_steps": "H"})


def _tables_by(measured: Measured, columns: Mapping[str, str]) -> Sequence[TextTable]:
    """A row for each data set and all values of some settings, whose ``columns`` have these heads."""
    rows = [["data", *columns.values(), "loss at the start", "loss", "test accuracy (%)"]]
    for data, *chosen in product(measured.each("data"), *map(measured.each, columns)):
        runs = measured.of(data=data, **dict(zip(columns, chosen)))
        begun = f"{runs[0]['loss'][0]:.4f}" if runs else ""
        ends = (end_of(runs, "loss", 4), end_of(runs, "accuracy", 1))
        rows.append([data, *(f"{one:g}" for one in chosen), begun, *ends])
    return [TextTable(title_of(measured, "Training loss"), rows)]


def _draw_of_steps(measured: Measured) -> Figure:
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


BY_STEPS = Reproduction(
    name="nn-fig1",
    about="a network of rectified units by FedRZO_nn, for eta and H, with 95 % bands",
    source="[NN] (Qiu, Shanbhag, Yousefian, 2023), Figure 1, §5.1; [2S] (2024), Figure 1, §6.1",
    caption=(
        "Performance of FedRZO_nn on a single-layer ReLU NN in terms of communication rounds for different no. of local steps and different values "
        "of the smoothing parameter η. FedRZO_nn benefits from larger number of local steps and shows robustness with respect to the choice of η."
    ),
    data=("MNIST",),
    plan=_plan_of_steps,
    run=run_relu,
    tables=_tables_of_steps,
    draw=_draw_of_steps,
    smaller="200 of 1000 rounds, 3 of 5 seeds, eta = 0.1 and 0.001, H = 1 and 20; MNIST, or scikit-learn's digits",
    differs=DIFFERS,
    left_open=(*LEFT_OPEN, "the number of rounds and of seeds: 1000 and 5"),
)


SHARPNESS = (1.0, 5.0, 10.0, 50.0)
LOOKS: dict[str, Any] = {
    "FedAvg": "--",
    "FedProx": (3, (3, 3)),
    "FedMSPP": ":",
    "Scaffnew": "-.",
}  # curves may coincide


def _plan_beside_softplus(full: bool, data: DataSets) -> list[Cell]:
    name, rounds = first_of(data, "MNIST"), 1000 if full else 200
    cells = []
    for seed in range(3 if full else 1):
        cells.append(relu_cell(name, rounds=rounds, seed=seed, local_steps=10, smoothing=0.01))
        for beta in SHARPNESS if full else SHARPNESS[::2]:
            for method in BASELINES:
                cells.append(relu_cell(name, rounds=rounds, seed=seed, local_steps=10, method=method, softplus=beta))
    return cells


def _tables_beside_softplus(measured: Measured) -> Sequence[TextTable]:
    rows = [["data", "beta", "method", "loss with rectified units", "test accuracy (%)"]]
    for data in measured.each("data"):
        for beta in measured.each("softplus"):
            for method in measured.each("method", softplus=beta):
                runs = measured.of(data=data, softplus=beta, method=method)
                shown = "rectified" if beta is None else f"{beta:g}"
                rows.append([data, shown, method, end_of(runs, "loss", 4), end_of(runs, "accuracy", 1)])
    return [TextTable(title_of(measured, "Training loss"), rows)]


def _draw_beside_softplus(measured: Measured) -> Figure:
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


BESIDE_SOFTPLUS = Reproduction(
    name="2s-fig2",
    about="the same network: FedRZO_nn beside FedAvg, FedProx, FedMSPP and Scaffnew on softplus units",
    source="[2S] (Qiu, Shanbhag, Yousefian, 2024), Figure 2, §6.1",
    caption=(
        "Comparison between FedRZO_nn on ReLU NN and standard FL methods when they are implemented on an NN with a smoothed variant of ReLU, "
        "characterized by a parameter β. The performance of the standard FL methods appears to be sensitive to the choice of β"
    ),
    data=("MNIST",),
    plan=_plan_beside_softplus,
    run=run_relu,
    tables=_tables_beside_softplus,
    draw=_draw_beside_softplus,
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


NEURONS = (4, 20, 100)


def _plan_of_neurons(full: bool, data: DataSets) -> list[Cell]:
    stand_in = first_of(data, "CIFAR-10", "MNIST")
    small = stand_in if stand_in == "CIFAR-10" or full else "digits"
    return [
        relu_cell(
            name, rounds=1000 if full else 200, seed=seed, local_steps=steps, smoothing=smoothing, neurons=neurons
        )
        for name in dict.fromkeys((small, "CIFAR-10"))
        for seed in range(3 if full else 1)
        for neurons in NEURONS
        for smoothing in (SMOOTHING if full else SMOOTHING[::2])
        for steps in (STEPS if full else (1, 20))
    ]


def _tables_of_neurons(measured: Measured) -> Sequence[TextTable]:
    return _tables_by(measured, {"neurons": "N", "smoothing": "eta", "local_steps": "H"})


def _draw_of_neurons(measured: Measured) -> Figure:
    """Draw a panel for each number of units; colours are numbers of local steps, dashes the smoothing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.0 * len(NEURONS), 3.6))
    for ax, neurons in zip(figure.subplots(1, len(NEURONS), squeeze=False)[0], NEURONS):
        for place, steps in enumerate(measured.each("local_steps")):
            for smoothing, look in zip(measured.each("smoothing"), ("-", "--", ":")):
                runs = measured.of(neurons=neurons, smoothing=smoothing, local_steps=steps)
                draw_runs(ax, runs, f"H = {steps}, η = {smoothing:g}", color=f"C{place}", linestyle=look)
        ax.set(title=f"N = {neurons}", xlabel="communication round", ylabel="training loss")
        ax.legend()
    return figure


BY_NEURONS = Reproduction(
    name="2s-fig3",
    about="the same network with N = 4, 20, 100 units on CIFAR-10",
    source="[2S] (Qiu, Shanbhag, Yousefian, 2024), Figure 3, §6.1",
    caption=(
        "Performance of FedRZO_nn on ReLU NN with different number of neurons in the layer and different value of the smoothing parameter η, using the "
        "CIFAR-10 dataset. The method performs better with smaller number of neurons and less communication frequency given a certain communication "
        "rounds. We also observe the smaller the smoothing parameter η, the longer it takes for the method to converge."
    ),
    data=("CIFAR-10", "MNIST"),
    plan=_plan_of_neurons,
    run=run_relu,
    tables=_tables_of_neurons,
    draw=_draw_of_neurons,
    smaller="200 of 1000 rounds, one of 3 seeds, eta = 0.1 and 0.001, H = 1 and 20; scikit-learn's digits where CIFAR-10 is absent",
    differs=(
        *DIFFERS,
        "On scikit-learn's digits, the stand-in, larger networks end lower, not higher, and eta makes no difference; the first losses differ between N, since "
        "all weights start with the same deviation.",
    ),
    left_open=(*LEFT_OPEN, "the number of rounds and of seeds: 1000 and 3; H in {1, 5, 10, 20} as in Figure 1"),
)
