"""The sections of a report on the problem: its mathematics, the check of its assumptions, how it was lowered; and on the machine."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import TYPE_CHECKING

import numpy as np

from hierfl.inspect.report.mathematics_part import mathematics_svg
from hierfl.inspect.report.page import Html, element, facts, folded, joined, number, paragraph, preformatted, table
from hierfl.language.declaration import Declaration
from hierfl.language.printing.render import problem_latex, problem_text
from hierfl.version import VERSION

if TYPE_CHECKING:
    from hierfl.compiler.explain import Explanation
    from hierfl.inspect.assumptions.findings import CheckReport


def mathematics(declaration: Declaration) -> Html:
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
            f.reason + _sampled(f.points, f.worst),
        ]
        for f in report.findings
    ]
    parts = [
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
    said = [paragraph(report.title), *map(paragraph, report.summary)]
    return joined(
        [*said, folded(f"All {len(report.findings)} findings, the constants and the theorems", joined(parts))]
    )


def _sampled(points: int | None, worst: float | None) -> str:
    if points is None:
        return ""
    return f" ({points} points" + ("" if worst is None else f", worst value {worst:.6g}") + ")"


def lowering(explanation: Explanation) -> Html:
    """Show how every piece was compiled, what it costs, and what would make it better."""
    rows = [[piece.piece, piece.how, piece.cost, piece.advice] for piece in explanation]
    advice = sum(1 for piece in explanation if piece.advice)
    said = f"{len(rows)} pieces" + (f", {advice} of them with advice on what would be better" if advice else "")
    whole = table(["piece", "how", "cost of one use", "better"], rows, "lowering-pieces")
    return folded(f"How each of {said} was compiled", whole)


PACKAGES = ("jax", "jaxlib", "cvxpy", "numpy", "scipy", "plotly")


def environment() -> Html:
    """Show versions and the machine; those of the report, which a loaded result need not share."""
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
