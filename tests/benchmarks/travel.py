"""Through how many files the README's toy runs: ``python -m tests.benchmarks.travel``.

Declared, asked for its first value and its first gradient in a process that has only imported hierfl; a file counts in which a
function runs meanwhile, or a class is made. Files of functions alone, and those that have been imported by the end, are told beside.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import cvxpy as cp
import numpy as np

import hierfl as hf
from tests.benchmarks.harness import Row, publish

ROOT = Path(__file__).parents[2]
PRODUCT = tuple(str(ROOT / top) + os.sep for top in ("hierfl", "models", "solvers"))
BAR = 90


def toy() -> None:
    """The declaration, a value and a gradient."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)), lower=hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
    )
    problem.implicit(np.array([-1.0, 0.5]))
    problem.implicit.gradient(np.array([-1.0, 0.5]))


def entered(ask: Callable[[], None]) -> dict[str, bool]:
    """The product's files of which a function runs (true) or a class is made, those of a module's own lines apart."""
    found: dict[str, bool] = {}

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(PRODUCT):
            is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
            found[code.co_filename] = is_function or found.get(code.co_filename, False)

    sys.setprofile(look)
    try:
        ask()
    finally:
        sys.setprofile(None)
    return found


def main() -> None:
    """Print the files, the longest last, and how many they are."""
    found = entered(toy)
    lengths = sorted((len(Path(name).read_text().splitlines()), name) for name in found)
    if "HIERFL_BENCHMARK_JSON" not in os.environ:
        print("\n".join(f"{length:5} {Path(name).relative_to(ROOT)}" for length, name in lengths))
    functions = sum(found.values())
    loaded = {getattr(module, "__file__", None) or "" for name, module in sys.modules.items() if name != "__main__"}
    imported = sum(name.startswith(PRODUCT) for name in loaded)
    note = f"{sum(length for length, _ in lengths):,} lines; functions run in {functions}; {imported} are imported"
    publish([Row("files of the README's toy, first value and gradient", len(found), BAR, at_most=True, note=note)])


if __name__ == "__main__":
    main()
