"""``result.report(path)``: one HTML file with everything about a run, which opens from disk without a network.

First the sections in words and tables: the declared mathematics, the check of its assumptions, how it was lowered, and the machine; warnings,
communication, the certificate, settings and seeds. Then all sections are put in order; those of the slice are made by the module
beside this one. A part that cannot be made, such as the slice of a diverged run, says why in its place.

The mathematics is inline SVG, set by matplotlib's mathtext: no network, no fonts of the reader's machine. Each row of ``Problem.latex()``, an
``aligned`` display, is set by itself; the rows are put below each other with their ``&`` in one vertical line. Where mathtext or its fonts do
not know something, the text form is shown.
"""

from __future__ import annotations

import importlib.metadata
import io
import logging
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.explain import explain
from hierfl.errors import HierflError, SettingError
from hierfl.house_style import COLOURS
from hierfl.inspect.argument_checks import require_tolerance, require_whole, writable
from hierfl.inspect.assumptions.check import check
from hierfl.inspect.implicit.smoothing import radii
from hierfl.inspect.report.page import (
    Html,
    Section,
    band_of,
    drawn,
    element,
    escaped,
    facts,
    faint,
    folded,
    joined,
    notice,
    number,
    outline,
    page,
    paragraph,
    plotly,
    preformatted,
    styled,
    table,
)
from hierfl.inspect.report.slice_part import ReportSettings, kinks_table, line_section, report_slice
from hierfl.inspect.window import require_window
from hierfl.language.declaration import Declaration
from hierfl.language.printing.render import problem_latex, problem_text
from hierfl.language.printing.text import expression_text
from hierfl.result import OWN_VALUE_TOLERANCE
from hierfl.runs import half_width, scalars, summary
from hierfl.runtime.in_process.simulation import how_clients_run
from hierfl.version import VERSION

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from hierfl.compiler.explain import Explanation
    from hierfl.inspect.assumptions.findings import CheckReport
    from hierfl.result import Result
    from hierfl.runs import Runs


SHOWN = 1500  # points of a curve
COLUMNS = {
    "objective": "objective, the run's own estimates",
    "gradient_norm": "norm of the gradient's estimate",
    "lower_residual": "residual of the lower level in the run",
}
WIDE_RANGE = 1e3  # of positive numbers: above, the axis is logarithmic


class ConvergenceCurve(NamedTuple):
    """A quantity by round; ``half_width`` is that of the 95% band over seeds, None for a single run."""

    rounds: np.ndarray
    value: np.ndarray
    half_width: np.ndarray | None
    window: int


def quantities(result: Result) -> list[str]:
    """List the columns of the history that hold anything (a residual that is always 0 does not), and the metrics."""
    columns = [name for name in COLUMNS if np.isfinite(result.history.get(name, np.zeros(0))).any()]
    if not np.any(result.history.get("lower_residual", 0.0)):
        columns = [name for name in columns if name != "lower_residual"]
    return columns + [name for name in result.metrics if name != "round" and len(result.metrics[name])]


