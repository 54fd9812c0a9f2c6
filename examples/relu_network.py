"""Federated training of a ReLU network without gradients ([2S] §6.1): local steps, smoothing, and softplus baselines.

FedRZO minimises the nonsmooth loss itself. Methods that need gradients train the network with softplus units of some
sharpness beta; all are judged by the loss with ReLU units. The paper's step size 1e-5 is used for FedRZO; a first-order
method sees a gradient without the zeroth-order noise and may take the step that suits it (``--baseline-step``).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import load
from reporting import add_data_options, command_line, console, print_table, save

import hierfl as hf
from hierfl.house_style import house_style
from hierfl.models import ClassificationData, relu_network
from hierfl.models.relu_network import initial_weights
from hierfl.solvers import FedAvg, FedMSPP, FedProx, FedRZO, Scaffnew

STEP = 1e-5
DASHES: dict[str, Any] = {  # curves that coincide stay visible
    "FedRZO": "-",
    "FedAvg": "--",
    "FedProx": (3, (3, 3)),
    "FedMSPP": ":",
    "Scaffnew": "-.",
}
COMPARED_SMOOTHING, COMPARED_STEPS = 0.01, 10


@dataclass(frozen=True)
class Run:
    """One method: loss and test accuracy (%) with ReLU units, by round."""

    method: str
    smoothing: float | None
    local_steps: int
    beta: float | None
    rounds: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray
    value: float


def train(problem: hf.Problem, solver: Any, rounds: int, judge: Any, seed: int, **about: Any) -> Run:
    """One run from the common start, judged every twentieth of the rounds by ``judge(Z, w) -> (loss, accuracy)``."""
    judged: list[tuple[float, float]] = []

    def loss(x: dict[Any, np.ndarray], y: Any) -> float:
        named = {v.name(): value for v, value in x.items()}
        judged.append(judge(named["Z"], named["w"]))
        return judged[-1][0]

    start = initial_weights(problem, seed=seed)
    result = problem.solve(
        solver,
        rounds=rounds,
        seed=seed,
        x0=start,
        metrics={"loss": loss},
        evaluate_every=max(1, rounds // 20),
        progress=False,
    )
    losses, accuracies = np.array(judged).T
    return Run(rounds=result.metrics["round"], loss=losses, accuracy=accuracies, value=result.value, **about)


def judge_of(data: ClassificationData, problem: hf.Problem) -> Any:
    """``judge(Z, w)``: half the mean squared error on the clients' data (10,000 spread over them if there are more), and
    the accuracy of the sign on test data.
    """
    federation = problem.federation
    assert federation is not None and federation.test is not None
    own = [{s.name(): a for s, a in client.samples.items()} for client in federation.clients]
    images, targets = (np.concatenate([c[name] for c in own]) for name in ("image", "target"))
    chosen = np.linspace(0, len(targets) - 1, min(len(targets), 10_000)).astype(int)
    images, targets = data.scaled(images[chosen]), targets[chosen]
    test = {s.name(): a for s, a in federation.test.items()}
    unseen = data.scaled(test["image"])

    def judge(hidden: np.ndarray, output: np.ndarray) -> tuple[float, float]:
        def network(rows: np.ndarray) -> np.ndarray:
            return np.maximum(rows @ hidden.T, 0.0) @ output

        correct = (network(unseen) > 0) == (test["target"] > 0)
        return 0.5 * float(np.mean((targets - network(images)) ** 2)), 100.0 * float(np.mean(correct))

    return judge


def run_all(data: ClassificationData, options: argparse.Namespace) -> tuple[list[Run], list[Run]]:
    """FedRZO for every smoothing and H; then the comparison with softplus baselines for every beta."""
    problem = relu_network(data, neurons=options.neurons, seed=options.seed)
    judge = judge_of(data, problem)
    own = []
    for smoothing in options.smoothing:
        for local_steps in options.steps:
            solver = FedRZO(smoothing=smoothing, step_size=STEP, local_steps=local_steps)
            about = {"method": "FedRZO", "smoothing": smoothing, "local_steps": local_steps, "beta": None}
            own.append(train(problem, solver, options.rounds, judge, options.seed, **about))
    solver = FedRZO(smoothing=COMPARED_SMOOTHING, step_size=STEP, local_steps=COMPARED_STEPS)
    about = {"method": "FedRZO", "smoothing": COMPARED_SMOOTHING, "local_steps": COMPARED_STEPS, "beta": None}
    compared = [train(problem, solver, options.rounds, judge, options.seed, **about)]
    for beta in options.betas:
        smooth = relu_network(data, neurons=options.neurons, softplus=beta, seed=options.seed)
        for name, baseline in baselines(options.baseline_step).items():
            about = {"method": name, "smoothing": None, "local_steps": COMPARED_STEPS, "beta": beta}
            compared.append(train(smooth, baseline, options.rounds, judge, options.seed, **about))
    return own, compared


def baselines(step: float) -> dict[str, Any]:
    """The methods that the paper compares with, with equal steps and equally many of them (Scaffnew: on average)."""
    return {
        "FedAvg": FedAvg(step_size=step, batch_size=32, local_steps=COMPARED_STEPS),
        "FedProx": FedProx(step_size=step, batch_size=32, local_steps=COMPARED_STEPS, proximal=1.0),
        "FedMSPP": FedMSPP(step_size=step, batch_size=32, local_steps=COMPARED_STEPS, proximal_step=1.0),
        "Scaffnew": Scaffnew(step_size=step, probability=1 / COMPARED_STEPS),
    }


def save_figures(own: list[Run], compared: list[Run], options: argparse.Namespace) -> list[Path]:
    """Loss by round for each smoothing and H; and against the baselines, one panel for each beta."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with house_style():
        count = len(options.smoothing)
        figure, axes = plt.subplots(1, count, figsize=(4.0 * count, 3.4), squeeze=False, sharey=True)
        for ax, smoothing in zip(axes[0], options.smoothing):
            for run in own:
                if run.smoothing == smoothing:
                    ax.plot(run.rounds, run.loss, label=f"H = {run.local_steps}")
            ax.set(title=f"FedRZO, η = {smoothing:g}", xlabel="round")
        axes[0][0].set(ylabel="training loss, ReLU")
        axes[0][0].legend()
        paths = [save(figure, options.figures, "relu_network")]
        count = len(options.betas)
        if count:
            figure, axes = plt.subplots(1, count, figsize=(4.0 * count, 3.6), squeeze=False, sharey=True)
            for ax, beta in zip(axes[0], options.betas):
                for run in compared:
                    if run.beta in (None, beta):
                        ax.plot(run.rounds, run.loss, label=run.method, linestyle=DASHES[run.method])
                ax.set(title=f"baselines on softplus, β = {beta:g}", xlabel="round")
            axes[0][0].set(ylabel="training loss, ReLU")
            axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
            paths.append(save(figure, options.figures, "relu_network_baselines"))
    return paths


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = command_line(__doc__)
    add_data_options(parser)
    parser.add_argument("--neurons", type=int, default=4, help="N_1")
    parser.add_argument("--smoothing", type=float, nargs="+", help="eta (default: 0.1 0.001; full: 0.1 0.01 0.001)")
    parser.add_argument("--steps", type=int, nargs="+", help="H (default: 1 5 20; full: 1 5 10 20)")
    parser.add_argument("--betas", type=float, nargs="*", help="sharpness of softplus (default: 1 10; full: 1 5 10 50)")
    parser.add_argument("--baseline-step", type=float, default=STEP)
    options = parser.parse_args(arguments)
    full = options.full
    options.rounds = options.rounds or (1000 if full else 300)
    options.smoothing = options.smoothing or ([0.1, 0.01, 0.001] if full else [0.1, 0.001])
    options.steps = options.steps or ([1, 5, 10, 20] if full else [1, 5, 20])
    options.betas = ([1.0, 5.0, 10.0, 50.0] if full else [1.0, 10.0]) if options.betas is None else options.betas
    return options


def main(arguments: list[str] | None = None) -> tuple[list[Run], list[Run]]:
    """Run both experiments and return their runs."""
    options = parse(arguments)
    out = console()
    name, data = load(options.data, options.download)
    own, compared = run_all(data, options)
    first = own[0]
    columns = ("method", "η", "H", "β", "training loss, ReLU", "test accuracy (%)")
    rows = [
        (r.method, _shown(r.smoothing), r.local_steps, _shown(r.beta), f"{r.loss[-1]:.4f}", f"{r.accuracy[-1]:.1f}")
        for r in (*own, *compared)
    ]
    start = f"start: loss {first.loss[0]:.4f}, accuracy {first.accuracy[0]:.1f}"
    print_table(
        out, f"Network of {options.neurons} ReLU units on {name}, {options.rounds} rounds; {start}", columns, rows
    )
    for path in save_figures(own, compared, options):
        out.print(f"saved {path}")
    return own, compared


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


if __name__ == "__main__":
    main()
