"""Ten seeds at once against one: ``python -m tests.benchmarks.seeds [rounds]``, on the digits example's problem.

Prints, for each heterogeneity of ``examples/heterogeneous_digits.py``, the seconds of one seed, of ten, and their ratio, all
after compilation; the bar is 6. One and ten are timed in turn, and the medians are compared.
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits

import hierfl as hf
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.solvers import ZOHFL, Decay, ProjectedSGD

SETTINGS = ((1000.0, 0.9), (1.0, 0.5), (0.1, 0.1))
SEEDS, REPEATS, BAR = 10, 3, 6.0


def seconds(problem: hf.Problem, solver: ZOHFL, **settings: object) -> float:
    """One call of ``solve``, final values included."""
    began = time.perf_counter()
    problem.solve(solver, progress=False, **settings)
    return time.perf_counter() - began


def main(rounds: int) -> None:
    """Print the table."""
    digits = load_digits()
    data = ClassificationData(digits.data / 16.0, digits.target)
    lower = ProjectedSGD(steps=Decay(20, -0.5), step_size=Decay(0.1, 1.0), batch_size=1)
    print(f"{rounds} rounds: one seed, {SEEDS} seeds, ratio (bar {BAR:g})")
    for alpha, beta in SETTINGS:
        scheme = hf.Dirichlet(alpha, labels=data.labels, min_samples=10)
        problem = heterogeneous_classification(data, clients=10, scheme=scheme, lam=1.0, mu=0.1, seed=0)
        solver = ZOHFL(smoothing=0.1, step_size=Decay(0.01, 0.5), participation=beta, batch_size=128, lower=lower)
        kinds = ({"rounds": rounds}, {"rounds": rounds, "seeds": SEEDS})
        for kind in kinds:
            seconds(problem, solver, **kind)
        times = np.array([[seconds(problem, solver, **kind) for kind in kinds] for _ in range(REPEATS)])
        one, many = np.median(times, axis=0)
        print(f"alpha {alpha:6g}, beta {beta:g}: {one:7.2f} s {many:7.2f} s {many / one:6.2f}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", hf.LowerLevelWarning)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
