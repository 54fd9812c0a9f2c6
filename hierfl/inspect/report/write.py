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
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.explain import explain
from hierfl.errors import HierflError, SettingError
from hierfl.house_style import COLOURS
from hierfl.inspect.argument_checks import require_tolerance, writable
from hierfl.inspect.assumptions.check import check
from hierfl.inspect.pictures.convergence import smoothed
from hierfl.inspect.report import page as html
from hierfl.inspect.report.slice_part import ReportSettings, kinks_table, line_section, report_slice
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
COLUMNS = {"objective": "objective, the run's own estimates", "gradient_norm": "norm of the gradient's estimate"}
COLUMNS["lower_residual"] = "residual of the lower level in the run"
WIDE_RANGE = 1e3  # of positive numbers: above, the axis is logarithmic


def quantities(result: Result) -> list[str]:
    """List the columns of the history that hold anything (a residual that is always 0 does not), and the metrics."""
    held = {name: np.asarray(result.history.get(name, np.zeros(0))) for name in COLUMNS}
    columns = [name for name, values in held.items() if np.isfinite(values).any() and (name != "lower_residual" or values.any())]
    return columns + [name for name in result.metrics if name != "round" and len(result.metrics[name])]


def convergence_figure(result: Result, runs: Runs | None, name: str) -> Figure:
    """Draw a quantity of a run by round; of several runs its mean over the seeds with a 95% band; with the moving mean that smooths estimates."""
    figure, metric = html.plotly().graph_objects.Figure(), name in result.metrics
    group = runs if runs is not None and runs.over == "seeds" and len(runs.finished) > 1 else None
    seeds = 1 if group is None else len(group.finished)
    alone = np.asarray(result.metrics[name] if metric else result.history[name], float)
    values = alone[None] if group is None else group.values(name)
    made = result.metrics["round"] if metric else np.arange(1, 1 + values.shape[1])
    made = made if group is None else group.rounds(name)
    values, window = (values, 1) if metric else smoothed(values)
    if window > 1 and group is None:
        every, pale = _thinned(len(alone)), {"color": html.faint(COLOURS[0]), "width": 1}
        figure.add_scatter(x=1 + every, y=alone[every], name="each round", mode="lines", line=pale)
    mean, every = values.mean(axis=0), _thinned(values.shape[1])
    if group is not None:
        half = half_width(values)
        html.add_band(figure, made[every], (mean - half)[every], (mean + half)[every], COLOURS[0], name="95% band", hoverinfo="skip")
    over = [f"mean of {seeds} seeds"] * (seeds > 1) + [f"mean of {window} rounds"] * (window > 1)
    mode = "lines+markers" if len(every) < 30 else "lines"
    blue = {"color": COLOURS[0], "width": 2}
    figure.add_scatter(x=made[every], y=mean[every], name=", ".join(over) or "each round", mode=mode, line=blue)
    if name == "objective" and np.isfinite(result.value):
        ends = [0, int(made[-1]) if len(made) else 1]
        label = f"f at the end{' of the best run' if seeds > 1 else ''}: {result.value:.6g}"
        dashed = {"color": COLOURS[1], "dash": "dash"}
        figure.add_scatter(x=ends, y=[result.value] * 2, name=label, mode="lines", line=dashed)
    finite = mean[np.isfinite(mean)]
    wide = bool(finite.size and finite.min() > 0 and finite.max() > WIDE_RANGE * finite.min())
    figure.update_xaxes(title_text="round", title_standoff=8)
    figure.update_yaxes(type="log" if wide else "linear", exponentformat="power")
    return html.styled(figure, height=360, showlegend=True)


def _thinned(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, max(0, count - 1), min(count, SHOWN)).round().astype(int))


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
    svg = drawn[drawn.index("<svg") :].replace("<svg", f'<svg class="mathematics" role="img" aria-label="{escape(spoken)}" fill="currentColor"', 1)
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


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


def _mathematics(declaration: Declaration) -> html.Html:
    """Show the declaration as it would be set in a paper, and as text."""
    text = problem_text(declaration)
    drawn = mathematics_svg(problem_latex(declaration), text)
    if drawn is None:
        return html.preformatted(text)
    spelled = html.folded("The same as text", html.preformatted(text), printed=False)
    return html.joined([html.element("div", html.Html(drawn), class_="formula"), spelled])


