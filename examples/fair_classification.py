"""Fair classification: a ReLU network against the worst mixture of its class losses, by FedRZO ([2S] §6.3).

The server's lower-level problem, which mixture y of the ten classes hurts most, is solved by all clients together once a
round. Beside it, the same network trained on the mean loss: better on average, worse on its worst class.
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
from hierfl.models import ClassificationData, fair_classification, relu_network
from hierfl.models.relu_network import initial_weights
from hierfl.solvers import FedRZO, LocalSGD


@dataclass(frozen=True)
class Outcome:
    """One training: squared errors by class on test data, (evaluations, classes), at ``rounds``."""

    name: str
    rounds: np.ndarray
    class_losses: np.ndarray
    result: hf.Result


def test_losses(data: ClassificationData, problem: hf.Problem, labels: np.ndarray) -> Any:
    """``losses(Z, w)``: the mean squared error on the test data of each class, ``(classes,)``."""
    federation = problem.federation
    assert federation is not None and federation.test is not None
    test = {s.name(): a for s, a in federation.test.items()}
    images = data.scaled(test["image"])
    classes = int(labels.max()) + 1
    members = [labels == c for c in range(classes)]

    def losses(hidden: np.ndarray, output: np.ndarray) -> np.ndarray:
        errors = (test["target"] - np.maximum(images @ hidden.T, 0.0) @ output) ** 2
        return np.array([errors[of].mean() for of in members])

    return losses


def train(name: str, problem: hf.Problem, solver: FedRZO, losses: Any, options: argparse.Namespace) -> Outcome:
    """One run, judged every twentieth of the rounds."""
    judged: list[np.ndarray] = []

    def worst(x: dict[Any, np.ndarray], y: Any) -> float:
        named = {v.name(): value for v, value in x.items()}
        judged.append(losses(named["Z"], named["w"]))
        return float(judged[-1].max())

    result = problem.solve(
        solver,
        rounds=options.rounds,
        seed=options.seed,
        x0=initial_weights(problem, seed=options.seed),
        metrics={"worst class": worst},
        evaluate_every=max(1, options.rounds // 20),
        progress=False,
    )
    return Outcome(name, result.metrics["round"], np.array(judged), result)


def run_all(data: ClassificationData, options: argparse.Namespace) -> list[Outcome]:
    """The minimax problem for every H, then the mean loss with the largest H."""
    problem = fair_classification(data, neurons=options.neurons, lam=options.lam, seed=options.seed)
    assert problem.federation is not None and problem.federation.test is not None
    share = next(a for s, a in problem.federation.test.items() if s.name() == "share")
    losses = test_losses(data, problem, np.argmax(share, axis=1))
    lower = LocalSGD(rounds=options.lower_rounds, steps=10, batch_size=128)
    outcomes = []
    for local_steps in options.steps:
        solver = FedRZO(
            smoothing=options.smoothing,
            step_size=options.step_size,
            local_steps=local_steps,
            lower=lower,
            batch_size=128,
        )
        outcomes.append(train(f"fair, H = {local_steps}", problem, solver, losses, options))
    plain = relu_network(data, neurons=options.neurons, scale=2.0, lam=0.0, seed=options.seed)
    solver = FedRZO(
        smoothing=options.smoothing, step_size=options.step_size, local_steps=max(options.steps), batch_size=128
    )
    outcomes.append(train(f"mean loss, H = {max(options.steps)}", plain, solver, losses, options))
    return outcomes


def save_figure(outcomes: list[Outcome], folder: Path) -> Path:
    """The worst class's test loss by round, and the final losses by class."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with house_style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.6))
        for place, o in enumerate(outcomes):
            style = "--" if o is outcomes[-1] else "-"
            left.plot(o.rounds, o.class_losses.max(axis=1), style, color=f"C{place}", label=o.name)
        classes = np.arange(outcomes[0].class_losses.shape[1])
        for shift, place in ((-0.2, len(outcomes) - 2), (0.2, len(outcomes) - 1)):
            o = outcomes[place]
            right.bar(classes + shift, o.class_losses[-1], 0.38, color=f"C{place}", label=o.name)
        left.set(title="worst class, test data", xlabel="round", ylabel="squared error")
        right.set(title="every class, test data", xlabel="class", ylabel="squared error", xticks=classes)
        right.margins(y=0.25)
        left.legend()
        right.legend(ncols=2, loc="upper center")
        return save(figure, folder, "fair_classification")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = command_line(__doc__)
    add_data_options(parser)
    parser.add_argument("--neurons", type=int, default=4, help="N_1")
    parser.add_argument("--lam", type=float, default=0.1, help="strong concavity in y")
    parser.add_argument("--steps", type=int, nargs="+", help="H (default: 1 5 20; full: 1 5 10 20)")
    parser.add_argument("--smoothing", type=float, default=0.01, help="eta")
    parser.add_argument("--step-size", type=float, default=5e-4, help="gamma; H gamma above 0.02 or so diverges")
    parser.add_argument("--lower-rounds", type=int, default=5, help="lower rounds in a round, of 10 local steps")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3000 if options.full else 500)
    options.steps = options.steps or ([1, 5, 10, 20] if options.full else [1, 5, 20])
    return options


def main(arguments: list[str] | None = None) -> list[Outcome]:
    """Run the experiment and return its outcomes."""
    options = parse(arguments)
    out = console()
    name, data = load(options.data, options.download)
    outcomes = run_all(data, options)
    fair, plain = outcomes[:-1], outcomes[-1]
    rows = []
    for o in (*fair, plain):
        value, worst = ("", "") if o is plain else (f"{o.result.value:.4f}", int(np.argmax(o.result.y)))
        last = o.class_losses[-1]
        rows.append((o.name, value, worst, f"{last.max():.4f}", int(np.argmax(last)), f"{last.mean():.4f}"))
    columns = ("training", "f(x)", "heaviest y", "worst class", "which", "mean of classes")
    start = outcomes[0].class_losses[0]
    title = f"{name}, {options.rounds} rounds; test losses (start: worst {start.max():.4f}, mean {start.mean():.4f})"
    print_table(out, title, columns, rows)
    out.print(f"saved {save_figure(outcomes, options.figures)}")
    return outcomes


if __name__ == "__main__":
    main()
