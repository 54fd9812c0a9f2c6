"""The published table of the Stackelberg game ([2S] §6.4, Table 4), reproduced, and what the same game really gives.

(a) as printed: y starts at 0 at every call and makes ceil(tau ln(k + 1)) projected steps of length alpha, k counted over
    all local steps; the value reported is the objective with that y. With alpha between 1e-4 and 1e-8 the followers
    hardly leave 0, so the run solves the problem of a monopolist; hierfl warns about every such run.
(b) the same algorithm with the lower level solved at every query; the value reported is the implicit function f.

The paper leaves open the start (here x = 0), the number of clients (here 10; it hardly matters), and c_j and the
capacities (here evenly spaced over the printed intervals). Its numbers for 10 followers do not follow from its settings.
"""

from __future__ import annotations

import argparse
import gc
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from reporting import command_line, console, print_table, save
from stackelberg_cournot import INNER, optimum

import hierfl as hf
from hierfl.inspect.pictures.style import house_style
from hierfl.models import stackelberg_cournot
from hierfl.solvers import Exact, FedRZO, LogGrowth, ProjectionMethod

STEPS, SMOOTHING = (1, 10, 20), (1.0, 0.1, 0.01)

# f(x_K) as printed, by followers and slope; rows H = 1, 10, 20, columns eta = 1, 0.1, 0.01
PRINTED = {
    (10, 0.5): ((-7.875, -7.878, -7.879), (-35.190, -35.192, -35.192), (-39.448, -39.448, -39.448)),
    (10, 1.0): ((-6.557, -6.562, -6.563), (-18.945, -18.945, -18.945), (-19.315, -19.314, -19.314)),
    (20, 0.5): ((-8.774, -8.773, -8.773), (-39.733, -39.732, -39.732), (-44.141, -44.140, -44.140)),
    (20, 1.0): ((-7.964, -7.963, -7.963), (-23.000, -23.000, -23.000), (-23.343, -23.343, -23.342)),
    (100, 0.5): ((-9.084, -9.078, -9.077), (-40.688, -40.685, -40.685), (-45.158, -45.157, -45.157)),
    (100, 1.0): ((-8.252, -8.242, -8.241), (-23.557, -23.556, -23.556), (-23.895, -23.895, -23.895)),
    (1000, 0.5): ((-8.901, -8.903, -8.903), (-40.302, -40.297, -40.297), (-44.758, -44.759, -44.759)),
    (1000, 1.0): ((-8.077, -8.080, -8.081), (-23.329, -23.326, -23.326), (-23.656, -23.656, -23.656)),
}


@dataclass(frozen=True)
class Cell:
    """One entry of the table: the printed value, the two runs, and which of them were warned about."""

    followers: int
    slope: float
    local_steps: int
    smoothing: float
    printed: float
    inner: hf.Result
    exact: hf.Result
    warned: tuple[bool, bool]
    optimum: float

    @property
    def deviation(self) -> float:
        """(a)'s own value against the printed one, relative."""
        assert self.inner.own_value is not None
        return self.inner.own_value / self.printed - 1


def solve(problem: hf.Problem, lower: Any, smoothing: float, local_steps: int, options: Any) -> tuple[hf.Result, bool]:
    """One run of FedRZO with the paper's upper level, and whether it was warned that the lower level is not solved."""
    solver = FedRZO(smoothing=smoothing, step_size=1e-3, local_steps=local_steps, batch_size=1, lower=lower)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = problem.solve(
            solver,
            rounds=options.rounds,
            seed=options.seed,
            x0=0.0,
            queries="raw",
            metrics={"x": lambda x, y: float(x)},
            evaluate_every=5,
            progress=False,
        )
    return result, any(issubclass(w.category, hf.LowerLevelWarning) for w in caught)


def run_market(followers: int, slope: float, options: argparse.Namespace) -> list[Cell]:
    """All entries of one number of followers and one slope of the demand."""
    problem = stackelberg_cournot(followers=followers, slope=slope, clients=options.clients)
    tau, alpha = INNER[followers]
    paper = ProjectionMethod(steps=LogGrowth(tau), step_size=alpha, start="zero")
    _, least = optimum(problem)
    cells = []
    for local_steps in options.steps:
        for smoothing in options.smoothing:
            printed = PRINTED[followers, slope][STEPS.index(local_steps)][SMOOTHING.index(smoothing)]
            inner, warned = solve(problem, paper, smoothing, local_steps, options)
            exact, also = solve(problem, Exact(), smoothing, local_steps, options)
            cells.append(Cell(followers, slope, local_steps, smoothing, printed, inner, exact, (warned, also), least))
    return cells


