"""FedRZO_nn on networks of rectified units as the experiments of [NN] §5.1 and [2S] §6.1 run it: three figures of [2S], the first also of [NN].

[NN] Figure 1, [2S] Figure 1: by local steps and smoothing. [2S] Figure 2: beside methods that need gradients, on softplus units of
several sharpnesses. [2S] Figure 3: on CIFAR-10 with networks of 4, 20 and 100 units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np

import hierfl as hf
from examples.reproduce.reproduction import (
    Cell,
    DataSets,
    Measured,
    Plain,
    Reproduction,
    Table,
    by_name,
    draw_mean,
    panels,
)
from hierfl.errors import DivergedError
from hierfl.models import ClassificationData, relu_network
from hierfl.models.relu_network import initial_weights
from hierfl.runs import interval
from hierfl.solvers import Decay, FedAvg, FedMSPP, FedProx, FedRZO, Scaffnew

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLIENTS, LAM, BATCH, DEVIATION = 5, 0.01, 32, 0.1
SCALE, SCALES = 300.0, {"CIFAR-10": 30.0}  # of the mean loss: its curvature grows with the squared length of images, 83 for MNIST's and 885 for CIFAR-10's
FAN_IN = "1 / sqrt(fan-in)"
STEP = 1e-5
JUDGED = 10_000  # rows
ROUNDS = (200, 1000)  # small, and in full
SMOOTHING, STEPS, NEURONS = (0.1, 0.01, 0.001), (1, 5, 10, 20), (4, 20, 100)
SHARPNESS = (1.0, 5.0, 10.0, 50.0)
BASELINES: dict[str, tuple[Callable[[int], Any], Any]] = {  # by local steps, and the look of the line: curves may coincide
    "FedAvg": (lambda steps: FedAvg(step_size=STEP, batch_size=32, local_steps=steps), "--"),
    "FedProx": (lambda steps: FedProx(step_size=STEP, batch_size=32, local_steps=steps, proximal=1.0), (3, (3, 3))),
    "FedMSPP": (lambda steps: FedMSPP(step_size=STEP, batch_size=32, local_steps=steps, proximal_step=1.0), ":"),
    "Scaffnew": (lambda steps: Scaffnew(step_size=STEP, probability=1 / steps), "-."),
}
PRINTS_CURVES = "The paper prints curves and no numbers; what it says of them stands in the caption."
DIFFERS = (
    PRINTS_CURVES,
    f"Minibatches have {BATCH} rows, where Algorithm 1 draws one sample: the noise is less than the paper's, and the pace the same.",
)
LEFT_OPEN = (
    f"the scale of the loss: the paper sums over images; here {SCALE:g} times the mean, since at gamma = 1e-5 a mean makes no visible progress and 3000 diverges; {SCALES['CIFAR-10']:g} times for CIFAR-10 (see 2s-fig3-choices)",
    f"labels 1 for even and -1 for odd classes, N(0, {DEVIATION:g}^2) weights at the start, 10 % of the data for tests",
    "the loss that is drawn: half the mean squared error with rectified units over the clients' data (10,000 rows of it), without the regulariser",
)


def relu_cell(data: str, rounds: int, seed: int, local_steps: int, **own: Any) -> Cell:
    """One run: FedRZO with its smoothing, or a baseline, its ``method``, on softplus units of sharpness beta."""
    usual = {"method": "FedRZO", "neurons": 4, "smoothing": None, "softplus": None, "scale": SCALES.get(data, SCALE), "step_size": STEP}
    usual |= {"decay": 0.0, "batch": BATCH, "deviation": DEVIATION, "pixels": "in [0, 1]"}
    settings = {**usual, "data": data, "local_steps": local_steps, "rounds": rounds, "seed": seed, **own}
    neurons, method, smoothing, beta = (settings[name] for name in ("neurons", "method", "smoothing", "softplus"))
    varied = f"eta = {smoothing:g}" if beta is None else f"beta = {beta:g}"
    name = f"{data}, N = {neurons}, {method}, {varied}, H = {local_steps}, seed {seed}"
    return Cell(name, settings, f"{data}, {neurons}, {beta}, {seed}")


@dataclass(frozen=True)
class Network:
    """The problem, and rows to judge weights by: of the clients' ``images`` (rows, features) with their ``targets``, and unseen ones."""

    problem: hf.Problem
    images: np.ndarray
    targets: np.ndarray
    unseen: np.ndarray
    expected: np.ndarray

    def start(self, deviation: Any, seed: int) -> dict[cp.Variable, np.ndarray]:
        """Normal weights of this deviation."""
        drawn = initial_weights(self.problem, 1.0, seed)
        return {v: w * (v.shape[-1] ** -0.5 if deviation == FAN_IN else deviation) for v, w in drawn.items()}

    def judge(self, hidden: np.ndarray, output: np.ndarray) -> tuple[float, float]:
        """The loss on the clients' data, and the accuracy (%) of the sign on test data."""

        def network(rows: np.ndarray) -> np.ndarray:
            return np.asarray(np.maximum(rows @ hidden.T, 0.0) @ output)

        correct = (network(self.unseen) > 0) == (self.expected > 0)
        return 0.5 * float(np.mean((self.targets - network(self.images)) ** 2)), 100.0 * float(np.mean(correct))

    def squared_slope(self, hidden: np.ndarray, output: np.ndarray) -> float:
        """The mean squared length of the network's gradient in all weights: the trace of the mean loss's Gauss-Newton matrix."""
        into = self.images @ hidden.T
        lengths = (self.images**2).sum(axis=1)
        return float(np.mean((np.maximum(into, 0.0) ** 2).sum(axis=1) + lengths * ((into > 0) @ output**2)))


