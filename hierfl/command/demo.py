"""``hierfl demo``: the first minute, one declared problem from its mathematics to a figure and a report.

A server holds 60 of scikit-learn's handwritten digits; ten clients hold the others, unevenly, and show them to nobody. Declared as
sums of Moreau envelopes, the clients' losses pull the server's model x through personal models y_i(x). The yardsticks are
plain logistic regressions on the server's own samples and on everybody's pooled data, each with the regularisation
that does best on the test data. Every seed deals the data out anew.
"""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from hierfl.errors import SettingError, needing
from hierfl.inspect.argument_checks import writable
from hierfl.language.federation.partition_schemes import Dirichlet
from hierfl.language.printing.card import WIDTH
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.problem import Problem
from hierfl.progress import RunProgress
from hierfl.result import Result
from hierfl.runs import aligned, half_width, interval
from hierfl.solvers import ImplicitGradient, ProjectedSGD

SERVER_SAMPLES, TEST_FRACTION, PARTICIPATION = 60, 0.1, 0.5
REGULARISATIONS = (0.1, 1.0, 10.0, 100.0)
ROUNDS, EVERY = 200, 10
ACCURACY = "test accuracy (%)"


@dataclass(frozen=True)
class DemoOutcome:
    """Test accuracies of one seed in percent, and its run."""

    server: float
    clients: float
    pooled: float
    result: Result

    @property
    def closed(self) -> float:
        """The share of the gap between server and pooled data that the clients close, in percent."""
        return 100.0 * (self.clients - self.server) / (self.pooled - self.server)


def demo(chosen: argparse.Namespace) -> None:
    """Print the three parts, write the figure and the report, and open the report."""
    if chosen.seeds < 1:
        raise SettingError(f"--seeds {chosen.seeds}: at least 1; an interval needs 2.")
    chosen.out.mkdir(parents=True, exist_ok=True)
    picture, page = chosen.out / "first_minute.png", chosen.out / "first_minute.html"
    writable(picture)
    data = _digits()
    print(f"WHAT IS DECLARED\n\n{_mathematics(_declared(data, 0))}\n")
    with RunProgress(chosen.seeds + 1, "demo", not chosen.quiet, "steps") as bar:
        outcomes = []
        for seed in range(chosen.seeds):
            outcomes.append(_outcome(data, seed, chosen.rounds))
            bar.update(seed + 1, f"seed {seed}")
        _draw(outcomes, picture)
        outcomes[0].result.report(page, points=11, check=False, smoothing=(), progress=False, overwrite=True)
        bar.update(chosen.seeds + 1, "report")
    print(f"WHAT IT GIVES\n\n{headline(outcomes)}\n\n{table(outcomes)}\n")
    print(f"WHERE TO LOOK\n\nfigure  {picture}\nreport  {page}")
    if chosen.open:
        webbrowser.open(page.resolve().as_uri())


def headline(outcomes: Sequence[DemoOutcome]) -> str:
    """The outcome in a sentence."""
    share = interval([o.closed for o in outcomes], 0)
    return (
        f"Private clients close {share} % of the gap between the server's own {SERVER_SAMPLES} samples\n"
        f"and everybody's pooled data ({len(outcomes)} seeds{', 95% interval' if len(outcomes) > 1 else ''})."
    )


def table(outcomes: Sequence[DemoOutcome]) -> str:
    """Test accuracies of the three models."""
    rounds = outcomes[0].result.settings["rounds_done"]
    rows = [
        [f"the server alone, on its {SERVER_SAMPLES} samples", interval([o.server for o in outcomes], 1)],
        [f"the server with 10 private clients, {rounds} rounds", interval([o.clients for o in outcomes], 1)],
        ["everybody's data pooled, which nobody may see", interval([o.pooled for o in outcomes], 1)],
    ]
    return aligned([["model trained by", ACCURACY], *rows])


def _digits() -> ClassificationData:
    with needing('the demo needs scikit-learn and plotly: pip install "hierfl[examples,report]".'):
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    return ClassificationData(np.asarray(images) / 16.0, np.asarray(labels))


