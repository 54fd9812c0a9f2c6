"""``solve()`` without settings on ten problems of ten fields: ``python -m tests.benchmarks.untuned``.

Every problem is declared and solved in a new process, without a disk cache; the unit is the time of ``import cvxpy`` there. The
optimum beside it is that of SciPy (Nelder and Mead's method on values by CVXPY or a formula, from where hierfl ended and from
other points of the box): of a maximum the largest, and a local optimum counts as one where no search from there does better.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize

from tests.benchmarks.harness import as_installed
from tests.benchmarks.untuned_problems import FIELDS, Field

ASK = """
import json, sys, time
began = time.perf_counter(); import cvxpy; unit = time.perf_counter() - began
from tests.benchmarks.untuned_problems import FIELDS
import hierfl
field = next(field for field in FIELDS if field.name == sys.argv[1])
began = time.perf_counter()
result = field.declare().solve(progress=False)
took = time.perf_counter() - began
print(json.dumps({"imports": took / unit, "x": field.flat(result.x).tolist(), "value": result.value, "status": result.status,
                  "rounds": result.settings["rounds_done"], "solver": result.settings["solver"].split("(")[0]}))
"""


def told(field: Field) -> dict[str, object]:
    """What a new process tells of one problem."""
    program = [sys.executable, "-W", "ignore", "-c", ASK, field.name]
    environment = {**os.environ, "HIERFL_CACHE": "off"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    figures: dict[str, object] = json.loads(done.stdout)
    return figures


def searched(field: Field, start: np.ndarray, evaluations: int, share: float = 0.1) -> float:
    """The value at which Nelder and Mead's method ends from a start, as declared; ``share`` of the box is its first step."""
    sign = -1.0 if field.maximise else 1.0

    def outward(z: np.ndarray) -> float:
        inside = field.inside(z)
        return sign * field.value(inside) + float(np.sum((z - inside) ** 2))

    size = share * (field.high - field.low)
    corners = [start + np.where(start + s <= field.high, s, -s) * e for s, e in zip(size, np.eye(start.size))]
    options = {"initial_simplex": np.vstack([start, *corners]), "maxfev": evaluations, "fatol": 1e-10, "xatol": 1e-10}
    return sign * float(minimize(outward, start, method="Nelder-Mead", options=options).fun)


def main() -> None:
    """Print the table."""
    as_installed()
    rng = np.random.default_rng(0)
    table = Table("field", "solver", "ended", "rounds", "imports", "f(x)", "optimum from there", "best of others")
    within = 0
    for field in FIELDS:
        figures = told(field)
        value, sign = float(figures["value"]), -1.0 if field.maximise else 1.0  # type: ignore[arg-type]
        evaluations = 150 * min(field.low.size, 4)
        local = searched(field, np.array(figures["x"]), evaluations)
        starts = field.low + (field.high - field.low) * rng.random((3, field.low.size))
        others = sign * min(sign * searched(field, field.inside(start), evaluations) for start in starts)
        gap = sign * (value - local) / (1e-9 + abs(local))
        within += gap <= 0.01
        table.add_row(
            field.name,
            str(figures["solver"]),
            str(figures["status"]),
            str(figures["rounds"]),
            f"{figures['imports']:.1f}",
            f"{value:.6g}",
            f"{local:.6g}",
            f"{others:.6g}",
        )
    Console(width=140).print(table)
    print(f"{within} of {len(FIELDS)} within 1% of an independent optimum")


if __name__ == "__main__":
    main()
