"""``reference()`` beside BLVPY with IPOPT, on the problems of BLVPY's own gallery: ``python -m tests.benchmarks.beside_blvpy``.

Each problem is declared and solved in a new process, by hierfl and by BLVPY, without a disk cache; what is timed is the
declaration and the solution, and all compilation. The models are those of BLVPY 0.5's examples (Zhu, https://github.com/dxogrp/blvpy,
Apache 2.0), with data of the same shapes. ``python -m tests.benchmarks.beside_blvpy NAME hierfl`` is one process.
BLVPY wants Python 3.12 and a native IPOPT; where it cannot be imported, its column is empty.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from rich.console import Console
from rich.table import Table

import hierfl as hf
from tests.benchmarks.harness import as_installed, told

HOURS, BLOCKS, ROUTES = np.arange(24.0), np.arange(12.0), 2


@dataclass(frozen=True)
class Model:
    """Both levels as functions of CVXPY's variables, and what each package is told beside them."""

    name: str
    upper: Callable[..., Any]
    lower: Callable[..., Any]
    rows: Callable[..., list[Any]]
    low: np.ndarray
    high: np.ndarray
    size: int  # of y
    optimistic: bool = False
    peak: bool = False  # whether the upper objective has max(y) as a further term, for BLVPY an epigraph
    settings: tuple[tuple[str, float], ...] = ()

    def by_hierfl(self) -> tuple[float, list[float]]:
        """f and x, by ``reference()``."""
        x, y = cp.Variable(len(self.low), name="x"), cp.Variable(self.size, name="y")
        upper = self.upper(x, y) + (cp.max(y) if self.peak else 0.0)
        told = {"selection": "optimistic"} if self.optimistic else {}
        below = hf.ArgMin(y, self.lower(x, y), self.rows(x, y), **told)
        problem = hf.Problem(hf.Minimize(clients=upper), lower=below, constraints=[x >= self.low, x <= self.high])
        found = problem.reference(progress=False)
        return found.value, found.x.tolist()

    def by_blvpy(self) -> tuple[float, list[float]]:
        """f and x, by BLVPY's continuation with IPOPT."""
        import blvpy

        x = cp.Variable(len(self.low), nonneg=bool((self.low >= 0).all()))
        y, peak = cp.Variable(self.size), cp.Variable()
        upper, rows = self.upper(x, y), [x >= self.low, x <= self.high]
        if self.peak:
            upper, rows = upper + peak, [*rows, y <= peak, peak >= 0, peak <= 4]
            x.value, peak.value = np.full(x.shape, 0.4), 2.0
        below = blvpy.LowerProblem(cp.Minimize(self.lower(x, y)), self.rows(x, y), parameters=[x])
        problem = blvpy.BilevelProblem(cp.Minimize(upper), below, upper_constraints=rows)
        result = problem.solve(verbose=False, **dict(self.settings))
        assert result.succeeded, result.message
        return float(result.objective), x.value.tolist()


def _ridge() -> Model:
    draw = np.random.default_rng(20)
    truth = np.array([1.6, -1.2, 0.8, 0.0, -0.5, 0.35, 0.0, 0.6])
    train, check = draw.normal(size=(24, 8)), draw.normal(size=(80, 8))
    seen, hidden = train @ truth + 1.1 * draw.normal(size=24), check @ truth + 0.25 * draw.normal(size=80)
    return Model(
        "ridge weight",
        lambda x, y: cp.sum_squares(check @ y - hidden) / 80,
        lambda x, y: cp.sum_squares(train @ y - seen) / 24 + x[0] * cp.sum_squares(y),
        lambda x, y: [],
        np.array([1e-4]),
        np.array([10.0]),
        8,
        settings=(("epsilon_initial", 1e-2), ("epsilon_target", 1e-9)),
    )


def _demand_response() -> Model:
    wanted = 0.75 + 0.75 * np.exp(-0.5 * ((HOURS - 8) / 1.8) ** 2) + 1.65 * np.exp(-0.5 * ((HOURS - 19) / 2.1) ** 2)
    return Model(
        "demand response",
        lambda x, y: 0.025 * cp.sum_squares(x) + 0.12 * cp.sum_squares(x[1:] - x[:-1]),
        lambda x, y: x @ y + 0.45 * cp.sum_squares(y - wanted),
        lambda x, y: [cp.sum(y) == float(wanted.sum()), y >= 0.45, y <= 3.2],
        np.zeros(24),
        np.full(24, 0.8),
        24,
        peak=True,
        settings=(("epsilon_initial", 1e-2), ("epsilon_target", 1e-5)),
    )


