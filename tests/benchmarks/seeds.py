"""Ten seeds at once on all cores against one: ``python -m tests.benchmarks.seeds [rounds]``, on the digits example's problem.

One row for each heterogeneity of ``python -m examples.reproduce hfl-table1``; ``solve`` as a whole, final values included, after
compilation.
"""

from __future__ import annotations

import sys
import warnings

from sklearn.datasets import load_digits

import hierfl as hf
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.solvers import ZOHFL, Decay, ProjectedSGD
from tests.benchmarks.harness import Row, least_times, publish

SETTINGS = ((1000.0, 0.9), (1.0, 0.5), (0.1, 0.1))
SEEDS, BAR = 10, 6.0


def row(data: ClassificationData, alpha: float, beta: float, rounds: int) -> Row:
    """Ten seeds over one, for labels split by Dirichlet(alpha) and a share beta of the clients in each round."""
    scheme = hf.Dirichlet(alpha, labels=data.labels, min_samples=10)
    problem = heterogeneous_classification(data, clients=10, scheme=scheme, lam=1.0, mu=0.1, seed=0)
    lower = ProjectedSGD(steps=Decay(20, -0.5), step_size=Decay(0.1, 1.0), batch_size=1)
    solver = ZOHFL(smoothing=0.1, step_size=Decay(0.01, 0.5), participation=beta, batch_size=128, lower=lower)
    times = least_times(
        {
            "one": lambda: problem.solve(solver, rounds=rounds, progress=False),
            "ten": lambda: problem.solve(solver, rounds=rounds, seeds=SEEDS, progress=False),
        },
        repeats=3,
    )
    name = f"{SEEDS} seeds over one, digits, alpha = {alpha:g}, participation {beta:g}"
    return Row(name, times["ten"] / times["one"], BAR, note=f"one: {times['one']:.2f} s")


def main(rounds: int) -> None:
    """Print the rows."""
    digits = load_digits()
    data = ClassificationData(digits.data / 16.0, digits.target)
    publish([row(data, alpha, beta, rounds) for alpha, beta in SETTINGS])


if __name__ == "__main__":
    warnings.simplefilter("ignore", hf.LowerLevelWarning)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
