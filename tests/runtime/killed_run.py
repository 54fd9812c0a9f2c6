"""A run in a process of its own that is killed at a moment drawn at random: ``python -m tests.runtime.killed_run FOLDER SEED``.

Without a seed it is left to end, and ``result.npz`` in the folder has what it came to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import hierfl as hf
from hierfl.solvers import SCAFFOLD
from tests.runtime.resumed import killed_soon
from tests.solvers.test_baselines import least_squares

LASTS = 0.3  # seconds after the first block of rounds, within which it is killed
PAUSE = 0.01  # seconds, so that it is not over before
SETTINGS: dict[str, Any] = {"rounds": 300, "seed": 3, "evaluate_every": 5, "progress": False}
SOLVER = SCAFFOLD(0.1, [3, 1, 2], participation=0.5, batch_size=2)


def solve(folder: Path | None, seen: Any = lambda: None) -> hf.Result:
    """The run; ``seen`` is called whenever its metric is evaluated."""

    def size(x: np.ndarray, y: Any) -> float:
        seen()
        return float(np.linalg.norm(x))

    kept = {} if folder is None else {"checkpoint": hf.Checkpoint(folder, every_rounds=5), "resume": True}
    return least_squares().solve(SOLVER, metrics={"size": size}, **SETTINGS, **kept)


if __name__ == "__main__":
    folder, seed = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    solve(folder, killed_soon(seed, LASTS, PAUSE)).save(folder / "result.npz")