def _renewables() -> Model:
    demand = 3.5 + 1.8 * np.exp(-0.5 * ((BLOCKS - 4) / 1.3) ** 2) + 3 * np.exp(-0.5 * ((BLOCKS - 9.5) / 1.6) ** 2)
    sun = np.maximum(np.sin(np.pi * (BLOCKS - 3) / 6), 0.0)
    return Model(
        "renewable capacity",
        lambda x, y: 0.08 * cp.square(x[0]) + 0.6 * cp.sum(y[12:]),
        lambda x, y: 0.4 * cp.sum(y[:12]) + 2.5 * cp.sum(y[12:]) + 1e-3 * cp.sum_squares(y),
        lambda x, y: [y >= 0, y[:12] <= sun * x[0], y[:12] + y[12:] >= demand],
        np.zeros(1),
        np.full(1, 12.0),
        24,
        settings=(("epsilon_initial", 1e-2), ("epsilon_target", 1e-5)),
    )


def _tolls() -> Model:
    slope, free = np.array([0.20, 0.05]), np.array([1.0, 2.0])
    return Model(
        "traffic tolls",
        lambda x, y: free @ y + cp.sum(cp.multiply(slope, cp.square(y))) + 0.01 * cp.sum_squares(x),
        lambda x, y: 0.5 * cp.sum(cp.multiply(slope, cp.square(y))) + (free + x) @ y,
        lambda x, y: [cp.sum(y) == 10.0, y >= 0],
        np.zeros(2),
        np.full(2, 5.0),
        2,
        settings=(("epsilon_initial", 1e-2), ("epsilon_target", 1e-5)),
    )


MODELS = (
    Model(
        "analytic quadratic",
        lambda x, y: cp.square(x[0] - 1) + cp.square(y[0] + 1),
        lambda x, y: cp.square(y[0] - x[0]),
        lambda x, y: [],
        np.full(1, -2.0),
        np.full(1, 2.0),
        1,
    ),
    Model(
        "optimistic LP",
        lambda x, y: cp.square(x[0]) + cp.square(y[0] - 1),
        lambda x, y: 0.0 * y[0],
        lambda x, y: [y >= x, y <= 1],
        np.zeros(1),
        np.ones(1),
        1,
        optimistic=True,
        settings=(("epsilon_target", 1e-9),),
    ),
    Model(
        "SOCP, rows move",
        lambda x, y: cp.square(x[0] - 1.25) + 0.1 * y[2],
        lambda x, y: y[2],
        lambda x, y: [cp.norm(y[:2], 2) <= y[2], x[0] * y[0] + y[1] >= 1],
        np.full(1, 0.5),
        np.full(1, 2.0),
        3,
        settings=(("epsilon_target", 1e-6),),
    ),
    Model(
        "double well",
        lambda x, y: cp.square(cp.square(x[0]) - 1) + 0.2 * x[0],
        lambda x, y: cp.square(y[0] - x[0]),
        lambda x, y: [],
        np.full(1, -2.0),
        np.full(1, 2.0),
        1,
        settings=(("epsilon_initial", 1e-2), ("epsilon_target", 1e-5)),
    ),
    _ridge(),
    _demand_response(),
    _renewables(),
    _tolls(),
)


def one(name: str, by: str) -> None:
    """One process: what it took, f and x."""
    model = next(model for model in MODELS if model.name == name)
    if by == "blvpy":
        import blvpy  # noqa: F401, its imports are not its solution
    began = time.perf_counter()
    value, x = model.by_hierfl() if by == "hierfl" else model.by_blvpy()
    print(json.dumps({"seconds": time.perf_counter() - began, "value": value, "x": x}))


def main() -> None:
    """The table."""
    as_installed()
    table = Table(title="reference() beside BLVPY with IPOPT, declaration and compilation included")
    for heading in ("problem", "hierfl s", "BLVPY s", "over BLVPY", "f by hierfl", "f by BLVPY"):
        table.add_column(heading, justify="left" if heading == "problem" else "right")
    for model in MODELS:
        ours, theirs = (told("beside_blvpy", model.name, by) for by in ("hierfl", "blvpy"))
        both = "seconds" in ours and "seconds" in theirs
        table.add_row(
            model.name,
            *(f"{of['seconds']:.2f}" if "seconds" in of else of["ended"] for of in (ours, theirs)),
            f"{ours['seconds'] / theirs['seconds']:.2f}" if both else "–",
            *(f"{of['value']:.9g}" if "value" in of else "–" for of in (ours, theirs)),
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    one(*sys.argv[1:]) if len(sys.argv) == 3 else main()
