"""The network of rectified units of [NN] §5.1 and [2S] §6.1 as its experiments run it, by FedRZO and by methods on softplus units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.errors import DivergedError
from hierfl.models import relu_network
from hierfl.models.relu_network import initial_weights
from hierfl.problem import Problem
from hierfl.reproduce.heterogeneous.heterogeneous_table import interval
from hierfl.reproduce.reproduction import Cell, DataSets, Measured, Plain, draw_mean
from hierfl.solvers import FedAvg, FedMSPP, FedProx, FedRZO, Scaffnew

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLIENTS, LAM, SCALE, BATCH, DEVIATION = 5, 0.01, 300.0, 32, 0.1
STEP = 1e-5
JUDGED = 10_000  # rows
BASELINES: dict[str, Callable[[int], Any]] = {
    "FedAvg": lambda steps: FedAvg(step_size=STEP, local_steps=steps),
    "FedProx": lambda steps: FedProx(step_size=STEP, local_steps=steps, proximal=1.0),
    "FedMSPP": lambda steps: FedMSPP(step_size=STEP, local_steps=steps, proximal_step=1.0),
    "Scaffnew": lambda steps: Scaffnew(step_size=STEP, probability=1 / steps),
}
PRINTS_CURVES = "The paper prints curves and no numbers; what it says of them stands in the caption."
DIFFERS = (
    PRINTS_CURVES,
    f"Minibatches have {BATCH} rows, where Algorithm 1 draws one sample: the noise is less than the paper's, and the pace the same.",
)
LEFT_OPEN = (
    f"the scale of the loss: the paper sums over images; here {SCALE:g} times the mean, since at gamma = 1e-5 a mean makes no visible progress and 3000 diverges",
    f"labels 1 for even and -1 for odd classes, N(0, {DEVIATION:g}^2) weights at the start, 10 % of the data for tests",
    "the loss that is drawn: half the mean squared error with rectified units over the clients' data (10,000 rows of it), without the regulariser",
)


def relu_cell(
    data: str,
    *,
    rounds: int,
    seed: int,
    local_steps: int,
    smoothing: float | None = None,
    neurons: int = 4,
    method: str = "FedRZO",
    softplus: float | None = None,
) -> Cell:
    """One run: FedRZO with its smoothing, or a baseline on softplus units of sharpness beta."""
    settings = {
        "data": data,
        "method": method,
        "neurons": neurons,
        "smoothing": smoothing,
        "softplus": softplus,
        "local_steps": local_steps,
        "rounds": rounds,
        "seed": seed,
        "scale": SCALE,
        "step_size": STEP,
    }
    own = f"eta = {smoothing:g}" if softplus is None else f"beta = {softplus:g}"
    name = f"{data}, N = {neurons}, {method}, {own}, H = {local_steps}, seed {seed}"
    return Cell(name, settings, data, f"{data}, {neurons}, {softplus}, {seed}")


def first_of(data: DataSets, *names: str) -> str:
    """The first of the data sets that is there, or scikit-learn's digits."""
    return next((name for name in names if name in data.found), "digits")


def run_relu(cell: Cell, data: DataSets) -> Plain:
    """Loss and test accuracy (%) with rectified units by rounds; a run that diverges has them up to where it did."""
    settings = cell.settings
    key = tuple(settings[name] for name in ("data", "neurons", "softplus", "seed", "scale"))
    problem, judge = data.once("relu", key, lambda: _prepared(cell, data))
    if settings["method"] == "FedRZO":
        solver: Any = FedRZO.published(
            "nn", smoothing=settings["smoothing"], local_steps=settings["local_steps"], batch_size=BATCH
        )
    else:
        solver = BASELINES[settings["method"]](settings["local_steps"])
    judged: list[tuple[float, float]] = []

    def loss(x: dict[Any, np.ndarray], y: Any) -> float:
        named = {variable.name(): value for variable, value in x.items()}
        judged.append(judge(named["Z"], named["w"]))
        return judged[-1][0]

    every = max(1, settings["rounds"] // 20)
    try:
        problem.solve(
            solver,
            rounds=settings["rounds"],
            seed=settings["seed"],
            x0=initial_weights(problem, DEVIATION, settings["seed"]),
            queries="raw",
            metrics={"loss": loss},
            evaluate_every=every,
            progress=False,
        )
        diverged = ""
    except DivergedError as error:
        diverged = str(error)
    losses, accuracies = np.array(judged).T
    rounds = np.minimum(every * np.arange(len(losses)), settings["rounds"])
    return {"round": rounds, "loss": losses, "accuracy": accuracies, "diverged": diverged}


def _prepared(cell: Cell, data: DataSets) -> tuple[Problem, Callable[[np.ndarray, np.ndarray], tuple[float, float]]]:
    """The problem, and ``judge(Z, w)``: the loss on the clients' data and the accuracy of the sign on test data."""
    settings, held = cell.settings, data.found[cell.settings["data"]]
    problem = relu_network(
        held,
        clients=CLIENTS,
        neurons=settings["neurons"],
        lam=LAM,
        scale=settings["scale"],
        softplus=settings["softplus"],
        seed=settings["seed"],
    )
    federation = problem.federation
    assert federation is not None and federation.test is not None
    own = [{sample.name(): array for sample, array in client.samples.items()} for client in federation.clients]
    images, targets = (np.concatenate([one[name] for one in own]) for name in ("image", "target"))
    chosen = np.linspace(0, len(targets) - 1, min(len(targets), JUDGED)).astype(int)
    images, targets = np.asarray(held.scaled(images[chosen])), targets[chosen]
    test = {sample.name(): np.asarray(array) for sample, array in federation.test.items()}
    unseen = np.asarray(held.scaled(test["image"]))

    def judge(hidden: np.ndarray, output: np.ndarray) -> tuple[float, float]:
        def network(rows: np.ndarray) -> np.ndarray:
            return np.asarray(np.maximum(rows @ hidden.T, 0.0) @ output)

        correct = (network(unseen) > 0) == (test["target"] > 0)
        return 0.5 * float(np.mean((targets - network(images)) ** 2)), 100.0 * float(np.mean(correct))

    return problem, judge


def end_of(runs: Sequence[Plain], what: str, digits: int) -> str:
    """The mean over seeds at the last round, with half its 95 % interval."""
    if any(one["diverged"] for one in runs):
        return "diverged"
    return interval([one[what][-1] for one in runs], digits) or "no data"


def draw_runs(ax: Axes, runs: Sequence[Plain], label: str, **style: Any) -> None:
    """The loss by round: the mean over the seeds with its 95 % band, up to the first round at which one of them diverged."""
    if not runs:
        return
    shortest = min(len(one["loss"]) for one in runs)
    rounds = np.array(runs[0]["round"][:shortest])
    losses = np.array([one["loss"][:shortest] for one in runs], dtype=float)
    draw_mean(ax, rounds, losses, label=label, **style)


def title_of(measured: Measured, what: str) -> str:
    """The title of a table: the rounds and seeds, and where the runs started."""
    return f"{what} after {measured.cells[0].settings['rounds']} rounds, {measured.seeds}"
