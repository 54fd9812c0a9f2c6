"""How long a first answer takes, in imports of CVXPY: ``python -m tests.benchmarks.first_answer [--quick] [--only NAME ...]``.

Every problem of ``tests/bilevel_catalogue.py`` is asked everything once, in a new process, in the order of a session: a value (the
declaration included), a gradient, a run of 100 rounds, a slice with its kinks, the reference; then the next problem's value and
gradient. The unit is the time that the same process took to ``import cvxpy``. *Cold* is without a disk cache, *warm* with one
that an earlier process has filled (``HIERFL_CACHE``). Beside them: a value asked again, one at another x and a slice of 401 points
asked again, CVXPY's re-solves of the lower level (for all its owners at one x), the primitive equations of the program that evaluates f, how
far the first value and gradient are from the catalogue's answers, and BLVPY with IPOPT where it can be imported.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.harness import Row, as_installed, told

QUICK = ("Clark-Westerberg", "Outrata-Zowe", "disc and rows", "Braess", "dispatch")
LIMIT = 900.0  # seconds for a process
QUESTIONS = ("value", "gradient", "solve", "slice", "reference")
Figures = dict[str, Any]


def asked(*arguments: str, cache: str = "off") -> Figures:
    """What a new process tells of one problem; where it ends early, what it told until then, and why it ended."""
    return told("first_questions", *arguments, limit=LIMIT, HIERFL_CACHE=cache)


def measured(name: str, following: str, warm: bool) -> Figures:
    """A problem's figures: cold, warm (as ``warm``) and BLVPY's."""
    figures = asked(name, following)
    if warm:
        with tempfile.TemporaryDirectory() as folder:
            asked(name, following, cache=folder)
            figures["warm"] = asked(name, following, cache=folder)
    return figures | {"blvpy": asked("--blvpy", name).get("blvpy", "failed")}


def imports(figures: Figures, question: str) -> float | str | None:
    """A waiting time in imports of CVXPY; what was refused, or None where nothing was told."""
    took = figures.get(question)
    return took / figures["unit"] if isinstance(took, float) else took


def together(figures: Figures) -> float | None:
    """All questions about one problem, in imports."""
    parts = [imports(figures, question) for question in QUESTIONS]
    return None if None in parts else math.fsum(part for part in parts if isinstance(part, float))


def text(value: Any, form: str = "{:.2f}") -> str:
    """A figure, a refusal, or a dash."""
    return "–" if value is None else form.format(value) if isinstance(value, (int, float)) else str(value)


def scaled(value: Any, factor: float) -> Any:
    return value * factor if isinstance(value, (int, float)) else value


def table_of(results: dict[str, Figures]) -> Table:
    """All figures, a problem a line."""
    table = Table(title="First answers, in imports of CVXPY", caption=_legend(results))
    for heading in ("problem", "import s", *QUESTIONS, "together", "next value", "next gradient", "warm together"):
        table.add_column(heading, justify="left" if heading == "problem" else "right")
    for heading in ("again µs", "another x µs", "401 points ms", "CVXPY ms", "equations", "error", "BLVPY"):
        table.add_column(heading, justify="right")
    for name, of in results.items():
        first = [imports(of, question) for question in (*QUESTIONS, "next_value", "next_gradient")]
        table.add_row(
            name,
            text(of.get("unit")),
            *map(text, first[:5]),
            text(together(of)),
            *map(text, first[5:]),
            text(together(of["warm"]) if "warm" in of else None),
            text(scaled(of.get("again"), 1e6), "{:.0f}"),
            text(scaled(of.get("elsewhere"), 1e6), "{:.0f}"),
            text(scaled(of.get("slice_again"), 1e3), "{:.1f}"),
            text(scaled(of.get("cvxpy"), 1e3)),
            text(of.get("equations"), "{:,}"),
            text(of.get("error"), "{:.0e}"),
            text(imports(of, "blvpy")),
        )
    return table


def _legend(results: dict[str, Figures]) -> str:
    """Processes that ended early, and what a refusal is."""
    early = [f"{name}: {of['ended']}" for name, of in results.items() if "ended" in of]
    return "\n".join(["the name of an error: refused", *early])


def bars(results: dict[str, Figures]) -> list[Row]:
    """The worst figure of each kind with the bar it is to reach."""
    rows = [
        _worst(results, f"first {question}, imports of CVXPY", lambda of, q=question: imports(of, q), bar)
        for question, bar in zip(QUESTIONS, (0.5, 0.5, 2.0, 1.0, 1.0))
    ]
    rows += [
        _worst(results, "next problem: value, imports", lambda of: imports(of, "next_value"), 0.3),
        _worst(results, "next problem: gradient, imports", lambda of: imports(of, "next_gradient"), 0.3),
        _worst(results, "everything together with a warm disk cache, imports", _warm, 3.0),
        _worst(results, "a value asked again, µs", lambda of: scaled(of.get("again"), 1e6), 100),
        _worst(results, "a slice of 401 points asked again, ms", lambda of: scaled(of.get("slice_again"), 1e3), 60),
        _worst(results, "equations of evaluate", lambda of: of.get("equations"), 3000),
        _worst(results, "error of the first value and gradient, relative", lambda of: of.get("error"), 1e-9),
    ]
    dispatch = results.get("dispatch", {})
    if isinstance(dispatch.get("cvxpy"), float) and "elsewhere" in dispatch:
        ratio = dispatch["cvxpy"] / dispatch["elsewhere"]
        rows.append(Row("dispatch: eight re-solves by CVXPY over a value at another x", ratio, 20, at_most=False))
    return rows


def _warm(of: Figures) -> float | None:
    return together(of["warm"]) if "warm" in of else None


def _worst(results: dict[str, Figures], name: str, figure: Callable[[Figures], Any], bar: float) -> Row:
    """The largest figure; infinite where a process ended early, while refusals are only counted."""
    figures = {problem: figure(of) for problem, of in results.items()}
    numbers = {problem: value for problem, value in figures.items() if isinstance(value, (int, float))}
    refused = sum(isinstance(value, str) for value in figures.values())
    missing = sum("ended" in of and figures[problem] is None for problem, of in results.items())
    if not numbers:
        return Row(name, math.nan, bar, note="not measured")
    worst = max(numbers, key=lambda problem: numbers[problem])
    notes = [worst, *([f"{refused} refused"] if refused else []), *([f"{missing} not answered"] if missing else [])]
    return Row(name, math.inf if missing else numbers[worst], bar, note=", ".join(notes))


def names() -> list[str]:
    """The catalogue's problems."""
    from tests.bilevel_catalogue import CATALOGUE

    return [case.name for case in CATALOGUE]


def chosen(options: argparse.Namespace) -> Iterable[tuple[str, str]]:
    """The problems to be asked, each with the one that its process is asked next."""
    everything = names()
    wanted = options.only or (QUICK if options.quick else everything)
    for name in wanted:
        yield name, everything[(everything.index(name) + 1) % len(everything)]


def main() -> None:
    """Print the table and the bars, and write the JSON file."""
    as_installed()
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.first_answer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names(), help="only these problems")
    parser.add_argument(
        "--no-warm", action="store_true", help="without the two further processes for the warm disk cache"
    )
    parser.add_argument("--json", type=Path, default=Path("results/first_answer.json"), help="where the figures go")
    options = parser.parse_args()
    results: dict[str, Figures] = {}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for name, following in chosen(options):
        results[name] = measured(name, following, warm=not options.no_warm)
        told = text(together(results[name]))
        print(f"{name}: {told} imports together", file=sys.stderr, flush=True)
        options.json.write_text(json.dumps(results, indent=2))
    Console(width=245).print(table_of(results))
    print("\n".join(map(str, bars(results))))


if __name__ == "__main__":
    main()