def _convergence_curve(result: Result, runs: Runs | None, name: str) -> ConvergenceCurve:
    """Follow one quantity of a run; of several runs its mean over the seeds, with the moving mean that smooths estimates."""
    metric = name in result.metrics
    group = runs if runs is not None and len(runs.finished) > 1 else None
    values = np.atleast_2d(group.values(name) if group is not None else _column(result, name))
    window = 1 if metric else max(1, values.shape[1] // 25)
    if window > 1:
        values = np.apply_along_axis(np.convolve, 1, values, np.full(window, 1 / window), mode="valid")
    count = values.shape[1]
    alone = result.metrics["round"] if metric else np.arange(1, window + count)
    made = alone if group is None else group.rounds(name)
    band = half_width(values) if len(values) > 1 else None
    return ConvergenceCurve(made[window - 1 :], values.mean(axis=0), band, window)


def convergence_figure(result: Result, runs: Runs | None, name: str) -> Figure:
    """Draw a quantity by round; returns Plotly's figure."""
    figure, shown = plotly().graph_objects.Figure(), _convergence_curve(result, runs, name)
    seeds = len(runs.finished) if runs is not None and shown.half_width is not None else 1
    if shown.window > 1 and seeds == 1:
        every = _thinned(len(_column(result, name)))
        pale = {"color": faint(COLOURS[0]), "width": 1}
        figure.add_scatter(x=1 + every, y=_column(result, name)[every], name="each round", mode="lines", line=pale)
    every = _thinned(len(shown.value))
    if shown.half_width is not None:
        low, high = shown.value - shown.half_width, shown.value + shown.half_width
        x, y = outline(shown.rounds[every], low[every], high[every])
        figure.add_scatter(x=x, y=y, **band_of(COLOURS[0]), name="95% band", hoverinfo="skip")
    figure.add_scatter(
        x=shown.rounds[every], y=shown.value[every], name=_label(shown.window, seeds),
        mode="lines+markers" if len(every) < 30 else "lines", line={"color": COLOURS[0], "width": 2},
    )  # fmt: skip
    if name == "objective" and np.isfinite(result.value):
        ends = [0, int(shown.rounds[-1]) if len(shown.rounds) else 1]
        label = f"f at the end{' of the best run' if seeds > 1 else ''}: {result.value:.6g}"
        dashed = {"color": COLOURS[1], "dash": "dash"}
        figure.add_scatter(x=ends, y=[result.value] * 2, name=label, mode="lines", line=dashed)
    figure.update_xaxes(title_text="round", title_standoff=8)
    figure.update_yaxes(type="log" if _is_wide(shown.value) else "linear", exponentformat="power")
    return styled(figure, height=360, showlegend=True)


def title(name: str) -> str:
    """Say what a panel shows."""
    return escaped(COLUMNS.get(name, name))


def _column(result: Result, name: str) -> np.ndarray:
    return np.asarray(result.history[name] if name in result.history else result.metrics[name], dtype=float)


def _label(window: int, seeds: int) -> str:
    over = f"mean of {window} rounds" if window > 1 else ""
    if seeds > 1:
        return f"mean of {seeds} seeds" + (f", {over}" if over else "")
    return over or "each round"


def _thinned(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, max(0, count - 1), min(count, SHOWN)).round().astype(int))


def _is_wide(values: np.ndarray) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size and finite.min() > 0 and finite.max() > WIDE_RANGE * finite.min())


SIZE = 12.0  # of the letters, in points
LEADING = 0.7 * SIZE  # between two rows
_PHANTOM = re.compile(r"\\phantom\{(\\text\{[^{}]*\})\}")
_DELIMITED = re.compile(r"\\left(\\[vV]ert|\(|\[)((?:(?!\\left|\\right|\\frac|\\underset).)*)\\right(\\[vV]ert|\)|\])")


def mathematics_svg(latex: str, spoken: str) -> str | None:
    """What ``Problem.latex()`` gives, an ``aligned`` display, as an ``<svg>`` element; None where mathtext cannot set it faithfully.

    ``spoken`` is the same as text, for screen readers.
    """
    inner = latex.removeprefix("\\begin{aligned}\n").removesuffix("\n\\end{aligned}")
    rows = [row.partition("&")[::2] for row in inner.split(" \\\\\n")]
    try:
        with _missing_glyphs_are_errors():
            drawn = _typeset(rows)
    except (ValueError, RuntimeError):  # mathtext's parse errors; and a glyph that its fonts do not have
        return None
    element = drawn[drawn.index("<svg") :].replace("<svg", f'<svg class="mathematics" role="img" aria-label="{escape(spoken)}" fill="currentColor"', 1)
    return re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)


