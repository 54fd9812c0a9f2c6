"""Two leagues on nonsmooth implicit functions, at equal calls: ``python -m tests.benchmarks.leagues [values | gradients] [--seeds N] [--folder F]``.

Values only: ours against CMA-ES, COBYQA, Powell, Nelder and Mead, and random search; gradients allowed: ours against SciPy's L-BFGS-B and SLSQP
on our implicit function. A run may take 100 (n + 1) values, or lower solves (of which a value and a gradient at one point are one), and every seed has a
start of its own. What is kept is a small table, ``leagues.json``: shares solved to 1e-1, 1e-3 and 1e-6 of the way to the best f known. Needs the extra ``bench``. (NGOpt of nevergrad 1.0.12 fails
with this NumPy in its metamodel.)
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize

import hierfl as hf
from hierfl.solvers import ZOHFL, FedRZO, ImplicitBundle, ImplicitGradient
from tests.benchmarks.untuned_problems import FIELDS
from tests.bilevel_catalogue import CATALOGUE

KEPT = Path(__file__).with_suffix(".json")
CALLS, TOLERANCES, WITHIN = 100, (1e-1, 1e-3, 1e-6), (5, 20, 100)  # of n + 1 calls
ADDED = (1, 10, 50, 200)  # variables
LONGEST = 600.0  # seconds of a run of SciPy's, whose own work at each value is more than any f at 200 variables


def kinked(n: int) -> hf.Problem:
    """A chain of followers that answer within bounds: f has a kink wherever one meets its bound, some along no variable."""
    random = np.random.default_rng(n)
    x, y, goal = cp.Variable(n, name="x"), cp.Variable(n, name="y"), random.normal(size=n)
    mixed = np.eye(n) + 0.3 * np.eye(n, k=1)
    lower = hf.ArgMin(y, 0.5 * cp.sum_squares(y - mixed @ x), [y >= -0.5, y <= 0.5])
    return hf.Problem(hf.Minimize(clients=0.5 * cp.sum_squares(y - goal) + 0.05 * cp.sum_squares(x - 1)), lower, [cp.abs(x) <= 3])


def problems() -> dict[str, hf.Problem]:
    """The catalogue's, ten of ten fields, and chains of 1 to 200 variables."""
    named = {case.name: case.declare() for case in CATALOGUE} | {field.name: field.declare() for field in FIELDS}
    return named | {f"chain of {n}": kinked(n) for n in ADDED}


def scipys(method: str, gradients: bool = False, **options: Any) -> Any:
    """A method of ``scipy.optimize.minimize`` that begins again, nearby, for as long as there is budget, and time."""

    def run(f: Any, x0: np.ndarray, seed: int) -> None:
        random, start, until = np.random.default_rng(seed), x0, time.perf_counter() + LONGEST

        def value(x: np.ndarray) -> float:
            if time.perf_counter() > until:
                raise TimeoutError
            return float(f(x))

        with suppress(TimeoutError):
            while True:
                found = minimize(value, start, method=method, jac=f.gradient if gradients else None, bounds=f.bounds, options=options)
                start = f.project(found.x + random.normal(size=f.size) * 0.1 * (1 + np.abs(found.x)))

    return hf.study.adapter(name=method)(run)


@hf.study.adapter(name="CMA-ES")
def cma_es(f: Any, x0: np.ndarray, seed: int) -> None:
    import cma

    bounds = [np.where(np.isfinite(end), end, None).tolist() for end in (f.low, f.high)] if f.size > 1 else [None, None]
    inner = 1e-6 * _scale(f)  # its map of the bounds has none at them
    x0 = np.clip(x0, f.low + inner, f.high - inner)
    while True:
        cma.fmin(f, x0, 0.3 * _scale(f), {"bounds": bounds, "seed": seed + 1, "verbose": -9})
        seed += 1000


@hf.study.adapter(name="random search")
def scattered(f: Any, x0: np.ndarray, seed: int) -> None:
    random, scale = np.random.default_rng(seed), _scale(f)
    low, high = (np.where(np.isfinite(end), end, x0 + side * 3 * scale) for end, side in ((f.low, -1), (f.high, 1)))
    while True:
        f(random.uniform(low, high))


