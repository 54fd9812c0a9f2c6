"""Runs whose process is killed while they are written: what is on disk is always a checkpoint that leads to the same end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.checkpoints import killed_run
from tests.runtime.checkpoints.resumed import require_same


@pytest.mark.optimised  # as the other process is
def test_a_run_that_is_killed_again_and_again_comes_to_the_same_end(tmp_path: Path) -> None:
    """Each process goes on from what the last one left."""
    reached = 0
    for seed in (1, 4):
        killed = subprocess.run(
            [sys.executable, "-m", killed_run.__name__, str(tmp_path), str(seed)], capture_output=True, timeout=120
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        latest = max(int(path.stem) for path in tmp_path.glob("*.checkpoint"))
        assert latest > reached
        reached = latest
    require_same(killed_run.solve(tmp_path), killed_run.solve(None))