def prepare(cell: Cell, data: DataSets) -> Network:
    """The problem, with the rows that weights are judged by."""
    held = _with_pixels(data.found[cell.settings["data"]], cell.settings["pixels"])
    own = {name: cell.settings[name] for name in ("neurons", "scale", "softplus", "seed")}
    problem = relu_network(held, clients=CLIENTS, lam=LAM, **own)
    federation = problem.federation
    assert federation is not None and federation.test is not None
    tables = [by_name(client.samples) for client in federation.clients]
    images, targets = (np.concatenate([one[name] for one in tables]) for name in ("image", "target"))
    chosen = np.linspace(0, len(targets) - 1, min(len(targets), JUDGED)).astype(int)
    test = by_name(federation.test)
    seen, unseen = (np.asarray(held.scaled(rows)) for rows in (images[chosen], test["image"]))
    return Network(problem, seen, targets[chosen], unseen, test["target"])


def _with_pixels(held: ClassificationData, how: str) -> ClassificationData:
    if how == "in [0, 1]":
        return held
    pixels = np.asarray(held.scaled(held.features), np.float32)
    if how == "standardised":
        return ClassificationData((pixels - pixels.mean(axis=0)) / np.maximum(pixels.std(axis=0), 1e-6), held.labels)
    return ClassificationData(pixels / np.linalg.norm(pixels, axis=1, keepdims=True), held.labels)


