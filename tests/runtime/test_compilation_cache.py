"""Compiled programs outlive the process where the user switches on JAX's cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
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
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)], check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert int(said[0][0]) > 3 and said[1][0] == "0"
    assert said[0][1] == said[1][1]