def print_cells(out: Any, cells: list[Cell], options: argparse.Namespace) -> None:
    """The table, and what it shows."""
    rows = [
        (
            *(f"{v:g}" for v in (cell.followers, cell.slope, cell.local_steps, cell.smoothing)),
            *(f"{v:.3f}" for v in (cell.printed, cell.inner.own_value)),
            f"{100 * cell.deviation:+.1f}%",
            *(f"{v:.4f}" for v in (cell.inner.value, cell.exact.value, cell.optimum)),
            *(f"{float(r.x):.3f}" for r in (cell.inner, cell.exact)),
        )
        for cell in cells
    ]
    columns = ("followers", "b", "H", "η", "printed", "(a) own y", "off by", "(a) f(x)", "(b) f(x)", "min f")
    title = f"Stackelberg game, {options.rounds} rounds, {options.clients} clients"
    print_table(out, title, (*columns, "x of (a)", "x of (b)"), rows)
    inner, exact = (sum(cell.warned[place] for cell in cells) for place in (0, 1))
    out.print(f"warned that the lower level is not solved: (a) {inner} of {len(cells)} runs, (b) {exact}")


def save_figure(cells: list[Cell], folder: Path) -> Path:
    """One market: convergence for each H as the runs report it, and where on the implicit function they ended."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    last = cells[-1]
    shown = [c for c in cells if (c.followers, c.slope, c.smoothing) == (last.followers, last.slope, last.smoothing)]
    problem = stackelberg_cournot(followers=last.followers, slope=last.slope, clients=1)  # all clients are alike
    with house_style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 3.8))
        grid = np.linspace(0, 10, 61)
        right.plot(grid, [problem.implicit(x) for x in grid], color="black", linewidth=1.0)
        for cell in shown:
            objective = cell.inner.history["objective"]
            window = max(1, len(objective) // 10)
            mean = np.convolve(objective, np.full(window, 1 / window), mode="valid")
            (line,) = left.plot(np.arange(window, window + len(mean)), mean, label=f"H = {cell.local_steps}")
            left.plot(cell.inner.settings["rounds_done"], cell.printed, "o", color=line.get_color())
            for result, marker, fill, name in ((cell.inner, "o", "full", "(a)"), (cell.exact, "s", "none", "(b)")):
                label = f"{name}, H = {cell.local_steps}"
                right.plot(
                    result.x, result.value, marker, fillstyle=fill, color=line.get_color(), markersize=8, label=label
                )
        left.set(title="as reported (dots: printed)", xlabel="round", ylabel="objective with the run's own y")
        right.set(title="f, and where the runs ended", xlabel="x", ylabel="f(x), lower level solved")
        left.legend()
        right.legend(loc="upper left")
        figure.suptitle(f"{last.followers} followers, b = {last.slope:g}, η = {last.smoothing:g}")
        return save(figure, folder, "reproduce_table4")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line; ``--full`` runs the whole table."""
    parser = command_line(__doc__)
    parser.add_argument("--followers", type=int, nargs="+", choices=INNER, default=[20, 100])
    parser.add_argument("--slopes", type=float, nargs="+", choices=(0.5, 1.0), default=[0.5])
    parser.add_argument("--steps", type=int, nargs="+", choices=STEPS, default=[1, 20], help="H")
    parser.add_argument("--smoothing", type=float, nargs="+", choices=SMOOTHING, default=[0.1], help="eta")
    parser.add_argument("--clients", type=int, default=10)
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or 100
    if options.full:
        options.followers, options.slopes = list(INNER), [0.5, 1.0]
        options.steps, options.smoothing = list(STEPS), list(SMOOTHING)
    return options


def main(arguments: list[str] | None = None) -> list[Cell]:
    """Run the table's entries and return them; a market's compiled programs go before the next one's are made."""
    options = parse(arguments)
    out = console()
    cells: list[Cell] = []
    for followers in options.followers:
        for slope in options.slopes:
            cells += run_market(followers, slope, options)
            gc.collect()
            jax.clear_caches()
    print_cells(out, cells, options)
    out.print(f"saved {save_figure(cells, options.figures)}")
    return cells


if __name__ == "__main__":
    main()
