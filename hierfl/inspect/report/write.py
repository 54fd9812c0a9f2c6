"""``result.report(path)``: one HTML file with everything about a run, which opens from disk without a network.

The sections are made by the modules beside this one; here they are put in order. A part that cannot be made, such as
the slice of a diverged run, says why in its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.explain import explain
from hierfl.errors import HierflError, SettingError
from hierfl.inspect.argument_checks import require_tolerance, require_whole, writable
from hierfl.inspect.assumptions.check import check
from hierfl.inspect.implicit.smoothing import radii
from hierfl.inspect.report import run_part
from hierfl.inspect.report.convergence_part import convergence_figure, quantities, title
from hierfl.inspect.report.page import Html, Section, drawn, element, joined, notice, number, page, paragraph, plotly
from hierfl.inspect.report.problem_part import environment, findings, lowering, mathematics
from hierfl.inspect.report.slice_part import ReportSettings, kinks_table, line_section, report_slice
from hierfl.inspect.window import require_window
from hierfl.result import OWN_VALUE_TOLERANCE
from hierfl.runs import scalars, summary
from hierfl.runtime.in_process.schedule import how_clients_run

if TYPE_CHECKING:
    from hierfl.result import Result
    from hierfl.runs import Runs


def write_report(result: Result, runs: Runs | None, path: str | Path, settings: ReportSettings) -> Path:
    """Write the file; arguments and errors as for ``Result.report``."""
    target = writable(path)
    plotly()
    compiled = result.require_problem("a report").compile(progress=settings.progress)
    require_window(1.0 if settings.radius is None else settings.radius, settings.points)
    require_whole("seed", settings.seed, 0)
    require_tolerance("time_budget", settings.time_budget)
    radii(settings.smoothing, settings.samples)
    sections = [
        Section("mathematics", "Declared mathematics", mathematics(compiled.declaration)),
        *_line_sections(result, settings),
        Section("convergence", "Convergence", _convergence(result, runs)),
        Section("check", "Check of the assumptions", _check(compiled, settings)),
        Section("lowering", "Lowering", lowering(explain(compiled, how_clients_run(compiled)))),
        Section("communication", "Communication", run_part.communication(result)),
        Section("certificate", "Certificate", run_part.certificate(result)),
        Section("settings", "Settings and seeds", run_part.settings(result, runs, settings.seed)),
        Section("environment", "Environment", environment()),
    ]
    written = page(_title(result), _summary(result, runs), sections)
    target.write_text(written, encoding="utf-8")
    return target


# --- the head of the page ---------------------------------------------------------------------------------------------


def _title(result: Result) -> str:
    return f"{str(result.settings.get('solver', 'run')).split('(')[0]}: {result.status}"


def _summary(result: Result, runs: Runs | None) -> Html:
    """Put together the title, what is shown, warnings, and the main numbers."""
    done = result.settings.get("rounds_done", 0)
    subtitle = f"{result.settings.get('solver_given', result.settings.get('solver', ''))}, {done:,} rounds, seed {result.settings.get('seed')}"
    if runs is not None:
        subtitle = f"The best of {len(runs)} seeds. {subtitle}"
    numbers: list[tuple[str, Any]] = [("f(x), lower level solved", number(result.value))]
    if result.own_value is not None:
        numbers.append(("the run's own objective", number(result.own_value)))
    if runs is not None:
        numbers.append(("mean over the seeds, 95%", summary(runs)))
    if result.certificate.method != "no lower level":
        bound = result.certificate.error_bound
        numbers.append(("error of y at most", f"{bound:.1e}" if np.isfinite(bound) else "unknown"))
    numbers += [("rounds", number(done)), ("scalars sent", number(scalars(result)))]
    boxes = (element("div", joined([element("dt", name), element("dd", value)])) for name, value in numbers)
    return joined(
        [
            element("h1", _title(result)),
            element("p", subtitle, class_="subtitle"),
            *run_part.warnings_of(result, _differs(result)),
            element("dl", joined(boxes), class_="numbers"),
        ]
    )


def _differs(result: Result) -> bool:
    """Whether the run's own value is further from the exact one than rounding explains."""
    if result.own_value is None:
        return False
    return bool(abs(result.own_value - result.value) > OWN_VALUE_TOLERANCE * (1 + abs(result.value)))


# --- sections that need a computation ---------------------------------------------------------------------------------


def _check(compiled: CompiledProblem, settings: ReportSettings) -> Html:
    if not settings.check:
        return paragraph("Not run: the report was written with check=False.")

    try:
        return findings(check(compiled, seed=settings.seed, progress=settings.progress))
    except HierflError as error:
        return notice(f"The check could not be made: {error}")


def _convergence(result: Result, runs: Runs | None) -> Html:
    names = quantities(result)
    if not names:
        return paragraph("The run made no round.")
    panels = [
        element(
            "div",
            joined(
                [
                    element("h3", title(name)),
                    drawn(convergence_figure(result, runs, name), f"convergence-{place}", f"{title(name)} by round"),
                ]
            ),
        )
        for place, name in enumerate(names)
    ]
    if runs is None:
        words = "One run. The objective is estimated in each round at the points the algorithm queries; f(x) is exact."
    elif len(runs.finished) < 2:
        words = "Fewer than two runs finished: no band can be given."
    else:
        words = f"Mean over {len(runs.finished)} seeds with Student's 95% confidence band."
    return joined([paragraph(words), element("div", joined(panels), class_="panels")])


def _line_sections(result: Result, settings: ReportSettings) -> list[Section]:
    """Make the sections of the slice with its sliders, and of the table of its kinks."""
    try:
        line = report_slice(result, settings)
        body = line_section(line)
        kinks = kinks_table(line.shown.kinks) if line.without_kinks is None else notice(line.without_kinks)
    except SettingError:
        raise
    except HierflError as error:
        body = kinks = notice(f"The slice could not be made: {error}")
    return [Section("line", "Implicit function on a line", body), Section("kinks", "Kinks", kinks)]
