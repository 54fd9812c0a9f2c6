"""Rounds over ever more clients: a hundred of 10^2 ... 10^6 take part, each with five rows.

Milliseconds of a round of FedAvg and the seconds that it takes to declare so many clients.
``python -m tests.benchmarks.scale [largest]``.
"""

from __future__ import annotations

import sys
import time

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers import FedAvg
from tests.benchmarks.harness import Row, publish

COHORT, ROWS, FEATURES, BLOCK, BLOCKS = 100, 5, 20, 50, 100


def declared(clients: int) -> hf.Problem:
    """Least squares, every client with a few rows of its own."""
    x, u, v = cp.Variable(FEATURES, name="x"), hf.Sample(FEATURES, name="u"), hf.Sample(name="v")
    rng = np.random.default_rng(0)
    features, targets = rng.standard_normal((clients * ROWS, FEATURES)), rng.standard_normal(clients * ROWS)
    own = (slice(ROWS * i, ROWS * (i + 1)) for i in range(clients))
    federation = hf.Federation([hf.Client({u: features[rows], v: targets[rows]}) for rows in own])
    return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - v))), federation=federation)


def round_seconds(clients: int) -> tuple[float, float]:
    """(seconds of a round, seconds to declare and compile)."""
    began = time.perf_counter()
    problem = declared(clients).compile()
    ready = time.perf_counter() - began
    solver = FedAvg(0.01, local_steps=5, batch_size=5, participation=COHORT / clients)
    seconds: list[float] = []
    with hf_double():
        InProcess().execute(
            problem,
            solver.bind(problem, BLOCKS * BLOCK),
            np.zeros(FEATURES),
            BLOCKS * BLOCK,
            0,
            BLOCK,
            lambda done, state, memory, history: seconds.append(float(history["seconds"][0])),
        )
    return min(seconds[1:]), ready


def hf_double() -> object:
    """hierfl's own precision."""
    import jax

    return jax.enable_x64(True)


def main(largest: int) -> None:
    """Print the rows."""
    sizes = [10**k for k in range(2, 7) if 10**k <= largest]
    found = {size: round_seconds(size) for size in sizes}
    first = found[sizes[0]][0]
    publish(
        [
            Row(
                f"round of {COHORT} of {size:,} clients over one of {COHORT} of 100",
                seconds / first,
                1.5,
                note=f"{1e3 * seconds:.2f} ms a round; declared in {ready:.1f} s",
            )
            for size, (seconds, ready) in found.items()
        ]
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10**6)
