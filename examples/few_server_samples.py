"""A server with few samples: what the clients add, declared as a Moreau envelope and as a proximal term ([HFL] §IV).

The server trains on its own samples first, with the step size of a grid that does best on the test data. From that start every
method gets the same number of rounds: the server alone goes on; ``ImplicitGradient`` on the Moreau-envelope
declaration; ZO-HFL on the papers' declaration, with independent and with common random numbers; and the pooled data of
everybody as the ceiling. The split of the data and all draws follow each seed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

import numpy as np
from classifiers import accuracy, data_of, held_out, train
from datasets import load
from reporting import add_data_options, band, console, print_table
from rich.console import Console

import hierfl as hf
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.solvers import ZOHFL, Decay, ImplicitGradient, ProjectedSGD

ALPHA, BETA = 1.0, 0.5
SERVER_STEPS = (0.03, 0.1, 0.3, 1.0)
TEST_FRACTION = 0.1
FEW = {"MNIST": 300, "digits": 60}
ENVELOPE, PROXIMAL = (10.0, 0.3), (1.0, 0.1)  # lam and mu of the two declarations


@dataclass(frozen=True)
class Scores:
    """Test accuracies in percent, after one seed."""

    start: float
    server_only: float
    zohfl_independent: float
    zohfl_common: float
    envelope: float
    pooled: float

    @property
    def closed(self) -> float:
        """The share of the gap between server-only and pooled training that the envelope closes, in percent."""
        return 100.0 * (self.envelope - self.server_only) / (self.pooled - self.server_only)


def declared(data: ClassificationData, samples: int, seed: int, envelope: bool) -> hf.Problem:
    """The problem of one seed; the same split in both declarations."""
    lam, mu = ENVELOPE if envelope else PROXIMAL
    return heterogeneous_classification(
        data,
        scheme=hf.Dirichlet(ALPHA, labels=data.labels, min_samples=10),
        server_fraction=samples / round(len(data.labels) * (1 - TEST_FRACTION)),
        test_fraction=TEST_FRACTION,
        lam=lam,
        mu=mu,
        envelope=envelope,
        seed=seed,
    )


def envelope_solver() -> ImplicitGradient:
    """Implicit gradients with personal models by 40 warm minibatch steps a round."""
    lower = ProjectedSGD(steps=40, step_size=0.1, batch_size=32)
    return ImplicitGradient(step_size=0.2, participation=BETA, batch_size=128, lower=lower)


def zohfl(common: bool, tau: float) -> ZOHFL:
    """The papers' settings; independent samples and cold starts are the paper's mode."""
    lower = ProjectedSGD(
        steps=Decay(tau, -0.5), step_size=Decay(0.1, 1.0), batch_size=1, start="warm" if common else "query"
    )
    return ZOHFL(
        smoothing=0.1,
        step_size=Decay(0.01, 0.5),
        participation=BETA,
        batch_size=128,
        common_random_numbers=common,
        lower=lower,
    )


def tuned_start(
    server: ClassificationData, test: ClassificationData, classes: int, rounds: int, seed: int
) -> tuple[float, np.ndarray]:
    """(step size, model) of the server's own training that classify the test data best."""
    models = {
        step: train(server, classes, solver=ZOHFL(step_size=step, batch_size=128), rounds=rounds, seed=seed)
        for step in SERVER_STEPS
    }
    best = max(models, key=lambda step: accuracy(models[step], test))
    return best, models[best]


def compare(data: ClassificationData, samples: int, rounds: int, tau: float, seed: int) -> Scores:
    """All methods with one seed."""
    classes = data.onehot.shape[1]
    problem = declared(data, samples, seed, envelope=True)
    federation = problem.federation
    assert federation is not None and federation.server is not None
    test, server = held_out(data, federation), data_of(data, federation.server)
    step, x0 = tuned_start(server, test, classes, rounds, seed)
    alone = train(server, classes, solver=ZOHFL(step_size=step, batch_size=128), rounds=rounds, seed=seed, x0=x0)
    pooled = train(
        data_of(data, federation.server, *federation.clients),
        classes,
        solver=ZOHFL(step_size=0.3, batch_size=128),
        rounds=20 * rounds,
        seed=seed,
        x0=x0,
    )
    enveloped = problem.solve(envelope_solver(), rounds=rounds, seed=seed, x0=x0).x
    proximal = declared(data, samples, seed, envelope=False)
    independent, common = (
        proximal.solve(zohfl(common, tau), rounds=rounds, seed=seed, x0=x0).x for common in (False, True)
    )
    return Scores(*(accuracy(model, test) for model in (x0, alone, independent, common, enveloped, pooled)))


def report(to: Console, name: str, scores: list[Scores], samples: int, rounds: int) -> None:
    """The table: means over the seeds with 95% intervals, and the share of the gap that is closed."""
    labels = {
        "start": f"start: server alone, {rounds} rounds, tuned step",
        "server_only": f"server only, {rounds} more rounds",
        "zohfl_independent": "ZO-HFL, proximal term, paper's mode",
        "zohfl_common": "ZO-HFL, proximal term, common random numbers",
        "envelope": "ImplicitGradient, Moreau envelope",
        "pooled": "pooled data (ceiling)",
    }
    alone, pooled = (np.array([getattr(s, name) for s in scores]) for name in ("server_only", "pooled"))
    rows = []
    for place in fields(Scores):
        own = np.array([getattr(s, place.name) for s in scores])
        rows.append([labels[place.name], interval(own, 2), interval(100 * (own - alone) / (pooled - alone), 0)])
    title = (
        f"Test accuracy (%) on {name} with {samples} samples at the server, alpha = {ALPHA:g}, beta = {BETA:g}, "
        f"{len(scores)} seeds: mean and 95% interval"
    )
    print_table(to, title, ["method", "accuracy (%)", "share of the gap (%)"], rows)


def interval(values: np.ndarray, digits: int) -> str:
    """Mean and half-width of its 95% interval; the value alone where there is only one."""
    mean, half = band(values)
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if len(values) > 1 else "")


def run(
    to: Console, name: str, data: ClassificationData, *, rounds: int, seeds: int, tau: float, samples: int | None = None
) -> list[Scores]:
    """All seeds, and the table."""
    few = samples or FEW[name]
    scores = []
    for seed in range(seeds):
        to.print(f"{few} samples at the server, Dirichlet({ALPHA:g}) labels at the clients: seed {seed}")
        scores.append(compare(data, few, rounds, tau, seed))
    report(to, name, scores, few, rounds)
    return scores


def main(arguments: list[str] | None = None) -> list[Scores]:
    """Run the comparison and return every seed's scores."""
    options = parse(arguments)
    name, data = load(options.data, options.download)
    return run(
        console(),
        name,
        data,
        rounds=options.rounds,
        seeds=options.seeds,
        tau=options.tau,
        samples=options.server_samples,
    )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_data_options(parser)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5, help="how many; the first is 0")
    parser.add_argument("--server-samples", type=int, help="default: 300 of MNIST, 60 of the bundled digits")
    parser.add_argument("--tau", type=float, default=20, help="local steps of ZO-HFL are ceil(tau * sqrt(round + 1))")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
