"""How strongly should each client regularise a common classifier? Learned by FedRZO from validation data ([2S] §6.2).

Parity of MNIST's digits if ``--data`` is given, else scikit-learn's breast-cancer data. y(x) depends on the mean of x
alone and f on x only through y, so that f can be drawn as a curve; and since the local steps use delayed answers, H of
them do what one step H times as long would do.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import load
from reporting import add_data_options, band, command_line, console, draw_band, print_table, save

import hierfl as hf
from hierfl.house_style import house_style
from hierfl.models import hyperparameter_learning
from hierfl.models.relu_network import parity
from hierfl.solvers import LFD, FedRZO

FLOOR, START = 1e-3, 0.5


@dataclass(frozen=True)
class Outcome:
    """All seeds of one H: test loss (seeds, evaluations) at ``rounds``, and the results."""

    local_steps: int
    rounds: np.ndarray
    test_loss: np.ndarray
    results: list[hf.Result]


def load_binary(options: argparse.Namespace) -> tuple[str, np.ndarray, np.ndarray]:
    """(name, features, labels -1 or 1); the bundled data are standardised."""
    if options.data or options.download or os.environ.get("HIERFL_DATA"):
        name, data = load(options.data, options.download)
        return f"{name}, odd or even", data.scaled(data.features), parity(data.labels)
    from sklearn.datasets import load_breast_cancer

    features, labels = load_breast_cancer(return_X_y=True)
    return "breast cancer", (features - features.mean(axis=0)) / features.std(axis=0), 2.0 * labels - 1.0


def run_all(problem: hf.Problem, options: argparse.Namespace) -> list[Outcome]:
    """Every H, every seed."""
    federation = problem.federation
    assert federation is not None and federation.test is not None
    test = {s.name(): a for s, a in federation.test.items()}

    def test_loss(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0, -test["label"] * (test["image"] @ y))))

    lower = LFD(rounds=options.lower_rounds, steps=5, step_size=options.lower_step, batch_size=options.lower_batch)
    outcomes = []
    for local_steps in options.steps:
        solver = FedRZO(
            smoothing=options.smoothing,
            step_size=options.step_size,
            local_steps=local_steps,
            lower=lower,
            batch_size=None,
        )
        results = [
            problem.solve(
                solver,
                rounds=options.rounds,
                seed=options.seed + place,
                x0=np.full(federation.num_clients, START),
                metrics={"test loss": test_loss},
                evaluate_every=max(1, options.rounds // 20),
                progress=False,
            )
            for place in range(options.seeds)
        ]
        losses = np.stack([r.metrics["test loss"] for r in results])
        outcomes.append(Outcome(local_steps, results[0].metrics["round"], losses, results))
    return outcomes


def profile(problem: hf.Problem, points: int = 31) -> tuple[np.ndarray, np.ndarray]:
    """f along x = t 1, which is all of f: (t, f)."""
    assert problem.federation is not None
    grid = np.geomspace(FLOOR, 2 * START, points)
    return grid, np.array([problem.implicit(np.full(problem.federation.num_clients, t)) for t in grid])


def print_outcomes(out: Any, title: str, outcomes: list[Outcome], curve: tuple[np.ndarray, np.ndarray]) -> None:
    """The table: means over seeds with 95% confidence."""
    rows = []
    for o in outcomes:
        cells = []
        for values in ([r.value for r in o.results], [r.x.mean() for r in o.results], o.test_loss[:, -1]):
            mean, width = band(np.asarray(values)[:, None])
            cells.append(f"{mean[0]:.4f} ± {width[0]:.4f}")
        sent = o.results[0].communication
        rows.append((o.local_steps, *cells, f"{sent['scalars_up']:,}", f"{sent['lower_scalars_up']:,}"))
    columns = ("H", "f(x)", "mean of x", "test loss", "scalars up", "up, lower level")
    print_table(out, title, columns, rows)
    grid, values = curve
    best = int(np.argmin(values))
    out.print(
        f"on a grid, f is least at mean {grid[best]:.4g}: {values[best]:.4f}; at the start {START:g} it is "
        f"{np.interp(START, grid, values):.4f}"
    )


def save_figure(outcomes: list[Outcome], curve: tuple[np.ndarray, np.ndarray], folder: Path) -> Path:
    """Test loss by round with 95% bands, and where on f the runs ended."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with house_style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
        right.plot(*curve, color="black", linewidth=1.0)
        for place, o in enumerate(outcomes):
            draw_band(left, o.rounds, o.test_loss, f"H = {o.local_steps}")
            ends = [r.x.mean() for r in o.results], [r.value for r in o.results]
            right.plot(*ends, "osD^v"[place % 5], color=f"C{place}", label=f"H = {o.local_steps}")
        left.set(title="logistic loss on test data, 95% bands", xlabel="round", ylabel="test loss")
        right.set(title="f, and where the runs ended", xlabel="mean of x", ylabel="f(x)", xscale="log")
        left.legend()
        right.legend()
        return save(figure, folder, "hyperparameter_learning")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = command_line(__doc__)
    add_data_options(parser)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--seeds", type=int, help="runs for the confidence bands (default: 3; full: 10)")
    parser.add_argument("--steps", type=int, nargs="+", help="H (default: 1 5 20; full: 1 5 10 20)")
    parser.add_argument("--smoothing", type=float, default=0.01, help="eta")
    parser.add_argument("--step-size", type=float, default=2e-4, help="gamma; keep gamma / eta below 1")
    parser.add_argument("--lower-rounds", type=int, default=10, help="lower rounds in a round, of 5 local steps")
    parser.add_argument("--lower-step", type=float, default=0.3)
    parser.add_argument("--lower-batch", type=int, help="minibatch of the lower level (default: all samples)")
    parser.add_argument("--samples", type=int, help="use this many samples (default: 2000; full: all)")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1000 if options.full else 200)
    options.seeds = options.seeds or (10 if options.full else 3)
    options.samples = options.samples or (None if options.full else 2000)
    options.steps = options.steps or ([1, 5, 10, 20] if options.full else [1, 5, 20])
    return options


def main(arguments: list[str] | None = None) -> list[Outcome]:
    """Run the experiment and return its outcomes."""
    options = parse(arguments)
    out = console()
    name, features, labels = load_binary(options)
    if options.samples and options.samples < len(labels):
        chosen = np.random.default_rng(options.seed).choice(len(labels), options.samples, replace=False)
        features, labels = features[chosen], labels[chosen]
    problem = hyperparameter_learning(features, labels, clients=options.clients, floor=FLOOR, seed=options.seed)
    out.print(str(problem), markup=False, highlight=False)
    outcomes, curve = run_all(problem, options), profile(problem)
    title = (
        f"Regularisation learned on {name}: {options.rounds} rounds, {options.clients} clients, {options.seeds} seeds"
    )
    print_outcomes(out, title, outcomes, curve)
    out.print(f"saved {save_figure(outcomes, curve, options.figures)}")
    return outcomes


if __name__ == "__main__":
    main()