def _typeset(rows: list[tuple[str, str]]) -> str:
    """An SVG file of the rows below each other, left sides flush right, right sides flush left."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font, figure, y = FontProperties(size=SIZE, math_fontfamily="stix"), Figure(figsize=(1, 1), dpi=72), 0.0

    def extent(inside: str) -> tuple[float, float, float]:
        return text_to_path.get_text_width_height_descent(f"${inside}$", font, ismath=True)

    def blank(phantom: re.Match[str]) -> str:
        """Write an empty space as wide as what a \\phantom hides: mathtext has none."""
        em = extent(r"\hspace{1}")[0]
        return rf"\hspace{{{extent(phantom[1])[0] / em:.4f}}}"

    for row in rows:
        sides = [_PHANTOM.sub(blank, _plain_delimiters(side.strip())) for side in row]
        extents = [extent(side) for side in sides if side]
        y -= max(height - depth for _, height, depth in extents)
        for side, flush in zip(sides, ("right", "left")):
            if side:
                figure.text(0, y / 72, f"${side}$", ha=flush, va="baseline", font=font)
        y -= max(depth for _, _, depth in extents) + LEADING
    written = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "path"}):  # no fonts of the reader's machine
        figure.savefig(written, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.03)
    return written.getvalue()


def _plain_delimiters(latex: str) -> str:
    r"""Take away the \left and \right around what is no higher than a line: mathtext makes these delimiters too small."""
    plain = _DELIMITED.sub(r"\1\2\3", latex)
    return plain if plain == latex else _plain_delimiters(plain)


@contextmanager
def _missing_glyphs_are_errors() -> Iterator[None]:
    """Mathtext only logs a character that no font has, and draws another one for it."""

    class Refuse(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record.getMessage())

    logger, handler = logging.getLogger("matplotlib.mathtext"), Refuse(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _mathematics(declaration: Declaration) -> Html:
    """Show the declaration as it would be set in a paper, and as text."""
    text = problem_text(declaration)
    drawn = mathematics_svg(problem_latex(declaration), text)
    if drawn is None:
        return preformatted(text)
    spelled = folded("The same as text", preformatted(text), printed=False)
    return joined([element("div", Html(drawn), class_="formula"), spelled])


def findings(report: CheckReport) -> Html:
    """Show what ``problem.check()`` found: assumptions, constants, theorems."""
    rows = [
        [
            element("span", f.status, class_=f.status.replace(" ", "-")),
            f.name,
            f.assumption,
            f.reason + (f" ({f.advice})" if f.advice else "") + _sampled(f.points, f.worst),
        ]
        for f in report.findings
    ]
    parts = [table(["status", "property", "assumption", "how it is known"], rows, "check-findings")]
    if report.constants:
        constants = [
            [c.name, f"{c.side} {number(c.value)}" if np.isfinite(c.value) else "unknown", c.attained_by, c.reason]
            for c in report.constants.values()
        ]
        parts += [
            element("h3", "Constants, on the declared sets"),
            table(["constant", "bound", "attained by", "how it is known"], constants, "check-constants"),
        ]
    for theorem in report.theorems:
        parts += [element("h3", theorem.name), preformatted(theorem, wrapped=True)]
    said = [paragraph(report.title), facts(((heading, joined(map(paragraph, lines))) for heading, lines in report.page.items()), "check-page")]
    everything = f"All {len(report.findings)} findings, the constants and the theorems"
    return joined([*said, folded(everything, joined(parts))])


def _sampled(points: int | None, worst: float | None) -> str:
    if points is None:
        return ""
    return f" ({points} points" + ("" if worst is None else f", worst value {worst:.6g}") + ")"


def _lowering(explanation: Explanation) -> Html:
    rows = [[piece.piece, piece.how, piece.cost, piece.advice] for piece in explanation]
    advice = sum(1 for piece in explanation if piece.advice)
    said = f"{len(rows)} pieces" + (f", {advice} of them with advice on what would be better" if advice else "")
    whole = table(["piece", "how", "cost of one use", "better"], rows, "lowering-pieces")
    return folded(f"How each of {said} was compiled", whole)


PACKAGES = ("jax", "jaxlib", "cvxpy", "numpy", "scipy", "plotly")


def _environment() -> Html:
    """Show versions and the machine; those of the report, which a loaded result need not share."""
    import jax

    rows = [
        ("Python", sys.version.split()[0]),
        ("hierfl", VERSION),
        *((package, _version(package)) for package in PACKAGES),
        ("platform", platform.platform()),
        ("JAX's backend", jax.default_backend()),
        ("precision", "double (64 bits)"),
    ]
    return joined(
        [paragraph("Of the process that wrote this report; a result loaded from a file may come from another."),
         facts(rows, "environment-facts")]
    )  # fmt: skip


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


DIRECTIONS = {
    "scalars_down": "scalars from the server to the clients",
    "scalars_up": "scalars from the clients to the server",
    "lower_scalars_down": "for the lower level, down",
    "lower_scalars_up": "for the lower level, up",
    "cloud_scalars_down": "from the cloud to the edges",
    "cloud_scalars_up": "from the edges to the cloud",
}


def communication(result: Result) -> Html:
    """Show the scalars sent, and what was not counted among them."""
    sent = result.communication
    rows = [
        [words, sent[name], sent.get(f"{name}_per_round", float("nan"))]
        for name, words in DIRECTIONS.items()
        if name in sent and (sent[name] or not name.startswith("lower"))
    ]
    monitor = sent.get("monitor_scalars", 0) + sent.get("lower_monitor_scalars", 0)
    counts = facts(
        [("rounds", sent.get("rounds", 0)), ("participants in a round", sent.get("participants_per_round", 0)),
         ("scalars in total", scalars(result)), ("numbers for monitoring, counted apart", monitor)],
        "communication-counts",
    )  # fmt: skip
    return joined([table(["direction", "in total", "in a round"], rows, "communication-scalars"), counts])


def certificate(result: Result) -> Html:
    """Show how the lower level behind the value was solved, how accurately, and the run's own value beside it."""
    known = result.certificate
    rows: list[tuple[str, Any]] = [("f(x), the lower level solved", result.value)]
    rows += [("distributions", known.expectation)] if known.expectation else []
    if known.method == "no lower level":
        words = paragraph("There is no lower level: f(x) is evaluated as declared.")
        return joined([words, facts(rows, "certificate-facts")])
    own = "the solver keeps no y of its own" if result.own_value is None else result.own_value
    rows += [
        ("the run's own objective, with its own y", own),
        ("method", known.method),
        ("natural residual of the lower level, worst owner", _of(known.lower_residual, known.worst)),
        ("natural residual of the run's own y, worst client", _of(known.own_residual, known.own_worst)),
        ("error of y at most", known.error_bound if np.isfinite(known.error_bound) else "unknown"),
        ("proved modulus of strong convexity, smallest", known.strong_convexity or "unknown"),
        ("iterations, most", known.iterations),
        ("largest distance of the raw iterate to a client's X", float(np.max(result.distances, initial=0.0))),
    ]
    return facts(rows, "certificate-facts")


