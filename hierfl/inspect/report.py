"""``result.report(path)``: one HTML file with everything about a run, which opens from disk without a network.

The sections are made by the modules ``report_*`` beside this one; here they are put in order. A part that cannot be made, such as
the slice of a diverged run, says why in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.errors import HierflError, SettingError
from hierfl.inspect import report_tables as tables
from hierfl.inspect.points import Points, owners
from hierfl.inspect.report_convergence import convergence_figure, quantities, title
from hierfl.inspect.report_line import CLIENTS, line_figure, slider_points, terms_figure
from hierfl.inspect.report_page import (
    Html,
    Section,
    data,
    drawn,
    element,
    escaped,
    joined,
    notice,
    number,
    page,
    paragraph,
    plotly,
)
from hierfl.inspect.report_places import Place, places
from hierfl.inspect.slice import Slice, require_window
from hierfl.runs import scalars, summary
from hierfl.runtime.run import OWN_VALUE_TOLERANCE

if TYPE_CHECKING:
    from hierfl.problem import Problem
    from hierfl.result import Result
    from hierfl.runs import Runs

COSTLY = 1e9  # scalars of data and responses that f^eta may touch unless it is asked for
SHARES = (0.1, 0.3)  # of the radius: smoothings that can be seen, beside the run's own
_LABELS = {"t": "t", "f": "f", "slope": "slope along the line", "x": "x", "y": "y(x)", "active": "active constraints"}


class ReportSettings(NamedTuple):
    """The arguments of ``Result.report``."""

    radius: float | None
    smoothing: float | Sequence[float] | None
    points: int
    samples: int
    seed: int
    check: bool
    progress: bool


def write_report(result: Result, runs: Runs | None, path: str | Path, settings: ReportSettings) -> Path:
    """Write the file; arguments and errors as for ``Result.report``."""
    plotly()
    problem = result.require_problem("a report")
    if settings.radius is not None:
        require_window(settings.radius, settings.points)
    sections = [
        Section("mathematics", "Declared mathematics", tables.mathematics(problem)),
        Section("check", "Check of the assumptions", _check(problem, settings)),
        Section("lowering", "Lowering", tables.lowering(problem.explain())),
        Section("convergence", "Convergence", _convergence(result, runs)),
        *_line_sections(result, settings),
        Section("communication", "Communication", tables.communication(result)),
        Section("certificate", "Certificate", tables.certificate(result)),
        Section("settings", "Settings and seeds", tables.settings(result, runs, settings.seed)),
        Section("environment", "Environment", tables.environment()),
    ]
    written = page(_title(result), _summary(result, runs), sections)
    target = Path(path)
    target.write_text(written, encoding="utf-8")
    return target


# --- the head of the page ---------------------------------------------------------------------------------------------


def _title(result: Result) -> str:
    return f"{str(result.settings.get('solver', 'run')).split('(')[0]}: {result.status}"


def _summary(result: Result, runs: Runs | None) -> Html:
    """Title, what is shown, the main numbers, and warnings."""
    done = result.settings.get("rounds_done", 0)
    subtitle = f"{result.settings.get('solver', '')}, {done:,} rounds, seed {result.settings.get('seed')}"
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
            *tables.warnings_of(result, _differs(result)),
            element("dl", joined(boxes), class_="numbers"),
        ]
    )


def _differs(result: Result) -> bool:
    """Whether the run's own value is further from the exact one than rounding explains."""
    if result.own_value is None:
        return False
    return bool(abs(result.own_value - result.value) > OWN_VALUE_TOLERANCE * (1 + abs(result.value)))


# --- sections that need a computation ---------------------------------------------------------------------------------


def _check(problem: Problem, settings: ReportSettings) -> Html:
    if not settings.check:
        return paragraph("Not run: the report was written with check=False.")
    return _or_why(lambda: tables.findings(problem.check(seed=settings.seed, progress=settings.progress)), "The check")


def _convergence(result: Result, runs: Runs | None) -> Html:
    found = quantities(result)
    if not found:
        return paragraph("The run made no round.")
    panels = [
        element(
            "div",
            joined([element("h3", title(name)), drawn(convergence_figure(result, runs, name), f"convergence-{place}")]),
        )
        for place, name in enumerate(found)
    ]
    if runs is None:
        words = "One run. The objective is estimated in each round at the points the algorithm queries; f(x) is exact."
    elif len(runs.finished) < 2:
        words = "Fewer than two runs finished: no band can be given."
    else:
        words = f"Mean over {len(runs.finished)} seeds with Student's 95% confidence band."
    return joined([paragraph(words), element("div", joined(panels), class_="panels")])


