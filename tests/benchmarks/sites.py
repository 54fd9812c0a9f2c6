"""What a round over sites costs: three local sites against a run in process, on a small problem and with ten thousand clients.

``python -m tests.benchmarks.sites``: medians of rounds, a first run of each kind left out, in which everything is compiled.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.runtime import GaussianNoise, PairwiseMasks
from hierfl.solvers import SCAFFOLD, ZOHFL, FedAvg, FedRZO, LocalSGD
from tests.benchmarks.scale import declared

SITES, ROUNDS = 3, 200


def small(lower: bool) -> hf.Problem:
    """Six clients with twenty rows each, five unknowns; with a lower level of the federation or without."""
    rng = np.random.default_rng(0)
    x, y, u, b = cp.Variable(5, name="x"), cp.Variable(5, name="y"), hf.Sample(5, name="u"), hf.Sample(name="b")
    federation = hf.Federation(
        [hf.Client({u: rng.standard_normal((20, 5)), b: rng.standard_normal(20)}) for _ in range(6)]
    )
    if not lower:
        return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - b))), federation=federation)
    fit = hf.E(0.5 * cp.square(u @ y - b)) + 0.5 * cp.sum_squares(y - x)
    return hf.Problem(hf.Minimize(clients=hf.E(cp.abs(u @ y - b))), lower=hf.ArgMin(y, fit), federation=federation)


CASES: dict[str, tuple[hf.Problem, Any]] = {
    "FedAvg, 6 clients": (small(False), FedAvg(step_size=0.01, batch_size=5)),
    "SCAFFOLD, 6 clients": (small(False), SCAFFOLD(step_size=0.01, batch_size=5)),
    "ZO-HFL, 6 clients": (small(False), ZOHFL(step_size=0.01, batch_size=5)),
    "FedRZO, 6 clients, LocalSGD below (2 exchanges for each of 2 answers)": (
        small(True),
        FedRZO(smoothing=0.1, step_size=0.01, batch_size=5, lower=LocalSGD(rounds=2, steps=3, batch_size=5)),
    ),
}


HIDDEN: dict[str, dict[str, Any]] = {
    "with noise": {"noise": GaussianNoise(1.0, 8.0)},
    "under masks": {"masks": PairwiseMasks()},
}


def main() -> None:
    """Print the figures as a table in Markdown."""
    print("| run | in process | three sites | the slowest site's own work |\n|---|---|---|---|")
    with hf.runtime.Dask(sites=SITES) as runtime:
        for name, (problem, solver) in CASES.items():
            print(f"| {name} | {row(problem, solver, runtime, ROUNDS)} |", flush=True)
        many, work = declared(10_000), FedAvg(step_size=0.01, local_steps=50, batch_size=5)
        print(f"| FedAvg, 10,000 clients, 50 local steps | {row(many, work, runtime, 20)} |", flush=True)
    problem, solver = CASES["FedAvg, 6 clients"]
    for name, given in HIDDEN.items():
        with hf.runtime.Dask(sites=SITES, **given) as runtime:
            print(f"| FedAvg, 6 clients, {name} | {row(problem, solver, runtime, ROUNDS)} |", flush=True)


def row(problem: hf.Problem, solver: Any, runtime: hf.runtime.Dask, rounds: int) -> str:
    """The medians, in milliseconds."""
    settings = {"progress": False, "x0": np.zeros(problem.compile(progress=False).upper.size)}
    problem.solve(solver, runtime=runtime, rounds=rounds, **settings)
    problem.solve(solver, rounds=rounds, **settings)
    there = problem.solve(solver, runtime=runtime, rounds=rounds, **settings)
    here = problem.solve(solver, rounds=rounds, **settings)
    own = max(site["seconds"] / site["rounds_answered"] for site in there.settings["sites"].values())
    medians = [f"{1e3 * float(np.median(run.history['seconds'])):.3g} ms" for run in (here, there)]
    return " | ".join([*medians, f"{1e3 * own:.3g} ms" if own else "not told"])


if __name__ == "__main__":
    main()
