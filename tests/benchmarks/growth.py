"""How answers grow with the size of the lower level: ``python -m tests.benchmarks.growth [--only KIND ...] [--largest N]``.

Each kind of lower level, at each size, in a new process: the first value, a value again at another x, a gradient, slices of 101 points
with their kinks (the first, and one beside it), and ``solve()``, beside CVXPY's re-solve of the same program with x as its parameter. All in ratios of that run.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.harness import THREADS, Row, as_installed, told

SPARSE, DENSE = (10, 30, 100, 300, 1000, 3000, 10000), (10, 30, 100, 300, 1000)
LIMIT = 300.0  # seconds for a process
Figures = dict[str, Any]


def _box(n: int, x: Any, y: Any, shift: Any, draw: Any) -> Any:
    import cvxpy as cp

    return cp.sum_squares(y - shift), [y >= -1, y <= 1]


def _rows(n: int, x: Any, y: Any, shift: Any, draw: Any) -> Any:
    import cvxpy as cp
    import numpy as np

    rows = draw.normal(size=(n // 2, n)) / np.sqrt(n)
    return 0.5 * cp.sum_squares(y - shift), [rows @ y <= 1 + 0.1 * x[0], y >= -2]


def _chain(n: int, x: Any, y: Any, shift: Any, draw: Any) -> Any:
    import cvxpy as cp
    import numpy as np
    import scipy.sparse as sp

    steps = sp.diags([np.ones(n - 1), -np.ones(n - 1)], [0, 1], shape=(n - 1, n)).tocsr()
    return 0.5 * cp.sum_squares(y - shift), [steps @ y <= 0.5, cp.sum(y) == x[0]]


def _assignment(n: int, x: Any, y: Any, shift: Any, draw: Any) -> Any:
    import cvxpy as cp

    side = round(n**0.5)
    plan = cp.reshape(y, (side, side), order="C")
    return (draw.uniform(1, 2, n) + shift) @ y, [cp.sum(plan, axis=1) == 1, cp.sum(plan, axis=0) == 1, y >= 0]


def _norm1(n: int, x: Any, y: Any, shift: Any, draw: Any) -> Any:
    import cvxpy as cp

    return 0.5 * cp.sum_squares(y - shift) + 0.3 * cp.norm1(y), []


def _lasso(n: int, x: Any, y: Any, shift: Any, draw: Any) -> Any:
    import cvxpy as cp

    rows, noise = draw.normal(size=(2 * n, n)), draw.normal(size=2 * n)
    return 0.5 / n * cp.sum_squares(rows @ (y - shift) - noise) + 0.3 * cp.norm1(y), []


def _cones(n: int, x: Any, y: Any, shift: Any, draw: Any) -> Any:
    import cvxpy as cp

    return 0.5 * cp.sum_squares(y - shift), [cp.norm(y[: n // 2]) <= 1, cp.norm(y[n // 2 :]) <= 2 + x[0]]


def _balls(n: int, x: Any, y: Any, shift: Any, draw: Any) -> Any:
    import cvxpy as cp

    return 0.5 * cp.sum_squares(y - shift), [cp.sum_squares(y[k : k + 2]) <= 1 for k in range(0, n, 2)]


def _entropy(n: int, x: Any, y: Any, shift: Any, draw: Any) -> Any:
    import cvxpy as cp

    return -cp.sum(cp.entr(y)) + shift @ y, [cp.sum(y) == 1]


KINDS: dict[str, tuple[Callable[..., Any], Sequence[int]]] = {
    "box": (_box, SPARSE),
    "chain of rows": (_chain, SPARSE),
    "norm1": (_norm1, SPARSE),
    "entropy": (_entropy, SPARSE),
    "assignment": (_assignment, (9, 25, 100, 400, 900)),
    "two cones": (_cones, SPARSE[:-1]),
    "n/2 balls": (_balls, DENSE),
    "n/2 dense rows": (_rows, DENSE),
    "lasso, 2n dense rows": (_lasso, DENSE),
}


def asked(kind: str, n: int) -> None:
    """Print what one lower level takes, a line of JSON after each question."""
    began = time.perf_counter()
    import cvxpy as cp

    unit = time.perf_counter() - began
    import numpy as np

    import hierfl as hf

    draw = np.random.default_rng(0)
    b, d = draw.normal(size=(n, 2)), draw.normal(size=n)
    state = draw.bit_generator.state

    def level(x: Any, y: Any) -> Any:
        draw.bit_generator.state = state
        return KINDS[kind][0](n, x, y, b @ x + d, draw)

    def tell(**figures: Any) -> None:
        print(json.dumps(figures), flush=True)

    def took(question: Callable[[], Any]) -> tuple[float, Any]:
        start = time.perf_counter()
        answer = question()
        return time.perf_counter() - start, answer

    here = np.array([0.3, 0.2])
    at, below = cp.Parameter(2, value=here), cp.Variable(n)
    cost, rows = level(at, below)
    program = cp.Problem(cp.Minimize(cost), rows)
    took(program.solve)
    at.value = here + 0.01
    cvxpy = min(took(lambda: program.solve(solver=cp.CLARABEL))[0] for _ in range(3))
    at.value = here
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
    value = float(np.sum((below.value - 1) ** 2) + 0.1 * here @ here)
    tell(unit=unit, cvxpy=cvxpy)

    x, y = cp.Variable(2, name="x"), cp.Variable(n, name="y")
    cost, rows = level(x, y)
    clients = cp.sum_squares(y - 1) + 0.1 * cp.sum_squares(x)
    problem = hf.Problem(hf.Minimize(clients=clients), lower=hf.ArgMin(y, cost, rows), constraints=[cp.abs(x) <= 1])
    first, f = took(lambda: problem.implicit(here))
    tell(first=first, error=abs(float(f) - value) / (1 + abs(value)))
    shifts = 0.01 + 0.003 * np.arange(3)
    tell(again=min(took(lambda s=s: problem.implicit(here + s))[0] for s in shifts))
    took(lambda: problem.implicit.gradient(here))
    tell(gradient=min(took(lambda s=s: problem.implicit.gradient(here - s))[0] for s in shifts))

    def sliced(x: Any) -> int:
        line = problem.implicit.slice(x, direction=[1, 0], radius=0.5, points=101, progress=False)
        return len(line.kinks)

    tell(first_slice=took(lambda: sliced(here))[0])
    seconds, kinks = took(lambda: sliced(here - [0.0, 0.1]))
    tell(slice=seconds, kinks=kinks)
    seconds, result = took(lambda: problem.solve(progress=False))
    tell(solve=seconds, status=str(result.status), memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measured(kind: str, n: int) -> Figures:
    """What a new process tells within its time, and how it ended where it did not tell all."""
    own = told("growth", "--ask", kind, str(n), limit=LIMIT, **dict.fromkeys(THREADS, "1"))
    return {"kind": kind, "n": n, "ended": "", **own}


RATIOS = ("first", "again", "gradient", "slice")
BARS = {"first": 1.0, "again": 3.0, "gradient": 2.0, "slice": 1.0}


def ratios(of: Figures) -> dict[str, float | None]:
    """First values over two imports and three solves, values over re-solves, gradients over values, slices over what they may cost."""
    bases = {
        "first": lambda: 2 * of["unit"] + 3 * of["cvxpy"],
        "again": lambda: of["cvxpy"],
        "gradient": lambda: of["again"],
        "slice": lambda: of["again"] * (150 + 2 * of["kinks"]),
    }
    return {name: of[name] / bases[name]() if name in of else None for name in RATIOS}


def table_of(results: Sequence[Figures]) -> Table:
    """All figures, a lower level a line."""
    table = Table(title="Growth: seconds, and ratios as in the bars")
    for heading in (
        "lower level", "n", "CVXPY s", "first", "again", "gradient", "first slice", "slice", "kinks", "solve",
        "status", "error", "MB",
    ):
        table.add_column(heading, justify="left" if heading in ("lower level", "status") else "right")

    def text(value: Any, form: str) -> str:
        return form.format(value) if isinstance(value, (int, float)) else str(value or "–")

    for of in results:
        ratio = ratios(of)
        pairs = [f"{text(of.get(k), '{:.3g}')} ({text(ratio[k], '{:.2g}')})" for k in RATIOS]
        pairs.insert(3, text(of.get("first_slice"), "{:.3g}"))
        table.add_row(
            of["kind"], f"{of['n']:,}", text(of.get("cvxpy"), "{:.2g}"), *pairs, text(of.get("kinks"), "{:d}"),
            text(of.get("solve"), "{:.3g}"), of.get("status") or of["ended"], text(of.get("error"), "{:.0e}"), text(of.get("memory"), "{:.0f}"),
        )  # fmt: skip
    return table


def bars(results: Sequence[Figures]) -> list[Row]:
    """The worst ratio of each kind of question."""
    rows = []
    for name in RATIOS:
        known = [(ratio, of) for of in results if (ratio := ratios(of)[name]) is not None]
        if known:
            worst, of = max(known, key=lambda pair: pair[0])
            rows.append(Row(f"growth: {name}", worst, BARS[name], note=f"{of['kind']}, n = {of['n']}"))
    errors = [of["error"] for of in results if "error" in of]
    early = [f"{of['kind']} {of['n']}" for of in results if of["ended"]]
    rows.append(Row("growth: relative error of f", max(errors, default=float("nan")), 1e-8))
    rows.append(Row("growth: lower levels not answered to the end", len(early), 0, note=", ".join(early)))
    return rows


def main() -> None:
    """Print the table and the bars."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.growth", description=__doc__)
    parser.add_argument("--ask", nargs=2, metavar=("KIND", "N"), help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="only these kinds")
    parser.add_argument("--largest", type=int, default=10**4, help="sizes up to this one")
    chosen = parser.parse_args()
    if chosen.ask:
        return asked(chosen.ask[0], int(chosen.ask[1]))
    as_installed()
    results = []
    for kind in chosen.only:
        for n in KINDS[kind][1]:
            if n <= chosen.largest:
                results.append(measured(kind, n))
                print({k: v for k, v in results[-1].items() if k != "unit"}, file=sys.stderr, flush=True)
    Console(width=200).print(table_of(results))
    print("\n".join(map(str, bars(results))))


if __name__ == "__main__":
    main()
