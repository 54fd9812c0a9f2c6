"""FedRZO on the Cournot game of 1,000 followers, ten clients and twenty local steps a round, against loops in NumPy.

The paper's projection method ([2S] Algorithm 5 with the settings of Table 4), and the exact equilibrium.
``python -m tests.benchmarks.cournot``.
"""

from __future__ import annotations

import jax
import numpy as np

from hierfl.models import stackelberg_cournot
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers import Exact, FedRZO, LogGrowth, ProjectionMethod
from tests.benchmarks.harness import Row, least_times, publish

FOLLOWERS, CLIENTS, STEPS, ROUNDS, SLOPE, ETA, GAMMA, ALPHA, TAU = 1000, 10, 20, 5, 0.5, 0.1, 1e-3, 1e-8, 80


def main(cores: int) -> None:
    """Print the rows."""
    problem = stackelberg_cournot(FOLLOWERS, SLOPE, CLIENTS).compile()
    methods = {"projection": ProjectionMethod(steps=LogGrowth(TAU), step_size=ALPHA, start="zero"), "exact": Exact()}
    with jax.enable_x64(True):
        bound = {
            name: FedRZO(ETA, GAMMA, STEPS, lower=lower, batch_size=1).bind(problem, ROUNDS)
            for name, lower in methods.items()
        }

    def of_hierfl(name: str) -> None:
        with jax.enable_x64(True):
            InProcess().execute(problem, bound[name], np.zeros(1), ROUNDS, 0, ROUNDS, lambda *_: None)

    def of_numpy() -> None:
        rng, x, k = np.random.default_rng(0), 0.0, 0
        cost, capacity = np.linspace(0.09, 0.11, FOLLOWERS), np.linspace(2, 4, FOLLOWERS)

        def value(z: float, demand: float, count: int) -> float:
            y = np.zeros(FOLLOWERS)
            for _ in range(count):
                force = (cost + SLOPE) * y - demand + SLOPE * (z + y.sum())
                y = np.clip(y - ALPHA * force, 0, capacity)
            return 0.05 * z * z - z * (demand - SLOPE * (z + y.sum()))

        for _ in range(ROUNDS):
            ends = []
            for _ in range(CLIENTS):
                z = x
                for step in range(STEPS):
                    demand, v = rng.uniform(7.5, 12.5), ETA * rng.choice([-1.0, 1.0])
                    count = int(np.ceil(TAU * np.log(k + step + 2)))
                    here, there = (np.clip(point, 0, 10) for point in (z, z + v))
                    slope = (value(there, demand, count) - value(here, demand, count)) * v / ETA**2
                    z -= GAMMA * (slope + (z - np.clip(z, 0, 10)) / ETA)
                ends.append(z)
            x, k = float(np.mean(ends)), k + STEPS

    found = least_times({"projection": lambda: of_hierfl("projection"), "exact": lambda: of_hierfl("exact")}, 5)
    naive = least_times({"numpy": of_numpy}, 1)["numpy"]
    name = f"Cournot, {FOLLOWERS} followers, {cores} core{'s' if cores > 1 else ''}: naive NumPy over"
    note = f"{1e3 * found['projection'] / ROUNDS:.0f} ms a round against {1e3 * naive / ROUNDS:.0f}"
    exact = f"{1e3 * found['exact'] / ROUNDS:.2f} ms a round"
    publish(
        [
            Row(f"{name} the projection method", naive / found["projection"], 12 if cores == 1 else 20, False, note),
            Row(f"{name} the exact equilibrium", naive / found["exact"], 500, False, exact),
        ]
    )


if __name__ == "__main__":
    import os

    main(len(os.sched_getaffinity(0)))
