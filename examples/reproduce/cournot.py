"""The Stackelberg game of [2S] §6.4 by FedRZO_2s as its experiments run it: Table 4 and Figure 5.

The table has 4 numbers of followers, 2 slopes, 3 numbers of local steps, 3 smoothings; the figure the progress by rounds.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize_scalar

import hierfl as hf
from examples.reproduce.reproduction import Cell, DataSets, Measured, Reproduction, Table, panels
from hierfl.errors import LowerLevelWarning
from hierfl.inspect.pictures.convergence import moving_mean
from hierfl.models import stackelberg_cournot
from hierfl.solvers import Exact, FedRZO
from hierfl.solvers.papers.published import FOLLOWERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CLIENTS, ROUNDS = 10, 100
ALIKE = {"rounds": ROUNDS, "clients": CLIENTS, "seed": 0}  # of all runs
SLOPES, STEPS, SMOOTHING = (0.5, 1.0), (1, 10, 20), (1.0, 0.1, 0.01)
LEFT_OPEN = (
    "the start: x = 0, and y = 0 at every call of the projection method",
    "the number of clients m: 10; as they all have one law, it changes the noise only",
    "c_j and the followers' capacities: evenly spaced over the printed intervals [0.09, 0.11] and [2, 4]; c_0 = 0.1",
    "f(x_K): here with the y that the run's own projection method gives at x_K, averaged over the demand",
)
DIFFERS = (
    "The projection method makes ceil(tau ln(k + 1)) steps of length alpha from 0: with alpha between 1e-4 and 1e-8 the followers "
    "hardly leave 0, and the run minimises the loss of a leader who is alone in the market. The printed values are those of that problem; "
    "at the followers' equilibrium f is never below the 'min f' beside them, which is between -2.77 and -0.0006.",
    "So (a) agrees with the print by its own y and not by f(x). (b) is the same algorithm with the followers' equilibrium solved at every query.",
    "The numbers for 10 followers are 4 to 7 % off. With the printed alpha and tau the followers stay so near 0 that neither c_j nor capacities within "
    "the printed intervals can make that difference; it must lie in what is not printed, such as y_0.",
)


def cournot_cell(followers: int, slope: float, local_steps: int, smoothing: float) -> Cell:
    """A run of the game; b is the slope of the demand."""
    return Cell(
        name=f"{followers} followers, b = {slope:g}, H = {local_steps}, eta = {smoothing:g}",
        settings={"followers": followers, "slope": slope, "local_steps": local_steps, "smoothing": smoothing, **ALIKE},
        group=f"{followers}, {slope:g}",
    )


def prepare(cell: Cell, data: DataSets) -> tuple[hf.Problem, float]:
    """(the problem, min f over X): the least of a grid, then a bounded search around it."""
    own = {name: cell.settings[name] for name in ("followers", "slope")}
    problem = stackelberg_cournot(**own, clients=CLIENTS)
    grid = np.linspace(0, 10, 21)
    best = int(np.argmin([problem.implicit(x) for x in grid]))
    around = grid[max(0, best - 1)], grid[min(20, best + 1)]
    found = minimize_scalar(problem.implicit, bounds=around, method="bounded", options={"xatol": 1e-6})
    return problem, float(found.fun)


def run(cell: Cell, market: tuple[hf.Problem, float]) -> dict[str, Any]:
    """Both runs of a cell, as printed and with the lower level solved, and the least f.

    ``own`` and ``own_x`` are the run's last value with its own y and where it ended, ``value`` is f there, ``warned`` whether the user
    was warned that the lower level is not solved; ``exact`` has the same of (b), ``optimum`` is min f, and ``objective`` is by round.
    """
    problem, least = market
    own = {name: cell.settings[name] for name in ("smoothing", "local_steps")}
    published = FedRZO.published("2s", followers=cell.settings["followers"], **own)
    exact = FedRZO(**own, step_size=published.step_size, batch_size=published.batch_size, lower=Exact())
    return {**_run(problem, published, cell), "exact": _run(problem, exact, cell), "optimum": least}


def _run(problem: hf.Problem, solver: FedRZO, cell: Cell) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asked = {name: cell.settings[name] for name in ("rounds", "seed")}
        result = problem.solve(solver, x0=0.0, queries="raw", progress=False, **asked)
    return {
        "own": result.own_value,
        "own_x": float(result.x),
        "value": result.value,
        "warned": any(issubclass(w.category, LowerLevelWarning) for w in caught),
        "objective": np.asarray(result.history["objective"]),
    }


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


ENTRY = ("followers", "slope", "local_steps", "smoothing")  # the settings that say where a cell stands in the printed table
COMPARED = ("(a) own y", "difference", "(a) f(x)", "(b) f(x)", "min f")


def printed_value(followers: int, slope: float, local_steps: int, smoothing: float) -> float:
    """The entry of the printed table."""
    return PRINTED[followers, slope][STEPS.index(local_steps)][SMOOTHING.index(smoothing)]


def _row(measured: Measured, cell: Cell, columns: tuple[str, ...], difference: str) -> list[str]:
    """Settings of a cell, what was printed, and the values beside it, with the difference in these words."""
    ours, printed = measured.numbers[cell.name], printed_value(*(cell.settings[name] for name in ENTRY))
    told = difference.format(ours["own"] - printed, f"{100 * (ours['own'] / printed - 1):+.1f} %")
    solved = (ours["value"], ours["exact"]["value"], ours["optimum"])
    settings = (f"{cell.settings[name]:g}" for name in columns)
    return [*settings, f"{printed:.3f}", f"{ours['own']:.3f}", told, *(f"{one:.4f}" for one in solved)]


def _plan_of_table(full: bool, data: DataSets) -> list[Cell]:
    if full:
        markets = [(followers, slope) for followers in FOLLOWERS for slope in SLOPES]
        return [cournot_cell(*market, h, eta) for market in markets for h in STEPS for eta in SMOOTHING]
    return [cournot_cell(followers, 0.5, h, 0.1) for followers in (20, 100) for h in STEPS]


def _tables_of_table(measured: Measured) -> list[Table]:
    rows = [["followers", "b", "H", "eta", "printed", *COMPARED, "x of (a)", "x of (b)"]]
    runs = [(ours, ours["exact"]) for ours in measured.of()]
    for cell, both in zip(measured.cells, runs):
        rows.append([*_row(measured, cell, ENTRY, "{:+.3f} ({})"), *(f"{one['own_x']:.3f}" for one in both)])
    warned = [sum(one["warned"] for one in each) for each in zip(*runs)]
    title = (
        "f(x_K): printed, and by (a) the printed settings, (b) the lower level solved. "
        f"Warned that the lower level is not solved: {warned[0]} of {len(measured.cells)} runs of (a), {warned[1]} of (b)."
    )
    return [(title, rows)]


TABLE = Reproduction(
    name="2s-table4",
    about="the Stackelberg game by FedRZO_2s: 72 printed values beside f with the followers at their equilibrium",
    source="[2S] (Qiu, Shanbhag, Yousefian, 2024), Table 4, §6.4",
    caption="Implementation results of FedRZO_2s addressing the SNCE problem. FedRZO_2s displays improvement as H increases.",
    plan=_plan_of_table,
    prepare=prepare,
    run=run,
    tables=_tables_of_table,
    smaller="6 of the 72 cells, as printed: 20 and 100 followers, b = 0.5, eta = 0.1",
    differs=DIFFERS,
    left_open=LEFT_OPEN,
)


PANELS = ((100, 0.5, 1.0), (1000, 1.0, 0.1))  # followers, b and eta, left and right
WINDOW = 5  # rounds of the moving mean


def _plan_of_figure(full: bool, data: DataSets) -> list[Cell]:
    return [cournot_cell(n, b, h, eta) for n, b, eta in (PANELS if full else PANELS[:1]) for h in STEPS]


def _tables_of_figure(measured: Measured) -> list[Table]:
    columns = ("followers", "slope", "smoothing", "local_steps")
    rows = [["followers", "b", "eta", "H", "printed in Table 4", *COMPARED]]
    rows += [_row(measured, cell, columns, "{1}") for cell in measured.cells]
    title = (
        "f at the last x, averaged over the demand: printed in Table 4, as the figure has no numbers; by (a) the printed settings, solid, with "
        "the run's own y and with the lower level solved; by (b) the lower level solved throughout, dotted. Curves are of each round's own samples."
    )
    return [(title, rows)]


def _draw_of_figure(measured: Measured) -> Figure:
    """Draw a panel for each market as in the paper, the values with the run's own y; dotted, those with the lower level solved."""
    markets = measured.each("followers", "slope", "smoothing")
    figure, (axes,) = panels(1, len(markets), 4.9, 3.7)
    for ax, (followers, slope, smoothing) in zip(axes, markets):
        for place, steps in enumerate(STEPS):
            (ours,) = measured.of(followers=followers, slope=slope, smoothing=smoothing, local_steps=steps)
            for one, look, label in ((ours, "-", f"H = {steps}"), (ours["exact"], ":", None)):
                mean = moving_mean(np.asarray(one["objective"], dtype=float), WINDOW)
                ax.plot(np.arange(1, len(mean) + 1), mean, look, color=f"C{place}", label=label)
            ax.plot(len(ours["objective"]), printed_value(followers, slope, steps, smoothing), "o", color=f"C{place}")
        ax.set(title=f"ñ = {followers}, η = {smoothing:g}, b = {slope:g}", xlabel="communication round")
        ax.set_ylabel("f with the run's own y (dotted: solved; dots: printed)")
        ax.legend()
    return figure


FIGURE = Reproduction(
    name="2s-fig5",
    about="the Stackelberg game by FedRZO_2s: progress by rounds for H = 1, 10, 20",
    source="[2S] (Qiu, Shanbhag, Yousefian, 2024), Figure 5, §6.4",
    caption=(
        "(Left) Convergence of FedRZO_2s for the SNCE problem with 100 followers. (Right) Convergence of FedRZO_2s for the SNCE problem "
        "with 1000 followers. In both settings, the performance of FedRZO_2s improves as the number of local steps increases."
    ),
    plan=_plan_of_figure,
    prepare=prepare,
    run=run,
    tables=_tables_of_figure,
    draw=_draw_of_figure,
    smaller="the left panel alone, at the paper's settings",
    differs=DIFFERS[:2],
    left_open=LEFT_OPEN,
)
