"""The problems of BOLIB (Zhou, Zemkoho and Tin, 2018) with a convex lower level, beside their published optima.

``python -m tests.benchmarks.bolib [NAME ...]`` declares each from its mathematics, proves an optimum in a second or less in the median, or says what is refused
and searches locally instead, for thirty, and prints a table with the processor's seconds, of all threads; ``--markdown`` prints it as it is in ``docs/benchmarks.md``. Every point that is found is checked by CVXPY alone:
x is fixed in the same formulas, and the lower level solved.
"""

from __future__ import annotations

import resource
import sys
import time
import warnings
from dataclasses import dataclass
from statistics import median
from typing import Any

import cvxpy as cp
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import hierfl as hf
from hierfl.errors import HierflError
from hierfl.jaxtools.interruption import CutShort, heeded
from tests.benchmarks.bolib_conic import CONIC, NOT_CONVEX
from tests.benchmarks.bolib_linear import LINEAR, TOLLS, Levels, Published
from tests.benchmarks.bolib_nonlinear import QUADRATIC

SECONDS, SEARCHING, GAP = 20.0, 30.0, 1e-6
PRINTED, FEASIBLE = (
    6e-3,
    1e-6,
)  # relative: how far published values are rounded; rows of an answer, and how far it may be from the best
ALL = (*TOLLS, *LINEAR, *QUADRATIC, *CONIC)


def declared(problem: Published, selection: str | None = None) -> hf.Problem:
    """The problem in hierfl's language; a proof takes ties optimistically whatever is told, as the library does."""
    x, y = (cp.Variable(*(() if n == 1 else (n,)), name=name) for n, name in zip(problem.sizes, "xy"))
    levels = problem.levels(x, y)
    below = hf.ArgMin(y, levels.lower, levels.rows, selection=selection)
    return hf.Problem(hf.Minimize(server=levels.upper), below, constraints=levels.constraints)


@dataclass(frozen=True)
class Line:
    """What came of one problem."""

    problem: Published
    value: float | None
    gap: float | None
    status: str
    seconds: float
    checked: str
    why: str = ""

    @property
    def verdict(self) -> str:
        """Beside the published value."""
        published = self.problem.value
        if self.problem.by_hand:
            return self.problem.by_hand
        if self.value is None:
            return self.checked or self.why.partition(". ")[0]
        if self.checked:
            return f"not confirmed: {self.checked}"
        if published is None:
            return "none is published"
        away = (self.value - published) / max(1.0, abs(published))
        if abs(away) <= PRINTED:
            return "agrees"
        if away < 0:
            return "better than the best known" if self.problem.best_known else "published value is not optimal"
        return "published value is below the proved bound" if self.status == "proved" else "worse: not the optimum"


def processor_seconds() -> float:
    """Of this process and those that it has started, such as SCIP's."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    others = [other.cpu_times() for other in psutil.Process().children(recursive=True)]
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(times.user + times.system for times in others)


def line_of(problem: Published) -> Line:
    """Prove, or search where a proof is refused."""
    began, why = processor_seconds(), ""
    try:
        ours = declared(problem)
        try:
            found = ours.reference(certificate="global", gap=GAP, time_limit=SECONDS, progress=False)
            status = "proved" if found.status == "proved" else str(found.status)
        except hf.IncompatibleSolverError as refusal:
            why, began = str(refusal), processor_seconds()
            with heeded(time.perf_counter() + SEARCHING):
                found = declared(problem, "optimistic").reference(progress=False)
            status = "local"
    except CutShort:
        return Line(problem, None, None, f"no answer in {SEARCHING:g} s", processor_seconds() - began, "", why)
    except hf.DivergedError as error:
        there = beyond(problem) if problem.beyond else ""
        return Line(problem, None, None, "unbounded below", processor_seconds() - began, there, str(error))
    except HierflError as error:
        return Line(problem, None, None, type(error).__name__, processor_seconds() - began, "", str(error))
    except Exception as error:  # a crash is a result here
        return Line(problem, None, None, f"CRASH {type(error).__name__}", processor_seconds() - began, "", str(error))
    seconds = processor_seconds() - began
    gap = None if status == "local" else float(found.gap)
    x, y = np.asarray(found.x, float), np.asarray(found.y, float)
    return Line(problem, float(found.value), gap, status, seconds, doubt(problem, x, y, float(found.value)), why)


def doubt(problem: Published, x: np.ndarray, y: np.ndarray, value: float) -> str:
    """What CVXPY has against a point: its value, its constraints, or the lower level solved anew; nothing if it is right."""
    there = problem.levels(_numbers(x), _numbers(y))
    if not abs(_number(there.upper) - value) <= FEASIBLE * (1 + abs(value)):
        return f"the upper objective is {_number(there.upper):.8g} there"
    size = 1 + max(np.abs(x).max(), np.abs(y).max())
    for rows, name in ((there.constraints, "upper"), (there.rows, "lower")):
        if not (worst := max(map(_violation, rows), default=0.0)) <= FEASIBLE * size:
            return f"{name} constraints are violated by {worst:.1e}"
    best, _ = lowest(problem, x)
    if best is None:
        return "CVXPY does not solve the lower level there"
    if not _number(there.lower) <= best + 10 * FEASIBLE * (1 + abs(best)):
        return f"the lower objective is {_number(there.lower):.8g} there, {best:.8g} elsewhere"
    return ""


def lowest(problem: Published, x: np.ndarray) -> tuple[float | None, np.ndarray]:
    """The lower level's optimal value at x by CVXPY, and a y that has it."""
    y = cp.Variable(*(() if problem.sizes[1] == 1 else (problem.sizes[1],)))
    levels: Levels = problem.levels(x, y)  # arrays, whose entries have signs for CVXPY
    rows = [row for row in levels.rows if isinstance(row, cp.constraints.constraint.Constraint)]
    below = cp.Problem(cp.Minimize(levels.lower), rows)
    try:
        below.solve(solver=cp.CLARABEL)
    except cp.error.SolverError:
        return None, np.array(np.nan)
    return (None if below.value is None else float(below.value)), np.asarray(y.value, float)


