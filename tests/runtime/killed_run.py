"""A run in a process of its own that is killed at a moment drawn at random, here or with a server's sites elsewhere.

``python -m tests.runtime.killed_run FOLDER SEED SOLVER [ADDRESS STUDY]``
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import hierfl as hf
from hierfl.command.loading import load_problem
from hierfl.solvers import SCAFFOLD, FedAvg
from tests.runtime.resumed import killed_soon
from tests.solvers.test_baselines import least_squares

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


def solve(folder: Path | None, solver: str, at: tuple[str, Path] | None = None, seen: Callable[[], None] = lambda: None) -> hf.Result:
    """The run, at the sites of a scheduler's address and a declaration where they are given; ``seen`` is called whenever its metric is evaluated."""

    def size(x: np.ndarray, y: Any) -> float:
        seen()
        return float(np.linalg.norm(x))

    kept = {} if folder is None else {"checkpoint": hf.Checkpoint(folder, every_rounds=4), "resume": True}
    problem = least_squares() if at is None else load_problem(f"{at[1]}:declared")
    with nullcontext() if at is None else hf.runtime.Dask(at[0], minimum=2, patience=60.0, shared_seeds=True) as runtime:
        return problem.solve(SOLVERS[solver], runtime=runtime, metrics={"size": size}, **SETTINGS, **kept)


if __name__ == "__main__":
    folder, seed, solver, *at = sys.argv[1:]
    solve(Path(folder), solver, (at[0], Path(at[1])) if at else None, killed_soon(int(seed), LASTS, PAUSE))