def _of(residual: float, owner: str) -> str:
    return f"{number(residual)}{owner and f', {owner}'}"


def _settings(result: Result, runs: Runs | None, slice_seed: int) -> Html:
    rows: list[tuple[str, Any]] = [
        (name.replace("_", " "), "none" if value is None else escaped(value) if isinstance(value, str) else value)
        for name, value in result.settings.items()
    ]
    if runs is not None:
        rows.append(("all seeds", ", ".join(map(str, runs.seeds))))
    rows.append(("seed of this report (direction, draws, sampled checks)", slice_seed))
    parts = [facts(rows, "settings-facts")]
    if runs is not None:
        cells = [
            [r.settings["seed"], r.status, r.settings["rounds_done"], r.value, "" if r.own_value is None else r.own_value, scalars(r)]
            for r in runs
        ]  # fmt: skip
        header = ["seed", "status", "rounds", "f(x)", "own value", "scalars"]
        parts += [element("h3", "Every seed"), element("div", table(header, cells, "seeds-rows"), class_="long")]
    return joined(parts)


def _warnings_of(result: Result) -> list[Html]:
    """Say what a reader must know before the numbers."""
    warnings = []
    if result.status == "diverged":
        warnings.append("This run diverged: what follows describes its last finite state, not a solution.")
    own, away = result.own_value, float(np.max(result.distances, initial=0.0))
    if own is not None and abs(own - result.value) > OWN_VALUE_TOLERANCE * (1 + abs(result.value)):
        warnings.append(
            f"The run's own objective is {number(own)}, but f(x) with the lower level solved is "
            f"{number(result.value)}: the run's lower solver stopped short."
        )
    if away > 1e-9:
        warnings.append(f"The raw iterate is up to {away:.3g} outside X; x and f(x) are those of its projection.")
    if not np.isfinite(result.certificate.error_bound):
        warnings.append("No bound on the error of y is known: the value of f(x) is as good as the residual below says.")
    return [notice(text) for text in warnings]


