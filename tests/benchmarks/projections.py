"""Each family of compiled projections against a CVXPY re-solve: ``python -m tests.benchmarks.projections [--n 100] [--docs]``.

Both sides project the same 20 points on sets that move with a parameter. hierfl runs them as one compiled batch; CVXPY sets
the parameters of a problem that it has canonicalised before (DPP) and solves it 20 times, with Clarabel and, for polyhedra,
with OSQP at their default accuracy. Times are per projection, after compilation, the median of several repeats.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hierfl.analysis.variable_bounds import attribute_constraints
from hierfl.compiler.sets import CompiledSet, compile_set

BATCH = 20
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
START, END = "<!-- projections benchmark -->", "<!-- end -->"

Build = Callable[[int, cp.Variable, cp.Parameter, cp.Parameter], list[Any]]


@dataclass(frozen=True)
class Family:
    """Constraints on y (n,) or on a square matrix of about n entries that move with a centre c (like y) and a radius r."""

    name: str
    build: Build
    matrix: bool = False
    symmetric: bool = False
    scalars: int = 0  # further scalar entries at the end of y, for cones


@dataclass(frozen=True)
class Row:
    """Microseconds per projection, and the largest distance between the two answers relative to 1 + ||z||.

    ``failures`` counts Clarabel's solves that ended with an error; they are left out of its time and of the difference.
    """

    family: str
    kind: str
    hierfl: float
    clarabel: float
    osqp: float | None
    difference: float
    failures: int

    @property
    def ratio(self) -> float:
        """How many times faster than the faster of the two solvers."""
        return min(self.clarabel, self.osqp or np.inf) / self.hierfl


def _rows(n: int, count: int = 3) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, n))


def _weights(n: int) -> np.ndarray:
    return np.linspace(1.0, 3.0, n)


def _rotation(n: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(2).standard_normal((n, n)))[0]


FAMILIES = [
    Family("orthant", lambda n, y, c, r: [y >= 0]),
    Family("box", lambda n, y, c, r: [y >= c - r, y <= c + r]),
    Family("l2 ball", lambda n, y, c, r: [cp.norm(y - c) <= r]),
    Family("l1 ball", lambda n, y, c, r: [cp.norm1(y - c) <= r]),
    Family("weighted l1 ball", lambda n, y, c, r: [_weights(n) @ cp.abs(y - c) <= r]),
    Family("max-norm ball", lambda n, y, c, r: [cp.norm_inf(y - c) <= r]),
    Family("weighted max-norm ball", lambda n, y, c, r: [cp.norm_inf(cp.multiply(_weights(n), y - c)) <= r]),
    Family("l1 ball, rotated", lambda n, y, c, r: [cp.norm1(_rotation(n) @ (y - c)) <= r]),
    Family("l2 ball for each row", lambda n, y, c, r: [cp.norm(y - c, axis=1) <= r], matrix=True),
    Family("simplex of moving total", lambda n, y, c, r: [y >= 0, cp.sum(y) == r]),
    Family("capped simplex", lambda n, y, c, r: [y >= 0, y <= 0.5, cp.sum(y) == r]),
    Family("halfspace", lambda n, y, c, r: [_weights(n) @ y <= r]),
    Family("hyperplane", lambda n, y, c, r: [_weights(n) @ y == r]),
    Family("slab", lambda n, y, c, r: [cp.abs(_weights(n) @ y) <= r]),
    Family("affine set", lambda n, y, c, r: [_rows(n) @ y == _rows(n) @ c]),
    Family(
        "affine set of moving normals",
        lambda n, y, c, r: [cp.vstack([c, cp.multiply(_weights(n), c)]) @ y == cp.hstack([r, 1])],
    ),
    Family("box with a hyperplane", lambda n, y, c, r: [y >= c - 1, y <= c + 1, _weights(n) @ (y - c) == r]),
    Family("box with a halfspace", lambda n, y, c, r: [y >= c - 1, y <= c + 1, _weights(n) @ (y - c) <= r]),
    Family("second-order cone", lambda n, y, c, r: [cp.norm(y[:-1] - c[:-1]) <= y[-1]], scalars=1),
    Family("PSD cone", lambda n, y, c, r: [y >> 0], matrix=True, symmetric=True),
    Family("few rows over a box", lambda n, y, c, r: [y >= c - 1, y <= c + 1, _rows(n) @ (y - c) <= r]),
    Family(
        "ball, box and simplex side by side",
        lambda n, y, c, r: [
            cp.norm(y[: n // 3] - c[: n // 3]) <= r,
            y[n // 3 : n // 2] >= c[n // 3 : n // 2],
            y[n // 2 :] >= 0,
            cp.sum(y[n // 2 :]) == r,
        ],
    ),
]


def measure(family: Family, n: int, repeats: int) -> Row:
    """One row of the table."""
    side = int(np.sqrt(n))
    shape = (side, side) if family.matrix else (n + family.scalars,)
    y = cp.Variable(shape, name="y", symmetric=family.symmetric)
    c, r = cp.Parameter(shape, name="c"), cp.Parameter(nonneg=True, name="r")
    constraints = family.build(n, y, c, r)
    rng = np.random.default_rng(0)
    points = 3 * rng.standard_normal((BATCH, *shape))
    if family.symmetric:
        points = 0.5 * (points + np.swapaxes(points, 1, 2))
    centres, radii = rng.standard_normal((BATCH, *shape)), rng.uniform(1.0, 2.0, BATCH)
    with jax.enable_x64(True):
        found = compile_set([*constraints, *attribute_constraints([y])], [y], label="Y")
        ours, ours_time = _hierfl(found, c, r, points, centres, radii, repeats)
    clarabel, clarabel_time = _cvxpy(constraints, y, c, r, points, centres, radii, cp.CLARABEL)
    osqp_time = None
    if cp.Problem(cp.Minimize(cp.sum_squares(y)), constraints).is_qp():
        _, osqp_time = _cvxpy(constraints, y, c, r, points, centres, radii, cp.OSQP)
    scale = 1.0 + np.linalg.norm(points.reshape(BATCH, -1), axis=1)
    distances = np.linalg.norm((ours - clarabel).reshape(BATCH, -1), axis=1) / scale
    failed = np.isnan(distances)
    if failed.all():
        raise RuntimeError(f"Clarabel solved none of the problems of {family.name!r}")
    difference = float(distances[~failed].max())
    return Row(family.name, found.kind, ours_time, clarabel_time, osqp_time, difference, int(failed.sum()))


def _hierfl(
    found: CompiledSet,
    c: cp.Parameter,
    r: cp.Parameter,
    points: np.ndarray,
    centres: np.ndarray,
    radii: np.ndarray,
    repeats: int,
) -> tuple[np.ndarray, float]:
    project = jax.jit(jax.vmap(lambda z, centre, radius: found.project(z, {c.id: centre, r.id: radius})))
    given = jnp.asarray(points.reshape(BATCH, -1)), jnp.asarray(centres), jnp.asarray(radii)
    answer = np.asarray(project(*given))
    times = []
    for _ in range(repeats):
        start, count = time.perf_counter(), 0
        while count < 5 or time.perf_counter() - start < 0.05:
            project(*given).block_until_ready()
            count += 1
        times.append((time.perf_counter() - start) / count)
    return answer.reshape(points.shape), 1e6 * float(np.median(times)) / BATCH


def _cvxpy(
    constraints: list[Any],
    y: cp.Variable,
    c: cp.Parameter,
    r: cp.Parameter,
    points: np.ndarray,
    centres: np.ndarray,
    radii: np.ndarray,
    solver: str,
) -> tuple[np.ndarray, float]:
    z = cp.Parameter(y.shape)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - z)), constraints)
    if not problem.is_dpp():
        raise RuntimeError(
            "the comparison is with problems that CVXPY canonicalises once; these constraints are not DPP"
        )
    answers, times = np.full(points.shape, np.nan), []
    for k in (0, *range(BATCH)):  # the first solve canonicalises; it is solved again for its time
        z.value, c.value, r.value = points[k], centres[k], radii[k]
        start = time.perf_counter()
        try:
            problem.solve(solver=solver, warm_start=True)
        except cp.SolverError:  # the answer stays NaN, which measure() counts
            continue
        times.append(time.perf_counter() - start)
        answers[k] = y.value
    return answers, 1e6 * float(np.median(times))


def markdown(rows: list[Row], n: int) -> str:
    """The table of the site's page of benchmarks."""
    lines = [
        f"| set, n = {n}, batch of {BATCH} | hierfl | CVXPY, Clarabel | CVXPY, OSQP | faster by |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        osqp = "" if row.osqp is None else f"{row.osqp / 1e3:.2f} ms"
        lines.append(
            f"| {row.family} | {row.hierfl:.1f} µs | {row.clarabel / 1e3:.2f} ms | {osqp} | {_rounded(row.ratio)} × |"
        )
    failed = [f"{row.failures} of {BATCH} for the {row.family}" for row in rows if row.failures]
    note = f"\n\nClarabel ended with an error in {', '.join(failed)}." if failed else ""
    return "\n".join(lines) + note


def with_table(text: str, table: str) -> str:
    """The text with the table between the two markers.

    Raises
    ------
    ValueError
        If the markers are not there.
    """
    head, start, rest = text.partition(START)
    _, end, tail = rest.partition(END)
    if not (start and end):
        raise ValueError(
            f"{PAGE.name} has no section between {START} and {END}: add the two lines where the table goes."
        )
    return f"{head}{START}\n{table}\n{END}{tail}"


def _rounded(ratio: float) -> str:
    """Two significant digits: the machine does not give more."""
    digits = max(0, int(np.floor(np.log10(ratio))) - 1)
    return f"{round(ratio, -digits):,.0f}"


def main() -> None:
    """Measure, print, and write the JSON file and (if asked) the table of the site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100, help="number of entries")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="families whose name contains this")
    parser.add_argument("--json", type=Path, default=Path("results/bench_projections.json"))
    parser.add_argument("--docs", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    chosen = [family for family in FAMILIES if options.only in family.name]
    rows = [measure(family, options.n, options.repeats) for family in track(chosen, "projections", transient=True)]
    table = Table("set", "recognised as", "hierfl µs", "Clarabel µs", "OSQP µs", "faster by", "difference")
    for row in rows:
        osqp = "" if row.osqp is None else f"{row.osqp:.0f}"
        values = (f"{row.hierfl:.1f}", f"{row.clarabel:.0f}", osqp, _rounded(row.ratio), f"{row.difference:.0e}")
        table.add_row(row.family, row.kind, *values)
    Console(width=140).print(table)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=1))
    if options.docs:
        PAGE.write_text(with_table(PAGE.read_text(), markdown(rows, options.n)))


if __name__ == "__main__":
    main()