def _mathematics(problem: Problem) -> str:
    """The declaration, its long lines wrapped."""
    lines = []
    for line in str(problem).splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        lines += wrap(line.strip(), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ", break_long_words=False)
    return "\n".join(lines)


def _declared(data: ClassificationData, seed: int) -> Problem:
    server = SERVER_SAMPLES / round(len(data.labels) * (1 - TEST_FRACTION))
    shares: dict[str, Any] = {"server_fraction": server, "test_fraction": TEST_FRACTION}
    scheme = Dirichlet(1.0, labels=data.labels, min_samples=10)
    return heterogeneous_classification(data, scheme=scheme, lam=10.0, mu=0.3, envelope=True, seed=seed, **shares)


def _outcome(data: ClassificationData, seed: int, rounds: int) -> DemoOutcome:
    """One seed: the split, the yardsticks, the run from the server's own model."""
    problem = _declared(data, seed)
    federation = problem.federation
    assert federation is not None and federation.server is not None and federation.test is not None
    test, server = _rows(federation.test), _rows(federation.server.samples)
    parts = [server, *(_rows(client.samples) for client in federation.clients)]
    pooled = (np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts]))
    alone, ceiling = _best_regression(*server, test), _best_regression(*pooled, test)
    lower = ProjectedSGD(steps=40, step_size=0.1, batch_size=32)
    solver = ImplicitGradient(step_size=0.2, participation=PARTICIPATION, batch_size=128, lower=lower)
    given: dict[str, Any] = {"x0": alone, "metrics": {ACCURACY: lambda x, y: _accuracy(x, test)}, "evaluate_every": EVERY}
    result = problem.solve(solver, rounds=rounds, seed=seed, progress=False, **given)
    return DemoOutcome(_accuracy(alone, test), _accuracy(result.x, test), _accuracy(ceiling, test), result)


def _rows(samples: Any) -> tuple[np.ndarray, np.ndarray]:
    """(images, labels) of a holder."""
    named = {sample.name(): np.asarray(values) for sample, values in samples.items()}
    return named["image"], np.argmax(named["label"], axis=1)


def _accuracy(weights: np.ndarray, test: tuple[np.ndarray, np.ndarray]) -> float:
    images, labels = test
    return 100.0 * float(np.mean(np.argmax(images @ weights.T, axis=1) == labels))


def _best_regression(images: np.ndarray, labels: np.ndarray, test: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The weights (classes, features) of the logistic regression that classifies the test data best."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    found = []
    with threadpool_limits(1):  # small matrices: threads would wait for each other
        for strength in REGULARISATIONS:
            fitted = LogisticRegression(C=strength, fit_intercept=False, max_iter=2000, tol=1e-3).fit(images, labels)
            weights = np.zeros((10, images.shape[1]))
            weights[fitted.classes_] = fitted.coef_
            found.append(weights)
    return max(found, key=lambda weights: _accuracy(weights, test))


def _draw(outcomes: Sequence[DemoOutcome], path: Path) -> None:
    from matplotlib.figure import Figure

    from hierfl.house_style import COLOURS, house_style

    curves = np.array([o.result.metrics[ACCURACY] for o in outcomes])
    rounds, middle = outcomes[0].result.metrics["round"], curves.mean(axis=0)
    with house_style():
        figure = Figure(figsize=(7.0, 3.8))
        ax = figure.subplots()
        ax.plot(rounds, middle, color=COLOURS[0])
        if len(outcomes) > 1:
            half = half_width(curves)
            ax.fill_between(rounds, middle - half, middle + half, color=COLOURS[0], alpha=0.2, linewidth=0)
        for name, label, colour in (
            ("pooled", "everybody's data pooled", COLOURS[2]),
            ("server", f"the server alone, {SERVER_SAMPLES} samples", COLOURS[1]),
        ):
            level = float(np.mean([getattr(o, name) for o in outcomes]))
            ax.axhline(level, color=colour, linestyle="--", linewidth=1.2)
            ax.annotate(
                label, (1.0, level), xytext=(0, 4), xycoords=("axes fraction", "data"), textcoords="offset points",
                ha="right", color=colour,
            )  # fmt: skip
        middle_round = len(rounds) // 2
        ax.annotate(
            "with 10 private clients", (rounds[middle_round], middle[middle_round]), xytext=(0, -48),
            textcoords="offset points", color=COLOURS[0], ha="center",
        )  # fmt: skip
        band = ", mean and 95% band" if len(outcomes) > 1 else ""
        ax.set(xlabel="round", ylabel=ACCURACY, xlim=(0, rounds[-1]), title=f"{len(outcomes)} seeds{band}")
        figure.savefig(path)
