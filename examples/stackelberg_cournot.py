"""A Stackelberg leader above Cournot followers with random demand, by FedRZO with several lower-level solvers ([2S] §6.4).

Every local step asks for the followers' equilibrium at two decisions of the leader. Solved exactly, or by enough
extragradient steps, more local steps lead faster to the optimum of f; with the inner iterations of the published
experiment the followers stay near 0 and the leader overproduces (``python -m examples.reproduce 2s-table4`` has that whole table).
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from reporting import command_line, console, print_table, save
from scipy.optimize import minimize_scalar

import hierfl as hf
from hierfl.house_style import house_style
from hierfl.models import stackelberg_cournot
from hierfl.solvers import Exact, Extragradient, FedRZO, LogGrowth, ProjectionMethod

INNER = {10: (20, 1e-4), 20: (35, 1e-6), 100: (55, 1e-7), 1000: (80, 1e-8)}  # published tau, alpha by followers


@dataclass(frozen=True)
class Run:
    """One run: the implicit function along it, and whether it was warned that the lower level is not solved."""

    lower: str
    local_steps: int
    rounds: np.ndarray
    values: np.ndarray
    result: hf.Result
    warned: bool


def run(problem: hf.Problem, name: str, lower: Any, local_steps: int, options: argparse.Namespace) -> Run:
    """FedRZO from x = 0, the implicit function evaluated every tenth of the rounds."""
    solver = FedRZO(
        smoothing=options.smoothing, step_size=options.step_size, local_steps=local_steps, batch_size=1, lower=lower
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = problem.solve(
            solver,
            rounds=options.rounds,
            seed=options.seed,
            x0=0.0,
            metrics={"f": lambda x, y: problem.implicit(np.clip(x, 0, 10))},
            evaluate_every=max(1, options.rounds // 10),
            progress=False,
        )
    warned = any(issubclass(w.category, hf.LowerLevelWarning) for w in caught)
    return Run(name, local_steps, result.metrics["round"], result.metrics["f"], result, warned)


def lower_solvers(followers: int) -> dict[str, Any]:
    """What answers the leader inside the algorithm; the last one as published."""
    tau, alpha = INNER[followers]
    return {
        "exact": Exact(),
        "extragradient, 50 steps": Extragradient(steps=50),
        "as published": ProjectionMethod(steps=LogGrowth(tau), step_size=alpha, start="zero"),
    }


def optimum(problem: hf.Problem) -> tuple[float, float]:
    """(x, f) at the least f on [0, 10]: a grid, then a bounded search around its best point."""
    grid = np.linspace(0, 10, 21)
    best = int(np.argmin([problem.implicit(x) for x in grid]))
    around = grid[max(0, best - 1)], grid[min(20, best + 1)]
    found = minimize_scalar(problem.implicit, bounds=around, method="bounded", options={"xatol": 1e-6})
    return float(found.x), float(found.fun)


def print_runs(out: Any, runs: list[Run], best: tuple[float, float], options: argparse.Namespace) -> None:
    """The table."""
    rows = [
        (
            r.lower,
            r.local_steps,
            f"{float(r.result.x):.4f}",
            f"{r.result.value:.5f}",
            f"{r.result.value - best[1]:.1e}",
            f"{r.result.own_value:.5f}",
            "yes" if r.warned else "no",
        )
        for r in runs
    ]
    columns = ("lower level by", "H", "x", "f(x)", "f(x) - min f", "run's own value", "warned")
    title = f"{options.followers} followers, b = {options.slope:g}, {options.rounds} rounds, γ = {options.step_size:g}"
    print_table(out, title, columns, rows)
    out.print(f"optimum: x = {best[0]:.6f}, f = {best[1]:.6f}")


def save_figure(runs: list[Run], best: tuple[float, float], folder: Path) -> Path:
    """f along the runs: for each H with the lower level solved, and for each lower-level solver with the largest H."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    most = max(r.local_steps for r in runs)
    with house_style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True)
        for r in runs:
            if r.lower == "exact":
                left.plot(r.rounds, r.values, label=f"H = {r.local_steps}")
        for style, r in zip(("-", "--", "-."), (r for r in runs if r.local_steps == most)):
            right.plot(r.rounds, r.values, style, label=r.lower)
        for ax, title in ((left, "lower level solved"), (right, f"by lower-level solver, H = {most}")):
            ax.axhline(best[1], color="black", linewidth=0.8, linestyle=":", label="min f")
            ax.set(title=title, xlabel="round")
            ax.legend()
        left.set(ylabel="f(x), lower level solved")
        return save(figure, folder, "stackelberg_cournot")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = command_line(__doc__)
    parser.add_argument("--followers", type=int, choices=INNER, help="default: 10; full: 100")
    parser.add_argument("--slope", type=float, default=0.5, help="b")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10, 20], help="H")
    parser.add_argument("--smoothing", type=float, default=0.1, help="eta")
    parser.add_argument("--step-size", type=float, default=1e-2, help="gamma")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or 100
    options.followers = options.followers or (100 if options.full else 10)
    return options


def main(arguments: list[str] | None = None) -> tuple[list[Run], tuple[float, float]]:
    """Run the experiment; returns its runs and the optimum (x, f)."""
    options = parse(arguments)
    out = console()
    problem = stackelberg_cournot(followers=options.followers, slope=options.slope, clients=options.clients)
    out.print(str(problem), markup=False, highlight=False)
    best = optimum(problem)
    runs = []
    for name, lower in lower_solvers(options.followers).items():
        for local_steps in options.steps if name == "exact" else [max(options.steps)]:
            runs.append(run(problem, name, lower, local_steps, options))
    print_runs(out, runs, best, options)
    out.print(f"saved {save_figure(runs, best, options.figures)}")
    return runs, best


if __name__ == "__main__":
    main()
