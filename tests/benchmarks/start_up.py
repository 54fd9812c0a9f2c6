"""What a user waits for before anything runs: ``python -m tests.benchmarks.start_up``.

Import of hierfl against that of CVXPY, and what a first, a second and another ``solve`` of the softmax problem of 784 x 10 compile.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.solvers import ZOHFL
from tests.benchmarks.harness import Row, as_installed, least_times, publish

EVENT = "/jax/core/compile/backend_compile_duration"


def importing(module: str) -> None:
    """A fresh process that imports a module."""
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)


class Compilations:
    """Counts what JAX compiles, and how long it takes."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **_: Any) -> None:
        if event == EVENT:
            self.count, self.seconds = self.count + 1, self.seconds + seconds


def main() -> None:
    """Print the rows."""
    as_installed()
    imports = least_times({name: lambda name=name: importing(name) for name in ("hierfl", "cvxpy")}, repeats=5)
    rng, heard = np.random.default_rng(0), Compilations()
    data = ClassificationData(rng.random((2000, 784)), rng.integers(0, 10, 2000))
    problem = heterogeneous_classification(data, 10, server_fraction=0.3, test_fraction=0.0)
    seconds, counts = [], []
    solver = ZOHFL(local_steps=5)
    for one, rounds, seed in (
        (solver, 20, 0),
        (solver, 20, 1),
        (replace(solver, step_size=0.002, smoothing=0.2), 31, 1),
    ):
        before, began = (heard.count, heard.seconds), time.perf_counter()
        problem.solve(one, rounds=rounds, seed=seed, progress=False)
        counts.append(heard.count - before[0])
        seconds.append((heard.seconds - before[1], time.perf_counter() - began))
    publish(
        [
            Row("import hierfl over import cvxpy", imports["hierfl"] / imports["cvxpy"], 1.15),
            Row("first solve of 784 x 10: seconds of compilation", seconds[0][0], 4.0, note=f"{counts[0]} programs"),
            Row("second solve of the same shapes: programs compiled", counts[1], 0),
            Row("the same with another step size, smoothing and number of rounds", counts[2], 0),
        ]
    )


if __name__ == "__main__":
    main()