def _line_sections(result: Result, settings: ReportSettings) -> list[Section]:
    """The slice with its sliders, and the table of its kinks."""
    try:
        shown, note = _slice(result, settings)
        body, kinks = _line(shown, note), tables.kinks(shown.kinks)
    except SettingError:
        raise
    except HierflError as error:
        body = kinks = notice(f"The slice could not be made: {error}")
    return [Section("line", "Implicit function on a line", body), Section("kinks", "Kinks", kinks)]


def _or_why(make: Callable[[], Html], what: str) -> Html:
    try:
        return make()
    except HierflError as error:
        return notice(f"{what} could not be made: {error}")


# --- the slice --------------------------------------------------------------------------------------------------------


def _slice(result: Result, settings: ReportSettings) -> tuple[Slice, str]:
    """The slice through x, and what must be said about f^eta."""
    radius = settings.radius if settings.radius is not None else _radius(result)
    smoothing, note = settings.smoothing, ""
    if smoothing is None:
        smoothing, note = _smoothing(result, radius, settings)
    problem = result.require_problem("a report")
    shown = problem.implicit.slice(
        result, radius=radius, points=settings.points, smoothing=smoothing, samples=settings.samples,
        seed=settings.seed, progress=settings.progress,
    )  # fmt: skip
    return shown, note


def _radius(result: Result) -> float:
    """All iterates are within; 1 without any."""
    path = result.trajectory.get("x", np.zeros((0, 1)))
    if not len(path):
        return 1.0
    layout = result.require_problem("a report").compile().upper
    reach = float(np.max(np.linalg.norm(path - layout.flatten(result.x, "x"), axis=1)))
    return float(f"{1.1 * reach:.2g}") if 0 < reach < np.inf else 1.0


def _smoothing(result: Result, radius: float, settings: ReportSettings) -> tuple[tuple[float, ...], str]:
    """The run's own eta and two that can be seen in the window; none where they would cost too much, with a note."""
    compiled = result.require_problem("a report").compile()
    own = result.settings.get("smoothing")
    etas = {float(f"{share * radius:.1g}") for share in SHARES} | ({float(own)} if own else set())
    rows = sum(int(np.sum(table.counts)) for table in compiled.static_data.clients.tables)
    touched = 1 + rows + compiled.lower.size * (owners(compiled) if compiled.lower.size else 0)
    evaluations = settings.points * settings.samples * len(etas)
    if evaluations * touched > COSTLY or Points(compiled).on_host:
        return (
            (),
            f"f^η is left out: it takes {evaluations:,} evaluations of f. Write smoothing=[...] to have it all the same.",
        )
    return tuple(sorted(etas)), ""


def _line(shown: Slice, note: str) -> Html:
    said = places(shown)
    stops = slider_points(shown)
    middle = said[len(shown.t) // 2]
    listed = (
        joined([element("dt", label), element("dd", getattr(middle, key), id=f"place-{key}")])
        for key, label in _LABELS.items()
    )
    names = ", ".join(variable.name() for variable in shown.problem.upper_variables)
    count = shown.clients.shape[1]
    many = f"; of {count} clients the median and the band of all" if count > CLIENTS else ""
    return joined(
        [
            paragraph(
                f"f at {names} = centre + t · direction: the centre is the run's x, the direction {shown.chosen}. The lower level is "
                f"solved at every one of the {len(shown.t)} points; {_accuracy(shown)}"
            ),
            *([notice(note)] if note else []),
            *(paragraph(f"No value for {gap}.") for gap in shown.gaps),
            element("div", drawn(line_figure(shown, said), "line-figure"), class_="figure"),
            element("dl", joined(listed), class_="place", id="place"),
            data([said[k]._asdict() for k in stops], "line-places"),
            element("h3", "Terms along the line"),
            paragraph(f"Each party's own term, unweighted{many}. A click on a name hides or shows it."),
            element("div", drawn(terms_figure(shown), "terms-figure"), class_="figure"),
        ]
    )


def _accuracy(shown: Slice) -> str:
    """The worst residual and error bound over the window."""
    good = shown.sampled.reason == 0
    if shown.problem.lower_level is None:
        return "there is no lower level."
    if not good.any():
        return "f has a value at none of them."
    bound = np.max(shown.error_bound[good])
    words = f"at most {bound:.1e}" if np.isfinite(bound) else "unknown"
    return f"its residual is at most {np.max(shown.residual[good]):.1e}, the error of y {words}."