def findings(report: CheckReport) -> html.Html:
    """Show what ``problem.check()`` found: assumptions, constants, theorems."""
    rows = []
    for f in report.findings:
        how = f.reason + (f" ({f.advice})" if f.advice else "")
        if f.points is not None:
            how += f" ({f.points} points" + ("" if f.worst is None else f", worst value {f.worst:.6g}") + ")"
        rows.append([html.element("span", f.status, class_=f.status.replace(" ", "-")), f.name, f.assumption, how])
    parts = [html.table(["status", "property", "assumption", "how it is known"], rows, "check-findings")]
    if report.constants:
        bounds = ((c, f"{c.side} {html.number(c.value)}" if np.isfinite(c.value) else "unknown") for c in report.constants.values())
        rows = [[c.name, bound, c.attained_by, c.reason] for c, bound in bounds]
        parts.append(html.element("h3", "Constants, on the declared sets"))
        parts.append(html.table(["constant", "bound", "attained by", "how it is known"], rows, "check-constants"))
    for theorem in report.theorems:
        parts += [html.element("h3", theorem.name), html.preformatted(theorem, wrapped=True)]
    said = [html.paragraph(report.title), html.facts(((heading, html.joined(map(html.paragraph, lines))) for heading, lines in report.page.items()), "check-page")]
    everything = f"All {len(report.findings)} findings, the constants and the theorems"
    return html.joined([*said, html.folded(everything, html.joined(parts))])


def _lowering(explanation: Explanation) -> html.Html:
    rows = [[piece.piece, piece.how, piece.cost, piece.advice] for piece in explanation]
    advice = sum(1 for piece in explanation if piece.advice)
    said = f"{len(rows)} pieces" + (f", {advice} of them with advice on what would be better" if advice else "")
    whole = html.table(["piece", "how", "cost of one use", "better"], rows, "lowering-pieces")
    return html.folded(f"How each of {said} was compiled", whole)


PACKAGES = ("jax", "jaxlib", "cvxpy", "numpy", "scipy", "plotly")


def _environment() -> html.Html:
    """Show versions and the machine; those of the report, which a loaded result need not share."""
    import jax

    rows = [("Python", sys.version.split()[0]), ("hierfl", VERSION)]
    rows += [(package, importlib.metadata.version(package)) for package in PACKAGES]
    rows += [("platform", platform.platform()), ("JAX's backend", jax.default_backend()), ("precision", "double (64 bits)")]
    whose = html.paragraph("Of the process that wrote this report; a result loaded from a file may come from another.")
    return html.joined([whose, html.facts(rows, "environment-facts")])


def communication(result: Result) -> html.Html:
    """Show the scalars sent, and what was not counted among them."""
    counts = [("scalars in total", scalars(result)), *((name.replace("_", " "), count) for name, count in result.communication.items() if count)]
    words = "Down is from the server, or an edge, to the clients, up is back; lower is for the lower level, cloud between edges and the cloud."
    told = html.paragraph(f"{words} What is sent to monitor the run is counted apart.")
    return html.joined([told, html.facts(counts, "communication-counts")])


def certificate(result: Result) -> html.Html:
    """Show how the lower level behind the value was solved, how accurately, and the run's own value beside it."""
    card = result.certificate._card()
    own = [] if result.own_value is None else [("the run's own objective, with its own y", result.own_value)]
    rows = [("f(x), the lower level solved", result.value), *own, *card.rows]
    return html.joined([html.paragraph(f"{card.title}."), html.facts(rows, "certificate-facts")])


def _settings(result: Result, runs: Runs | None, slice_seed: int) -> html.Html:
    rows: list[tuple[str, Any]] = [(name.replace("_", " "), "none" if value is None else value) for name, value in result.settings.items()]
    if runs is not None:
        rows.append(("all seeds", ", ".join(map(str, runs.seeds))))
    rows.append(("seed of this report (direction, draws, sampled checks)", slice_seed))
    parts = [html.facts(rows, "settings-facts")]
    if runs is not None:
        own = ["" if r.own_value is None else r.own_value for r in runs]
        cells = [[r.settings["seed"], r.status, r.settings["rounds_done"], r.value, y, scalars(r)] for r, y in zip(runs, own)]
        header = ["seed", "status", "rounds", "f(x)", "own value", "scalars"]
        parts += [html.element("h3", f"Every {runs.over.removesuffix('s')}"), html.element("div", html.table(header, cells, "seeds-rows"), class_="long")]
    return html.joined(parts)


def _warnings_of(result: Result) -> list[html.Html]:
    """Say what a reader must know before the numbers."""
    warnings = []
    if result.status == "diverged":
        warnings.append("This run diverged: what follows describes its last finite state, not a solution.")
    if not result.violation.feasible:
        warnings.append(f"x is not feasible: {'; '.join(map(str, result.violation.violated))}.")
    own = result.own_value
    if own is not None and abs(own - result.value) > OWN_VALUE_TOLERANCE * (1 + abs(result.value)):
        solved = f"f(x) with the lower level solved is {html.number(result.value)}"
        warnings.append(f"The run's own objective is {html.number(own)}, but {solved}: the run's lower solver stopped short.")
    if not np.isfinite(result.certificate.error_bound):
        warnings.append("No bound on the error of y is known: the value of f(x) is as good as the residual below says.")
    return [html.notice(text) for text in warnings]