def write_report(result: Result, runs: Runs | None, path: str | Path, settings: ReportSettings) -> Path:
    """Write the file; arguments and errors as for ``Result.report``."""
    target = writable(path, settings.overwrite)
    plotly()
    compiled = result.require_problem("a report").compile(progress=settings.progress)
    require_window(1.0 if settings.radius is None else settings.radius, settings.points)
    require_whole("seed", settings.seed, 0)
    require_tolerance("time_budget", settings.time_budget)
    radii(settings.smoothing, settings.samples)
    sections = [
        Section("mathematics", "Declared mathematics", _mathematics(compiled.declaration)),
        *_line_sections(result, settings),
        Section("convergence", "Convergence", _convergence(result, runs)),
        Section("check", "Check of the assumptions", _check(compiled, settings)),
        Section("lowering", "Lowering", _lowering(explain(compiled, how_clients_run(compiled)))),
        Section("communication", "Communication", communication(result)),
        Section("certificate", "Certificate", certificate(result)),
        Section("settings", "Settings and seeds", _settings(result, runs, settings.seed)),
        Section("environment", "Environment", _environment()),
    ]
    title = _title(compiled.declaration)
    written = page(title, _summary(title, result, runs), sections)
    target.write_text(written, encoding="utf-8")
    return target


# --- the head of the page ---------------------------------------------------------------------------------------------


def _title(declaration: Declaration) -> str:
    objective = " + ".join(map(expression_text, declaration.objective.terms))
    over = ", ".join(v.name() for v in declaration.upper_variables)
    return f"{declaration.objective.sense} {shorten(objective, 80, placeholder=' ...')} over {shorten(over, 40, placeholder=' ...')}"


def _summary(problem: str, result: Result, runs: Runs | None) -> Html:
    done = result.settings.get("rounds_done", 0)
    subtitle = f"{str(result.settings.get('solver', 'run')).split('(')[0]}: {result.status}. {result.settings.get('solver_given', result.settings.get('solver', ''))}, {done:,} round{'s' * (done != 1)}, seed {result.settings.get('seed')}"
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
            element("h1", problem),
            element("p", subtitle, class_="subtitle"),
            *_warnings_of(result),
            element("dl", joined(boxes), class_="numbers"),
        ]
    )


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
    panels = []
    for place, name in enumerate(names):
        shown = drawn(convergence_figure(result, runs, name), f"convergence-{place}", f"{title(name)} by round")
        panels.append(element("div", joined([element("h3", title(name)), shown])))
    if runs is None:
        words = "One run. The objective is estimated in each round at the points the algorithm queries; f(x) is exact."
    elif len(runs.finished) < 2:
        words = "Fewer than two runs finished: no band can be given."
    else:
        words = f"Mean over {len(runs.finished)} seeds with Student's 95% confidence band."
    return joined([paragraph(words), element("div", joined(panels), class_="panels")])


def _line_sections(result: Result, settings: ReportSettings) -> list[Section]:
    try:
        line = report_slice(result, settings)
        body = line_section(line)
        kinks = kinks_table(line.shown.kinks) if line.without_kinks is None else notice(line.without_kinks)
    except SettingError:
        raise
    except HierflError as error:
        body = kinks = notice(f"The slice could not be made: {error}")
    return [Section("line", "Implicit function on a line", body), Section("kinks", "Kinks", kinks)]
