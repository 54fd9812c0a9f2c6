"""A server in its own process, killed at a moment drawn at random: ``python -m tests.runtime.on_dask.killed_server ADDRESS STUDY SOLVER FOLDER SEED``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hierfl as hf
from hierfl.command.loading import load_problem
from hierfl.solvers import SCAFFOLD, FedAvg
from tests.runtime.resumed import killed_soon

LASTS = 0.6  # seconds after the second block of rounds, within which it is killed
PAUSE = 0.02  # seconds, so that it is not over before
SOLVERS: dict[str, Any] = {
    "FedAvg": FedAvg(step_size=0.05, local_steps=[2, 1, 3], batch_size=2, participation=0.67),
    "SCAFFOLD": SCAFFOLD(step_size=0.05, local_steps=2, batch_size=2, participation=0.67),
}
SETTINGS: dict[str, Any] = {
    "rounds": 80,
    "seed": 3,
    "x0": np.array([0.5, -0.5]),
    "evaluate_every": 4,
    "progress": False,
}


def solve(
    address: str, study: Path, solver: str, folder: Path | None, seen: Callable[[], None] = lambda: None
) -> hf.Result:
    """The run; ``seen`` is called whenever its metric is evaluated."""

    def size(x: np.ndarray, y: Any) -> float:
        seen()
        return float(np.linalg.norm(x))

    kept = {} if folder is None else {"checkpoint": hf.Checkpoint(folder, every_rounds=4), "resume": True}
    problem = load_problem(f"{study}:declared")
    with hf.runtime.Dask(address, minimum=2, patience=60.0, shared_seeds=True) as runtime:
        return problem.solve(SOLVERS[solver], runtime=runtime, metrics={"size": size}, **SETTINGS, **kept)


if __name__ == "__main__":
    address, study, solver, folder, seed = sys.argv[1:]
    solve(address, Path(study), solver, Path(folder), killed_soon(int(seed), LASTS, PAUSE))
