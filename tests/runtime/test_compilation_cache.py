"""The programs of a run outlive the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hierfl.jaxtools.disk_cache import SETTING

PROGRAM = """
import sys
import cvxpy as cp
for _ in range(int(sys.argv[1])):
    cp.Variable()  # what is declared gets other numbers within CVXPY
import jax
missed = []
jax.monitoring.register_event_listener(lambda event, **_: missed.append(event) if event.endswith("cache_misses") else None)
import numpy as np
import hierfl as hf
from hierfl.models import stackelberg_cournot
from hierfl.solvers import FedRZO
found = stackelberg_cournot(3, 0.5, 2).solve(FedRZO(step_size=0.01), rounds=3, progress=False)
print(len(missed), repr(found.value))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    said = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(before)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, SETTING: str(tmp_path)},
        ).stdout.split()
        for before in (0, 7)
    ]
    assert int(said[0][0]) > 3 and said[1][0] == "0"
    assert said[0][1] == said[1][1]
