"""A declaration and its clients' rows as files, for processes that each read their own part of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hierfl.runtime.on_dask.site_process import TLSFiles

STUDY = """
import cvxpy as cp
import hierfl as hf

ROWS = {}

def study(level=1.0, held=None):
    x, u, b = cp.Variable(2, name="x"), hf.Sample(2, name="u"), hf.Sample(name="b")
    tables = {name: {u: hf.Elsewhere(n), b: hf.Elsewhere(n)} for name, n in ROWS.items()}
    if held is not None:
        tables = {name: {u: held[name]["u"], b: held[name]["b"]} for name in ROWS}
    clients = [hf.Client([table], name=name) for name, table in tables.items()]
    return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - level * b))), federation=hf.Federation(clients, weights="samples"))

def declared() -> hf.Problem:
    return study()
"""
ROWS = """
import numpy as np

def rows(seed, n):
    rng = np.random.default_rng(seed)
    return {"u": rng.standard_normal((n, 2)), "b": rng.standard_normal(n)}

def north(): return {"north": rows(1, 6)}
def south(): return {"south": rows(2, 4)}
def east(): return {"east": rows(3, 5)}
def south_and_east(): return south() | east()
"""


def study_text(**rows: int) -> str:
    """Least squares at clients of so many rows, which are elsewhere unless ``held``; ``ROWS`` has them for 6, 4 and 5."""
    return STUDY.replace("ROWS = {}", f"ROWS = {rows}")


def study_in(folder: Path, name: str = "study", **rows: int) -> Path:
    """Write the declaration to a folder, under this name, and the rows beside it."""
    (folder / "rows.py").write_text(ROWS)
    (folder / f"{name}.py").write_text(study_text(**rows))
    return folder / f"{name}.py"


def site_command(study: Path, data: str, scheduler: str, *more: str, files: TLSFiles | None = None) -> list[str]:
    """``hierfl site`` with the rows that a function of the file beside the declaration gives."""
    place = ["--problem", f"{study}:declared", "--data", f"{study.with_name('rows.py')}:{data}", "--scheduler", scheduler]
    tls = [] if files is None else ["--tls-ca", files.ca, "--tls-cert", files.cert, "--tls-key", files.key]
    return [sys.executable, "-m", "hierfl.command.main", "site", *place, *tls, *more]


@contextmanager
def processes(*commands: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Commands that run meanwhile."""
    running = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]
    try:
        yield running
    finally:
        for process in running:
            process.terminate()
            process.wait(20)
