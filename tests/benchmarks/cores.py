"""One run on two cores against one: ``python -m tests.benchmarks.cores``, ten clients of 784 x 10 softmax on 6,000 images each.

ZO-HFL on batches of 32 images of bytes, as MNIST's are, in rounds of 300 local steps, the mean of 500 rounds of the paper's
schedule (20 sqrt(r)). The same run is timed on all cores and pinned to one, each in a process of its own.
"""

from __future__ import annotations

import os
import time

import jax
import numpy as np

from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.runtime import InProcess
from hierfl.solvers import ZOHFL, ProjectedSGD
from tests.benchmarks.harness import Row, pinned, publish

CLIENTS, ROWS, STEPS, BATCH, ROUNDS, BAR = 10, 6000, 300, 32, 4, 1.6


def seconds(precision: str) -> float:
    """The least time of a round."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (CLIENTS * ROWS + 300, 784), np.uint8)
    data = ClassificationData(images, rng.integers(0, 10, len(images)))
    server = 300 / len(images)
    problem = heterogeneous_classification(data, CLIENTS, server_fraction=server, test_fraction=0.0).compile()
    solver = ZOHFL(lower=ProjectedSGD(steps=STEPS, step_size=1e-7, batch_size=BATCH))
    with jax.enable_x64(precision == "double"):
        algorithm, runtime, times = solver.bind(problem, ROUNDS), InProcess(precision=precision), []
        for _ in range(6):
            began = time.perf_counter()
            runtime.execute(problem, algorithm, np.zeros(problem.upper.size), ROUNDS, 0, ROUNDS, lambda *_: None)
            times.append((time.perf_counter() - began) / ROUNDS)
    return min(times[1:])


def main() -> None:
    """Print the rows: the ratios, or on one core the seconds that they need."""
    cores = sorted(os.sched_getaffinity(0))
    found = {precision: seconds(precision) for precision in ("single", "double")}
    if len(cores) == 1:
        publish([Row(precision, value, 0.0) for precision, value in found.items()])
        return
    alone = {row.name: row.value for row in pinned("cores", cores[:1])}
    publish(
        [
            Row(
                f"one run of {CLIENTS} clients, {precision} precision: one core over {len(cores)}",
                alone[precision] / value,
                BAR,
                False,
                f"{1e3 * value:.0f} ms a round",
            )
            for precision, value in found.items()
        ]
    )


if __name__ == "__main__":
    main()
