"""The Stackelberg game of [2S] §6.4 as its experiments run it, for Table 4 and Figure 5."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from hierfl.errors import LowerLevelWarning
from hierfl.models import stackelberg_cournot
from hierfl.problem import Problem
from hierfl.reproduce.reproduction import Cell, DataSets
from hierfl.solvers import Exact, FedRZO
from hierfl.solvers.papers.fedrzo_modes import FOLLOWERS

CLIENTS, ROUNDS = 10, 100
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
        settings={
            "followers": followers,
            "slope": slope,
            "local_steps": local_steps,
            "smoothing": smoothing,
            "rounds": ROUNDS,
            "clients": CLIENTS,
            "seed": 0,
        },
        group=f"{followers}, {slope:g}",
    )


def run_cournot(cell: Cell, data: DataSets) -> dict[str, Any]:
    """Both runs of a cell, as printed and with the lower level solved, and the least f.

    ``own`` and ``own_x`` are the run's last value with its own y and where it ended, ``value`` is f there, ``warned`` whether the user
    was warned that the lower level is not solved; ``exact`` has the same of (b), ``optimum`` is min f, and ``objective`` is by round.
    """
    market = cell.settings["followers"], cell.settings["slope"]
    problem, least = cournot_market(*market)
    published = FedRZO.published("2s", followers=cell.settings["followers"])
    solver = replace(published, smoothing=cell.settings["smoothing"], local_steps=cell.settings["local_steps"])
    exact = FedRZO(
        smoothing=solver.smoothing,
        step_size=solver.step_size,
        local_steps=solver.local_steps,
        batch_size=solver.batch_size,
        lower=Exact(),
    )
    return {**_run(problem, solver, cell), "exact": _run(problem, exact, cell), "optimum": least}


def _run(problem: Problem, solver: FedRZO, cell: Cell) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = problem.solve(
            solver,
            rounds=cell.settings["rounds"],
            seed=cell.settings["seed"],
            x0=0.0,
            queries="raw",
            progress=False,
        )
    return {
        "own": result.own_value,
        "own_x": float(result.x),
        "value": result.value,
        "warned": any(issubclass(w.category, LowerLevelWarning) for w in caught),
        "objective": np.asarray(result.history["objective"]),
    }


@lru_cache(maxsize=1)
def cournot_market(followers: int, slope: float) -> tuple[Problem, float]:
    """(the problem, min f over X): the least of a grid, then a bounded search around it."""
    problem = stackelberg_cournot(followers=followers, slope=slope, clients=CLIENTS)
    grid = np.linspace(0, 10, 21)
    best = int(np.argmin([problem.implicit(x) for x in grid]))
    around = grid[max(0, best - 1)], grid[min(20, best + 1)]
    found = minimize_scalar(problem.implicit, bounds=around, method="bounded", options={"xatol": 1e-6})
    return problem, float(found.fun)


def published_followers() -> tuple[int, ...]:
    """The numbers of followers for which the paper has tau and alpha."""
    return tuple(FOLLOWERS)
