"""What all benchmarks share: interleaved timing, rows of a table, and processes pinned to some cores.

Every figure is a ratio of times measured in one process and in turn, so that a noisy machine disturbs both sides alike; of
each side the least time counts.
"""

from __future__ import annotations

import compileall
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Row:
    """One figure: what was measured, the value, and the bar it is to reach (at most or at least)."""

    name: str
    value: float
    bar: float
    at_most: bool = True
    note: str = ""

    @property
    def reached(self) -> bool:
        """Whether the bar is reached."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def __str__(self) -> str:
        kind, verdict = ("at most" if self.at_most else "at least"), ("reached" if self.reached else "NOT reached")
        return f"{self.name:76} {self.value:9.3g}   {kind:8} {self.bar:<6g} {verdict:11} {self.note}"


def as_installed() -> None:
    """Compile hierfl to bytecode, as pip does for all that it installs, CVXPY and JAX among it, and Python at a first import.

    A checkout is left out by pip, and by Python where ``PYTHONDONTWRITEBYTECODE`` is set: a first answer would then wait 0.2 s
    for the compiler of Python.
    """
    for folder in ("hierfl", "models", "solvers", "tests"):
        compileall.compile_dir(ROOT / folder, quiet=1)


def least_times(functions: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, float]:
    """Seconds of each function, the least of several runs in turn, after one run to warm up."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - began)
    return {name: min(values) for name, values in times.items()}


def pinned(module: str, cores: Sequence[int], *arguments: str) -> list[Row]:
    """The rows of ``python -m tests.benchmarks.<module>`` run on some cores only."""
    environment = {**os.environ, **dict.fromkeys(THREADS, str(len(cores))), "HIERFL_BENCHMARK_JSON": "1"}
    program = f"import os, runpy; os.sched_setaffinity(0, {list(cores)}); runpy.run_module({f'tests.benchmarks.{module}'!r}, run_name='__main__')"
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments], env=environment, capture_output=True, text=True
    )
    if found.returncode:
        raise RuntimeError(f"{module} failed:\n{found.stderr[-3000:]}")
    return [Row(**row) for row in json.loads(found.stdout.splitlines()[-1])]


def told(module: str, *arguments: str, limit: float | None = None, **environment: str) -> dict[str, Any]:
    """What ``python -m tests.benchmarks.<module>`` tells in a process of its own, without a disk cache unless one is named.

    It prints a JSON object a line, as soon as it knows it; where it ends early, ``ended`` says why.
    """
    program = [sys.executable, "-W", "ignore", "-m", f"tests.benchmarks.{module}", *arguments]
    given = {**os.environ, "HIERFL_CACHE": "off", **environment}
    try:
        done = subprocess.run(program, env=given, capture_output=True, text=True, timeout=limit)
        printed, ended = done.stdout, _raised(done.stderr) if done.returncode else ""
    except subprocess.TimeoutExpired as slow:
        printed = slow.stdout.decode() if isinstance(slow.stdout, bytes) else slow.stdout or ""
        ended = f"over {limit:g} s"
    figures: dict[str, Any] = {}
    for line in printed.splitlines():
        figures.update(json.loads(line))
    return {**figures, "ended": ended} if ended else figures


def _raised(printed: str) -> str:
    """The last error that a process printed, in a line."""
    lines = [line for line in printed.splitlines() if re.match(r"[\w.]*(Error|Exception|Warning)\b", line)]
    return lines[-1] if lines else "ended without a word"


def publish(rows: Sequence[Row]) -> None:
    """Print the rows: as JSON for :func:`pinned`, as a table for people."""
    if "HIERFL_BENCHMARK_JSON" in os.environ:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print("\n".join(map(str, rows)))
