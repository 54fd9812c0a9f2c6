"""The sections of a report that are words and numbers: mathematics, check, lowering, kinks, communication, evidence."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.inspect.report.mathematics_part import mathematics_svg
from hierfl.inspect.report.page import (
    Html,
    element,
    escaped,
    facts,
    joined,
    notice,
    number,
    paragraph,
    preformatted,
    table,
)
from hierfl.language.declaration import Declaration
from hierfl.language.printing.render import problem_latex, problem_text
from hierfl.runs import scalars
from hierfl.version import VERSION

if TYPE_CHECKING:
    from hierfl.compiler.explain import Explanation
    from hierfl.inspect.assumptions.findings import CheckReport
    from hierfl.inspect.kinks.kink import Kinks
    from hierfl.result import Result
    from hierfl.runs import Runs

ROWS = 200
PACKAGES = ("jax", "jaxlib", "cvxpy", "numpy", "scipy", "plotly")
DIRECTIONS = {
    "scalars_down": "scalars from the server to the clients",
    "scalars_up": "scalars from the clients to the server",
    "lower_scalars_down": "for the lower level, down",
    "lower_scalars_up": "for the lower level, up",
}


def mathematics(declaration: Declaration) -> Html:
    """The declaration as it would be set in a paper, and as text."""
    text = problem_text(declaration)
    drawn = mathematics_svg(problem_latex(declaration), text)
    if drawn is None:
        return preformatted(text)
    spelled = element("details", joined([element("summary", "The same as text"), preformatted(text)]))
    return joined([element("div", Html(drawn), class_="formula"), spelled])


def findings(report: CheckReport) -> Html:
    """What ``problem.check()`` found: assumptions, constants, theorems."""
    rows = [
        [element("span", f.status, class_=f.status), f.name, f.assumption, f.reason + _sampled(f.points, f.worst)]
        for f in report.findings
    ]
    parts = [
        paragraph(report.title),
        table(["status", "property", "assumption", "how it is known"], rows, "check-findings"),
    ]
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
    return joined(parts)


def _sampled(points: int | None, worst: float | None) -> str:
    if points is None:
        return ""
    return f" ({points} points" + ("" if worst is None else f", worst value {worst:.6g}") + ")"


def lowering(explanation: Explanation) -> Html:
    """How every piece was compiled, what it costs, and what would make it better."""
    rows = [[piece.piece, piece.how, piece.cost, piece.advice] for piece in explanation]
    return table(["piece", "how", "cost of one use", "better"], rows, "lowering-pieces")


def kinks(found: Kinks) -> Html:
    """The kinks and jumps of the slice, with what could be told apart."""
    rows = [
        [kink.t, kink.value, kink.left_slope, kink.right_slope, kink.bend, kink.cause]
        for kink in sorted(found, key=lambda kink: -kink.sharpness)[:ROWS]
    ]
    parts: list[Html] = []
    if rows:
        header = ["t", "f", "slope before", "slope after", "bends", "cause"]
        parts.append(element("div", table(header, sorted(rows, key=lambda row: row[0]), "kink-rows"), class_="long"))
    else:
        parts.append(paragraph("No kinks in this window."))
    if len(found) > ROWS:
        parts.append(paragraph(f"The {ROWS} sharpest of {len(found):,} kinks."))
    if found.jumps:
        jumps = [[jump.t, jump.left, jump.right, jump.cause] for jump in found.jumps[:ROWS]]
        parts += [element("h3", "Jumps"), table(["t", "f before", "f after", "cause"], jumps, "jump-rows")]
    if found.sampled is not None:
        parts.append(paragraph(f"{found.sampled}."))
    return joined([*parts, paragraph(f"Resolved: {found.resolution}.")])


def communication(result: Result) -> Html:
    """Scalars sent, and what was not counted among them."""
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
    """How the lower level behind the value was solved, how accurately, and the run's own value beside it."""
    known = result.certificate
    rows: list[tuple[str, Any]] = [("f(x), the lower level solved", result.value)]
    if known.method == "no lower level":
        return joined(
            [paragraph("There is no lower level: f(x) is evaluated as declared."), facts(rows, "certificate-facts")]
        )
    own = "the solver keeps no y of its own" if result.own_value is None else result.own_value
    rows += [
        ("the run's own objective, with its own y", own),
        ("method", known.method),
        ("natural residual of the lower level, worst owner", known.lower_residual),
        ("error of y at most", known.error_bound if np.isfinite(known.error_bound) else "unknown"),
        ("proved modulus of strong convexity, smallest", known.strong_convexity or "unknown"),
        ("iterations, most", known.iterations),
        ("largest distance of the raw iterate to a client's X", float(np.max(result.distances, initial=0.0))),
    ]
    return facts(rows, "certificate-facts")


def settings(result: Result, runs: Runs | None, slice_seed: int) -> Html:
    """The solver with all its settings, and the seeds of the run and of this report."""
    rows: list[tuple[str, Any]] = [
        (name.replace("_", " "), escaped(value) if isinstance(value, str) else value)
        for name, value in result.settings.items()
    ]
    rows = [(name, "none" if value is None else value) for name, value in rows]
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


def environment() -> Html:
    """Versions and the machine; those of the report, which a loaded result need not share."""
    import jax

    versions = [(package, _version(package)) for package in PACKAGES]
    rows = [
        ("Python", sys.version.split()[0]),
        ("hierfl", VERSION),
        *versions,
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


def warnings_of(result: Result, own_value_matters: bool) -> list[Html]:
    """What a reader must know before the numbers."""
    found = []
    if result.status == "diverged":
        found.append("This run diverged: what follows describes its last finite state, not a solution.")
    if own_value_matters:
        found.append(
            f"The run's own objective is {number(result.own_value)}, but f(x) with the lower level solved is "
            f"{number(result.value)}: the run's lower solver stopped short."
        )
    away = float(np.max(result.distances, initial=0.0))
    if away > 1e-9:
        found.append(f"The raw iterate is up to {away:.3g} outside X; x and f(x) are those of its projection.")
    if not np.isfinite(result.certificate.error_bound):
        found.append("No bound on the error of y is known: the value of f(x) is as good as the residual below says.")
    return [notice(text) for text in found]