def beyond(problem: Published) -> str:
    """What CVXPY says of the point that shows a published value to be none of an optimum, f being unbounded."""
    x = np.array(problem.beyond, float)
    y = lowest(problem, x)[1]
    value = _number(problem.levels(_numbers(x), _numbers(y)).upper)
    return doubt(problem, x, y, value) or f"published value is not optimal: f = {value:.7g} at a feasible point"


def _numbers(values: np.ndarray) -> Any:
    return cp.Constant(values if values.ndim else float(values))


def _number(expression: Any) -> float:
    return float(np.sum(getattr(expression, "value", expression)))


def _violation(row: Any) -> float:
    return float(np.max(row.violation()))


def main(names: list[str]) -> None:
    """Print the table, what the library has beside it, and a summary."""
    markdown, chosen = "--markdown" in names, {name for name in names if not name.startswith("-")}
    warnings.simplefilter("ignore")  # of ties, which are meant optimistically, and of CVXPY's accuracy
    line_of(LINEAR[0])  # the first answer loads hierfl, JAX and SCIP
    lines = []
    for problem in (one for one in ALL if not chosen or one.name in chosen):
        lines.append(line_of(problem))
        print(*cells(lines[-1]), lines[-1].why, sep=" | ", flush=True, file=sys.stderr)
    headings = ("problem", "sizes of x, y", "published", "hierfl", "gap", "status", "CPU s", "beside the published value")
    if markdown:
        print("| " + " | ".join(headings) + " |", "|" + "---|" * len(headings), sep="\n")
        print(*("| " + " | ".join(cells(line)) + " |" for line in lines), sep="\n")
    else:
        table = Table(*headings)
        for line in lines:
            table.add_row(*cells(line))
        Console(width=160).print(table)
    proved = [line.seconds for line in lines if line.status == "proved"]
    print(f"{len(lines)} problems, {len(proved)} proved", end="")
    print(f", median {median(proved):.2f} s, longest {max(proved):.2f} s" if proved else "")
    for why, group in NOT_CONVEX.items():
        print(f"not run, {why}: {group}")


def cells(line: Line) -> tuple[str, ...]:
    """One row of the table; a star marks a published value that is only the best known."""
    problem = line.problem
    published = "" if problem.value is None else f"{problem.value:.7g}" + ("*" if problem.best_known else "")
    sizes, seconds = f"{problem.sizes[0]}, {problem.sizes[1]}", f"{line.seconds:.2f}"
    gap = "" if line.gap is None else f"{line.gap:.0e}"
    value = "" if line.value is None else f"{line.value if abs(line.value) > FEASIBLE**2 else 0.0:.7g}"
    return problem.name, sizes, published, value, gap, line.status, seconds, line.verdict


if __name__ == "__main__":
    main(sys.argv[1:])