def run(cell: Cell, network: Network) -> Plain:
    """Loss and test accuracy (%) with rectified units by rounds, and the squared slope at the start; a run that diverges has them up to
    where it did.
    """
    settings = cell.settings
    if settings["method"] == "FedRZO":
        own = {name: settings[name] for name in ("smoothing", "local_steps")}
        steps = Decay(STEP, settings["decay"]) if settings["decay"] else STEP
        solver: Any = FedRZO.published("nn", batch_size=settings["batch"], step_size=steps, **own)
    else:
        solver = BASELINES[settings["method"]][0](settings["local_steps"])
    judged: list[tuple[float, float]] = []

    def loss(x: dict[Any, np.ndarray], y: Any) -> float:
        named = by_name(x)
        judged.append(network.judge(named["Z"], named["w"]))
        return judged[-1][0]

    every, diverged = max(1, settings["rounds"] // 20), ""
    start = network.start(settings["deviation"], settings["seed"])
    try:
        network.problem.solve(
            solver,
            rounds=settings["rounds"],
            seed=settings["seed"],
            x0=start,
            queries="raw",
            metrics={"loss": loss},
            evaluate_every=every,
            progress=False,
        )
    except DivergedError as error:
        diverged = str(error)
    losses, accuracies = np.array(judged).T
    rounds = np.minimum(every * np.arange(len(losses)), settings["rounds"])
    begun = by_name(start)
    slope = network.squared_slope(begun["Z"], begun["w"])
    return {"round": rounds, "loss": losses, "accuracy": accuracies, "diverged": diverged, "squared_slope": slope}


def _end_of(runs: Sequence[Plain], what: str, digits: int) -> str:
    """The mean over seeds at the last round, with half its 95 % interval."""
    if any(one["diverged"] for one in runs):
        return "diverged"
    return interval([one[what][-1] for one in runs], digits) or "no data"


def _tables(measured: Measured, columns: Mapping[str, str], loss: str, first: bool = True) -> list[Table]:
    """A row for all values of some settings, whose ``columns`` have these heads: the loss, with that of the ``first`` round beside it."""
    rows = [["data", *columns.values(), *(["loss at the start"] if first else []), loss, "test accuracy (%)"]]
    for chosen in measured.each("data", *columns):
        runs = measured.of(**dict(zip(("data", *columns), chosen)))
        begun = [f"{runs[0]['loss'][0]:.4f}" if runs else ""] if first else []
        told = ("rectified" if one is None else one if isinstance(one, str) else f"{one:g}" for one in chosen)
        rows.append([*told, *begun, _end_of(runs, "loss", 4), _end_of(runs, "accuracy", 1)])
    return [(f"Training loss after {measured.cells[0].settings['rounds']} rounds, {measured.seeds}", rows)]


def draw_runs(ax: Axes, runs: Sequence[Plain], label: str, **style: Any) -> None:
    """The loss by round: the mean over the seeds with its 95 % band, up to the first round at which one of them diverged."""
    whole = [one for one in runs if "loss" in one]  # a bilevel run that diverged has none
    if whole:
        shortest = min(len(one["loss"]) for one in whole)
        losses = [one["loss"][:shortest] for one in whole]
        draw_mean(ax, whole[0]["round"][:shortest], losses, label=label, **style)


def _finish(ax: Axes, title: str) -> None:
    ax.set(title=title, xlabel="communication round", ylabel="training loss")
    ax.legend()


# --- [NN] Figure 1: a panel for each smoothing, a line with its band for each number of local steps -----------------------------


def _plan_of_steps(full: bool, data: DataSets) -> list[Cell]:
    return [
        relu_cell(data.first("MNIST"), ROUNDS[full], seed, steps, smoothing=smoothing)
        for seed in range(5 if full else 3)
        for smoothing in (SMOOTHING if full else SMOOTHING[::2])
        for steps in (STEPS if full else (1, 20))
    ]


def _draw_of_steps(measured: Measured) -> Figure:
    columns = measured.each("smoothing")
    figure, (axes,) = panels(1, len(columns), 4.0, 3.4, sharey=True)
    for ax, smoothing in zip(axes, columns):
        for steps in measured.each("local_steps"):
            draw_runs(ax, measured.of(smoothing=smoothing, local_steps=steps), f"H = {steps}")
        _finish(ax, f"η = {smoothing:g}")
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
    prepare=prepare,
    run=run,
    tables=lambda measured: _tables(measured, {"smoothing": "eta", "local_steps": "H"}, "loss"),
    draw=_draw_of_steps,
    smaller="200 of 1000 rounds, 3 of 5 seeds, eta = 0.1 and 0.001, H = 1 and 20; MNIST, or scikit-learn's digits",
    differs=DIFFERS,
    left_open=(*LEFT_OPEN, "the number of rounds and of seeds: 1000 and 5"),
)


# --- [2S] Figure 2: a panel for each sharpness, a line for each method; FedRZO's is the same in all ----------------------------


def _plan_beside_softplus(full: bool, data: DataSets) -> list[Cell]:
    name = data.first("MNIST")
    cells = []
    for seed in range(3 if full else 1):
        cells.append(relu_cell(name, ROUNDS[full], seed, 10, smoothing=0.01))
        for beta, method in product(SHARPNESS if full else SHARPNESS[::2], BASELINES):
            cells.append(relu_cell(name, ROUNDS[full], seed, 10, method=method, softplus=beta))
    return cells


def _draw_beside_softplus(measured: Measured) -> Figure:
    columns = [beta for beta in measured.each("softplus") if beta is not None]
    figure, (axes,) = panels(1, len(columns), 3.6, 3.4, sharey=True)
    for ax, beta in zip(axes, columns):
        draw_runs(ax, measured.of(method="FedRZO"), "FedRZO")
        for method, (_, look) in BASELINES.items():
            draw_runs(ax, measured.of(method=method, softplus=beta), method, linestyle=look)
        _finish(ax, f"baselines with β = {beta:g}")
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
    prepare=prepare,
    run=run,
    tables=lambda measured: _tables(measured, {"softplus": "beta", "method": "method"}, "loss with rectified units", False),
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


# --- [2S] Figure 3: a panel for each number of units; colours are numbers of local steps, dashes the smoothing ------------------


def _plan_of_neurons(full: bool, data: DataSets) -> list[Cell]:
    stand_in = data.first("CIFAR-10", "MNIST")
    return [
        relu_cell(name, ROUNDS[full], seed, steps, smoothing=smoothing, neurons=neurons)
        for name in dict.fromkeys((stand_in if full or stand_in == "CIFAR-10" else "digits", "CIFAR-10"))
        for seed in range(3 if full else 1)
        for neurons in NEURONS
        for smoothing in (SMOOTHING if full else SMOOTHING[::2])
        for steps in (STEPS if full else (1, 20))
    ]


