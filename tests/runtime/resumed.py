"""Runs that an error stops again and again until they come to their end, and whether two results are the same to the last bit."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

import hierfl as hf


class StoppedError(Exception):
    """What stops a run."""


def total(x: Any, y: Any) -> float:
    """A metric."""
    return float(np.sum(np.asarray(x)))


def outcome(problem: hf.Problem, solver: Any, **settings: Any) -> Any:
    """The result of a run, or of several, diverged or not."""
    try:
        return problem.solve(solver, metrics={"total": total}, progress=False, **settings)
    except hf.DivergedError as error:
        return error.runs or error.result


def by_and_by(problem: hf.Problem, solver: Any, folder: Path, evaluations: int, **settings: Any) -> tuple[Any, int]:
    """The same run, stopped after so many evaluations of its metric each time it is resumed; and how often it was stopped."""
    for stopped in range(50):
        left = [evaluations]

        def metric(x: Any, y: Any, left: list[int] = left) -> float:
            left[0] -= 1
            if left[0] < 0:
                raise StoppedError
            return total(x, y)

        kept = hf.Checkpoint(folder, every_rounds=1)
        try:
            return problem.solve(
                solver, metrics={"total": metric}, progress=False, checkpoint=kept, resume=True, **settings
            ), stopped
        except hf.DivergedError as error:
            return error.runs or error.result, stopped
        except hf.SettingError as error:
            assert isinstance(error.__cause__, StoppedError)
    raise AssertionError("it never comes to an end")


def require_same_run(found: hf.Result, wanted: hf.Result) -> None:
    """The history but for seconds, the metrics, the iterates and the value, to the last bit."""
    assert found.ended == wanted.ended
    for group in ("history", "metrics", "trajectory"):
        ours, theirs = getattr(found, group), getattr(wanted, group)
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds"}:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=f"{group} {name}")
    for name in ("x", "iterate", "x0", "distances", "value", "own_value"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    assert found.communication == wanted.communication


def require_same(found: hf.Result, wanted: hf.Result, of_one_folder: bool = False) -> None:
    """All that a result holds but seconds, and the folder where one of them has none."""
    require_same_run(found, wanted)
    assert len(found.history["seconds"]) == len(found.history["objective"])
    assert repr(found.certificate) == repr(wanted.certificate)  # NaN, where there is no lower level, is not itself
    assert {k: v for k, v in found.settings.items() if of_one_folder or k != "checkpoint"} == wanted.settings


def killed_soon(seed: int, lasts: float, pause: float) -> Callable[[], None]:
    """What a metric calls: from the second time on the process has less than ``lasts`` seconds; each call takes ``pause`` seconds.

    The second time is after the first block of rounds of a resumed run, too, of which nothing is compiled either.
    """
    seen: list[int] = []

    def act() -> None:
        seen.append(1)
        if len(seen) == 2:
            timer = Timer(float(np.random.default_rng(seed).uniform(0, lasts)), os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        time.sleep(pause)

    return act


def require_killed_further(module: str, folder: Path, *given: str) -> None:
    """Run a module in a process of its own that kills itself, having come further than the one before."""
    reached = [int(path.stem) for path in folder.glob("*.checkpoint")]
    killed = subprocess.run([sys.executable, "-m", module, *given], capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert max(int(path.stem) for path in folder.glob("*.checkpoint")) > max(reached, default=0)


def stored_arrays(folder: Path, name: str) -> list[np.ndarray]:
    """An array of every checkpoint in a folder, the oldest first."""
    paths = sorted(folder.glob("*.checkpoint"))
    return [np.load(io.BytesIO(path.read_bytes().partition(b"\n")[2]))[name] for path in paths]
