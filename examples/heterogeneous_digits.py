"""The main job: federated classification with server data and personal client models, by ZO-HFL ([HFL] §IV, Table I).

For each heterogeneity (alpha of the Dirichlet label split, beta of the participation) it runs ZO-HFL from the model that
the server pretrains on its own data, and prints, beside the global and the personal models, what server-only training
reaches from the same start with the same steps and samples (so that what the clients add can be seen) and what training
on everybody's pooled data would reach (the ceiling). A second table shows a server with few samples, and what the clients
add under the Moreau-envelope declaration (``few_server_samples.py``). Run ``python examples/heterogeneous_digits.py --help``.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import few_server_samples
import numpy as np
from classifiers import accuracy, data_of, held_out, predicted, train
from datasets import load
from rich.console import Console
from rich.table import Table

import hierfl as hf
from hierfl.inspect.pictures.convergence import exact_along, moving_mean
from hierfl.inspect.pictures.partition_plot import plot_partition
from hierfl.inspect.pictures.style import COLOURS, house_style
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.solvers import ZOHFL, Decay, ProjectedSGD

SETTINGS = ((1000.0, 0.9), (1.0, 0.5), (0.1, 0.1))


@dataclass
class Outcome:
    """What one heterogeneity gave; accuracies in percent."""

    alpha: float
    beta: float
    start: float
    server_only: float
    zohfl: float
    personal: float
    pooled: float
    value: float
    seconds: float
    result: hf.Result
    counts: np.ndarray


def client_test_accuracy(federation: hf.Federation, models: np.ndarray, test: ClassificationData) -> float:
    """Mean over clients of the personal model's accuracy on test data, reweighted to the client's own label shares."""
    labels, scores = test.labels, []
    for client, model in zip(federation.clients, models):
        held = data_of(test, client).labels
        own = np.bincount(held, minlength=model.shape[0]) / len(held)
        correct = predicted(model, test) == labels
        per_class = np.array(
            [correct[labels == c].mean() if (labels == c).any() else 0.0 for c in range(model.shape[0])]
        )
        scores.append(100.0 * float(own @ per_class))
    return float(np.mean(scores))


def run_setting(data: ClassificationData, alpha: float, beta: float, options: argparse.Namespace) -> Outcome:
    """One heterogeneity, all five accuracies."""
    scheme = hf.Dirichlet(alpha, labels=data.labels, min_samples=10)
    problem = heterogeneous_classification(
        data, clients=options.clients, scheme=scheme, lam=options.lam, mu=options.mu, seed=options.seed
    )
    federation = problem.federation
    assert federation is not None and federation.server is not None
    test, server = held_out(data, federation), data_of(data, federation.server)
    pooled, classes = data_of(data, federation.server, *federation.clients), data.onehot.shape[1]

    pretraining = ZOHFL(step_size=options.pretrain_step, batch_size=128)
    x0 = train(server, classes, solver=pretraining, rounds=options.pretrain_rounds, seed=options.seed)
    ceiling = train(
        pooled,
        classes,
        x0=x0,
        solver=ZOHFL(step_size=Decay(options.pretrain_step, 0.25), batch_size=128),
        rounds=options.pooled_rounds,
        seed=options.seed,
    )
    step = Decay(0.01, 0.5)
    alone = train(
        server, classes, x0=x0, solver=ZOHFL(step_size=step, batch_size=128), rounds=options.rounds, seed=options.seed
    )
    solver = ZOHFL(
        smoothing=0.1,
        step_size=step,
        participation=beta,
        batch_size=128,
        common_random_numbers=not options.independent,
        lower=ProjectedSGD(
            steps=Decay(options.tau, -0.5),
            step_size=Decay(0.1, 1.0),
            batch_size=options.batch,
            start="query" if options.cold else "warm",
        ),
    )
    began = time.perf_counter()
    result = problem.solve(
        solver,
        rounds=options.rounds,
        seed=options.seed,
        x0=x0,
        metrics={"test accuracy (%)": lambda x, y: accuracy(x, test)},
    )
    seconds = time.perf_counter() - began
    counts = np.stack([np.bincount(data_of(data, c).labels, minlength=classes) for c in federation.clients])
    return Outcome(
        alpha,
        beta,
        accuracy(x0, test),
        accuracy(alone, test),
        accuracy(result.x, test),
        client_test_accuracy(federation, result.y, test),
        accuracy(ceiling, test),
        result.value,
        seconds,
        result,
        counts,
    )


def print_outcomes(console: Console, name: str, outcomes: list[Outcome], options: argparse.Namespace) -> None:
    """The table of accuracies."""
    table = Table(
        title=f"Test accuracy (%) on {name}: {options.rounds} rounds, {options.clients} clients, tau = {options.tau}, minibatch {options.batch}"
    )
    for column in (
        "alpha, beta",
        "start x0",
        "server only",
        "ZO-HFL, global",
        "ZO-HFL, personal*",
        "pooled (ceiling)",
        "f(x)",
        "seconds",
    ):
        table.add_column(column, justify="right")
    for o in outcomes:
        table.add_row(
            f"{o.alpha:g}, {o.beta:g}",
            *(f"{v:.2f}" for v in (o.start, o.server_only, o.zohfl, o.personal, o.pooled)),
            f"{o.value:.5f}",
            f"{o.seconds:.1f}",
        )
    console.print(table)
    console.print("* exact personal models y_i(x), on the test data reweighted to each client's own label shares")
    console.print("f(x) is the implicit function: " + str(outcomes[-1].result.certificate))


def save_figures(outcomes: list[Outcome], folder: Path) -> list[Path]:
    """Label histograms over the clients, convergence, accuracies."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    with house_style():
        histograms, axes = plt.subplots(1, len(outcomes), figsize=(4.4 * len(outcomes), 4.0), squeeze=False)
        for ax, o in zip(axes[0], outcomes):
            plot_partition(o.counts, ax=ax)
            ax.set_title(f"Dirichlet({o.alpha:g})")
        convergence, axes = plt.subplots(1, 2, figsize=(9.5, 3.6))
        for o, colour in zip(outcomes, COLOURS):
            label = f"α = {o.alpha:g}, β = {o.beta:g}"
            estimates = o.result.history["objective"]
            own, exact = moving_mean(estimates, max(1, len(estimates) // 25)), exact_along(o.result)
            if exact is not None:
                axes[0].plot(*exact, "-o", color=colour, markersize=3, label=label)
            look = {"label": label} if exact is None else {"linewidth": 0.7, "alpha": 0.5}
            axes[0].plot(np.arange(1, len(own) + 1), own, color=colour, **look)
            axes[1].plot(o.result.metrics["round"], o.result.metrics["test accuracy (%)"], label=label)
        axes[0].set(xlabel="round", ylabel="objective", title="f(x); thin: with the run's own y, moving mean")
        axes[1].set(xlabel="round", ylabel="test accuracy (%)", title="global model")
        axes[0].legend()
        bars, ax = plt.subplots(figsize=(8.0, 3.8))
        series = {
            "start x0": "start",
            "server only": "server_only",
            "ZO-HFL, global": "zohfl",
            "ZO-HFL, personal": "personal",
            "pooled": "pooled",
        }
        for place, (label, field) in enumerate(series.items()):
            ax.bar(
                np.arange(len(outcomes)) + 0.16 * (place - 2), [getattr(o, field) for o in outcomes], 0.15, label=label
            )
        low = min(getattr(o, f) for o in outcomes for f in series.values())
        ax.set(
            xticks=range(len(outcomes)),
            ylim=(max(0.0, low - 5), 100.5),
            ylabel="test accuracy (%)",
            title="Accuracy by heterogeneity",
        )
        ax.set_xticklabels([f"α = {o.alpha:g}, β = {o.beta:g}" for o in outcomes])
        ax.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    paths = []
    for name, figure in (("clients", histograms), ("convergence", convergence), ("accuracy", bars)):
        paths.append(folder / f"heterogeneous_{name}.png")
        figure.savefig(paths[-1])
        plt.close(figure)
    return paths


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data", help="folder with MNIST's four idx.gz files (default: the environment variable HIERFL_DATA)"
    )
    parser.add_argument("--download", action="store_true", help="fetch MNIST where it is not there")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--tau", type=float, default=20, help="local steps are ceil(tau * sqrt(round + 1))")
    parser.add_argument("--batch", type=int, default=1, help="minibatch of a local step")
    parser.add_argument("--lam", type=float, default=1.0)
    parser.add_argument("--mu", type=float, default=0.1)
    parser.add_argument(
        "--independent",
        action="store_true",
        help="independent samples for the two evaluations of a pair, as in the paper",
    )
    parser.add_argument("--cold", action="store_true", help="start every local run at the queried x, as in the paper")
    parser.add_argument("--pretrain-rounds", type=int, default=2000)
    parser.add_argument("--pretrain-step", type=float, default=0.1)
    parser.add_argument("--pooled-rounds", type=int, default=4000)
    parser.add_argument(
        "--settings", type=int, nargs="*", default=[0, 1, 2], help="which of the three (alpha, beta) to run"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--few-seeds", type=int, default=5, help="seeds of the second table; 0 leaves it out")
    parser.add_argument("--few-rounds", type=int, default=200, help="its rounds")
    parser.add_argument("--figures", type=Path, default=Path("figures"))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> list[Outcome]:
    """Run the main job and return its outcomes."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 118)
    name, data = load(options.data, options.download)
    console.rule(f"[bold]{name}: {data.features.shape[0]} images, {data.features.shape[1]} pixels")
    declared = heterogeneous_classification(
        data, clients=options.clients, lam=options.lam, mu=options.mu, seed=options.seed
    )
    console.print(str(declared), markup=False, highlight=False)
    console.rule("lowered to")
    console.print(str(declared.explain()), markup=False, highlight=False)
    console.rule()
    outcomes = []
    for alpha, beta in (SETTINGS[i] for i in options.settings):
        console.print(f"Dirichlet({alpha:g}) labels, {beta:.0%} of the clients in a round")
        outcomes.append(run_setting(data, alpha, beta, options))
    print_outcomes(console, name, outcomes, options)
    if options.few_seeds:
        console.rule("a server with few samples")
        few_server_samples.run(console, name, data, rounds=options.few_rounds, seeds=options.few_seeds, tau=options.tau)
    for path in save_figures(outcomes, options.figures):
        console.print(f"saved {path}")
    return outcomes


if __name__ == "__main__":
    main()