def write_report(result: Result, runs: Runs | None, path: str | Path, settings: ReportSettings) -> Path:
    """Write the file; arguments and errors as for ``Result.report``."""
    target = writable(path, settings.overwrite)
    html.plotly()
    compiled = result.require_problem("a report").compile(progress=settings.progress)
    require_tolerance("time_budget", settings.time_budget)
    sections = [
        html.Section("mathematics", "Declared mathematics", _mathematics(compiled.declaration)),
        *_line_sections(result, settings),
        html.Section("convergence", "Convergence", _convergence(result, runs)),
        html.Section("check", "Check of the assumptions", _check(compiled, settings)),
        html.Section("lowering", "Lowering", _lowering(explain(compiled, how_clients_run(compiled)))),
        html.Section("communication", "Communication", communication(result)),
        html.Section("certificate", "Certificate", certificate(result)),
        html.Section("settings", "Settings and seeds", _settings(result, runs, settings.seed)),
        html.Section("environment", "Environment", _environment()),
    ]
    declared = compiled.declaration
    over = shorten(", ".join(v.name() for v in declared.upper_variables), 40, placeholder=" ...")
    objective = shorten(" + ".join(map(expression_text, declared.objective.terms)), 80, placeholder=" ...")
    title = f"{declared.objective.sense} {objective} over {over}"
    target.write_text(html.page(title, _summary(title, result, runs), sections), encoding="utf-8")
    return target


def _summary(problem: str, result: Result, runs: Runs | None) -> html.Html:
    ended, *said = str(result).splitlines()
    subtitle = ended if runs is None else f"The best of {len(runs)} {runs.over}. {ended}"
    numbers: list[tuple[str, Any]] = [("f(x), lower level solved", html.number(result.value))]
    if result.own_value is not None:
        numbers.append(("the run's own objective", html.number(result.own_value)))
    if runs is not None and runs.over == "seeds":
        numbers.append(("mean over the seeds, 95%", summary(runs)))
    if result.certificate.method != "no lower level":
        bound = result.certificate.error_bound
        numbers.append(("error of y at most", f"{bound:.1e}" if np.isfinite(bound) else "unknown"))
    numbers += [("rounds", html.number(result.settings.get("rounds_done", 0))), ("scalars sent", html.number(scalars(result)))]
    boxes = (html.element("div", html.joined([html.element("dt", name), html.element("dd", value)])) for name, value in numbers)
    head = [html.element("h1", problem), html.element("p", subtitle, class_="subtitle"), *_warnings_of(result)]
    words = html.element("p", html.joined(said), class_="words")
    return html.joined([*head, html.element("dl", html.joined(boxes), class_="numbers"), words])


# --- sections that need a computation ---------------------------------------------------------------------------------


def _check(compiled: CompiledProblem, settings: ReportSettings) -> html.Html:
    if not settings.check:
        return html.paragraph("Not run: the report was written with check=False.")
    try:
        return findings(check(compiled, seed=settings.seed, progress=settings.progress))
    except HierflError as error:
        return html.notice(f"The check could not be made: {error}")


def _convergence(result: Result, runs: Runs | None) -> html.Html:
    names = quantities(result)
    if not names:
        return html.paragraph("The run made no round.")
    panels = []
    for place, name in enumerate(names):
        title = COLUMNS.get(name, name)
        shown = html.drawn(convergence_figure(result, runs, name), f"convergence-{place}", f"{title} by round")
        panels.append(html.element("div", html.joined([html.element("h3", title), shown])))
    if runs is None:
        words = "One run. The objective is estimated in each round at the points the algorithm queries; f(x) is exact."
    elif runs.over == "starts":
        words = f"The best of {len(runs)} starts. The objective is estimated in each round at the points the algorithm queries; f(x) is exact."
    elif len(runs.finished) < 2:
        words = "Fewer than two runs finished: no band can be given."
    else:
        words = f"Mean over {len(runs.finished)} seeds with Student's 95% confidence band."
    return html.joined([html.paragraph(words), html.element("div", html.joined(panels), class_="panels")])


def _line_sections(result: Result, settings: ReportSettings) -> list[html.Section]:
    try:
        shown, exact, notes = report_slice(result, settings)
        body, kinks = line_section(shown, exact, notes), kinks_table(shown.kinks)
    except SettingError:
        raise
    except HierflError as error:
        body = kinks = html.notice(f"The slice could not be made: {error}")
    return [html.Section("line", "Implicit function on a line", body), html.Section("kinks", "Kinks", kinks)]