def _draw_of_neurons(measured: Measured) -> Figure:
    figure, (axes,) = panels(1, len(NEURONS), 4.0, 3.6)
    for ax, neurons in zip(axes, NEURONS):
        for place, steps in enumerate(measured.each("local_steps")):
            for smoothing, look in zip(measured.each("smoothing"), ("-", "--", ":")):
                runs = measured.of(neurons=neurons, smoothing=smoothing, local_steps=steps)
                draw_runs(ax, runs, f"H = {steps}, η = {smoothing:g}", color=f"C{place}", linestyle=look)
        _finish(ax, f"N = {neurons}")
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
    prepare=prepare,
    run=run,
    tables=lambda measured: _tables(measured, {"neurons": "N", "smoothing": "eta", "local_steps": "H"}, "loss"),
    draw=_draw_of_neurons,
    smaller="200 of 1000 rounds, one of 3 seeds, eta = 0.1 and 0.001, H = 1 and 20; scikit-learn's digits where CIFAR-10 is absent",
    differs=(
        *DIFFERS,
        "On scikit-learn's digits, the stand-in, larger networks end lower, not higher, and eta makes no difference; the first losses differ between N, since "
        "all weights start with the same deviation.",
    ),
    left_open=(*LEFT_OPEN, "the number of rounds and of seeds: 1000 and 3; H in {1, 5, 10, 20} as in Figure 1"),
)


# --- what decides whether Figure 3 diverges: each of our choices changed alone, from the one that Figure 1 has ------------------

CHOICES: dict[str, dict[str, Any]] = {
    "as for MNIST: scale 300": {},
    "H = 1": {"local_steps": 1},
    "N = 20": {"neurons": 20},
    "N = 4": {"neurons": 4},
    "eta = 0.001": {"smoothing": 0.001},
    "minibatch of 1": {"batch": 1},
    "minibatch of 512": {"batch": 512},
    "gamma / sqrt(r + 1)": {"decay": 0.5},
    "pixels standardised": {"pixels": "standardised"},
    "images of length 1": {"pixels": "of length 1"},
    f"weights N(0, fan-in), {FAN_IN}": {"deviation": FAN_IN},
    "weights N(0, 0.03^2)": {"deviation": 0.03},
    "weights N(0, 0.01^2)": {"deviation": 0.01},
    "scale 100": {"scale": 100.0},
    "scale 30": {"scale": 30.0},
    "scale 30, minibatch of 1": {"scale": 30.0, "batch": 1},
}


def _plan_of_choices(full: bool, data: DataSets) -> list[Cell]:
    cells = []
    for varied, own in CHOICES.items():
        settings = {"neurons": 100, "local_steps": 20, "smoothing": 0.1, "scale": SCALE, **own}
        cell = relu_cell("CIFAR-10", 100 if full else 10, 0, **settings)
        cells.append(replace(cell, name=varied, group=varied))
    return cells


def _tables_of_choices(measured: Measured) -> list[Table]:
    rows = [["changed", "gamma x scale x squared slope", "loss at the start", "loss", "test accuracy (%)"]]
    for cell in measured.cells:
        one = measured.numbers.get(cell.name)
        if one is None:
            rows.append([cell.name, "no data", "", "", ""])
            continue
        last = f"diverged after round {one['round'][-1]}" if one["diverged"] else f"{one['loss'][-1]:.4f}"
        steep = STEP * cell.settings["scale"] * one["squared_slope"]
        rows.append([cell.name, f"{steep:.3f}", f"{one['loss'][0]:.4f}", last, "" if one["diverged"] else f"{one['accuracy'][-1]:.1f}"])
    rounds = measured.cells[0].settings["rounds"]
    return [(f"N = 100, H = 20, eta = 0.1 but for what is changed; {rounds} rounds, one seed", rows)]


CHOSEN = Reproduction(
    name="2s-fig3-choices",
    about="which of the choices that [2S] leaves open makes its Figure 3 diverge: each changed alone",
    source="[2S] (Qiu, Shanbhag, Yousefian, 2024), Figure 3, §6.1, what is left open",
    caption="(no table of the paper: what its Figure 3 does with other choices)",
    data=("CIFAR-10",),
    plan=_plan_of_choices,
    prepare=prepare,
    run=run,
    tables=_tables_of_choices,
    smaller="10 of 100 rounds",
    differs=(
        "Gamma, times the scale, times the mean squared length of the network's gradient at the start, which is the trace of the loss's Gauss-Newton "
        "matrix, tells how far a step is from where the loss is nearly quadratic. It grows with the number of units and with the squared length of an image. "
        "It is not all: with one sample instead of 32 a run diverges that does not else.",
    ),
    left_open=LEFT_OPEN,
)