def _scale(f: Any) -> float:
    """A third of the box's smallest side, or 1."""
    sides = f.high - f.low
    return float(np.min(np.where(np.isfinite(sides) & (sides > 0), sides / 3, 1.0)))


LEAGUES: dict[str, tuple[str, dict[str, Any]]] = {
    "values": (
        "values",
        {
            "ImplicitBundle, differences": ImplicitBundle(gradients="differences", hops=1000),
            "FedRZO": FedRZO(step_size="auto"),
            "FedRZO, orthonormal": FedRZO(step_size="auto", estimator="central", direction_kind="orthonormal"),
            "ZO-HFL": ZOHFL(step_size="auto"),
            **{name: scipys(name) for name in ("COBYQA", "Powell", "Nelder-Mead")},
            "CMA-ES": cma_es,
            "random search": scattered,
        },
    ),
    "gradients": (
        "lower_solves",
        {
            "solve()": None,
            "ImplicitGradient": ImplicitGradient(step_size="auto"),
            "L-BFGS-B": scipys("L-BFGS-B", gradients=True),
            "SLSQP": scipys("SLSQP", gradients=True),
        },
    ),
}


def played(league: str, seeds: int, folder: str | None, processes: int, only: list[str] | None) -> dict[str, Any]:
    """The shares solved, by tolerance and calls."""
    unit, solvers = LEAGUES[league]
    named = {name: problem for name, problem in problems().items() if only is None or name in only}
    compiled = {name: problem.compile(progress=False) for name, problem in named.items()}
    each = {name: one.num_clients if unit == "values" else _owners(one) for name, one in compiled.items()}
    budgets = {name: hf.Budget(**{unit: CALLS * (compiled[name].upper.size + 1) * each[name]}) for name in named}
    study = hf.Study(named, solvers, seeds=seeds, budget=budgets, starts="spread")
    compared = study.run(folder, processes=processes)
    scales = np.array([each[name] * (compiled[name].upper.size + 1) for name in named])
    best = {name: _reference(problem) for name, problem in named.items()}
    shares = {}
    for tolerance in TOLERANCES:
        took = compared.solved(tolerance, {name: value for name, value in best.items() if value is not None})
        shares[f"{tolerance:g}"] = {
            name: [round(float(np.mean(own / scales[:, None] <= calls)), 3) for calls in WITHIN] for name, own in took.items()
        }
    return {"league": league, "problems": list(named), "seeds": seeds, "within": WITHIN, "shares": shares}


def _owners(compiled: Any) -> int:
    """Lower levels that a value asks for."""
    f = hf.study.CountedFunction(compiled, {}, np.zeros(compiled.upper.size))
    f(f.start)
    return f.spent.get("lower_solves", 1)


def _reference(problem: hf.Problem) -> float | None:
    if problem.compile(progress=False).upper.size > 5:
        return None
    try:
        return float(problem.reference(progress=False).value)
    except hf.HierflError:
        return None


def main() -> None:
    """Play the leagues that are asked for, print and keep their tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.leagues", description=__doc__)
    parser.add_argument("league", nargs="*", choices=[*LEAGUES, []], help="both, if none is named")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", help="where runs are kept, to go on from there")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="problems")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for league in chosen.league or LEAGUES:
        known[league] = played(league, chosen.seeds, chosen.folder and f"{chosen.folder}/{league}", chosen.processes, chosen.only)
        Console(width=140).print(table_of(known[league]))
    if chosen.only is None:
        KEPT.write_text(json.dumps(known, indent=1) + "\n")


def table_of(told: dict[str, Any]) -> Table:
    """The shares solved: a solver a line, a column for each tolerance and number of calls."""
    table = Table(title=f"{told['league']}: share of {len(told['problems'])} problems x {told['seeds']} starts solved")
    table.add_column("solver")
    for tolerance in told["shares"]:
        for calls in told["within"]:
            table.add_column(f"{tolerance}: {calls} (n + 1)", justify="right")
    for name in next(iter(told["shares"].values())):
        table.add_row(name, *(f"{share:.2f}" for own in told["shares"].values() for share in own[name]))
    return table


if __name__ == "__main__":
    main()
