"""The section on the implicit function along a line: which line and which smoothings by default, figures, words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierfl.inspect.implicit.points import Points, owners
from hierfl.inspect.pictures.slice import Slice
from hierfl.inspect.report.line_figure import line_figure
from hierfl.inspect.report.line_sliders import extent, line_sliders
from hierfl.inspect.report.page import Html, drawn, element, joined, notice, paragraph
from hierfl.inspect.report.point_notes import notes_along
from hierfl.inspect.report.report_settings import ReportSettings
from hierfl.inspect.report.terms_figure import CLIENTS, terms_figure

if TYPE_CHECKING:
    from hierfl.result import Result

COSTLY = 1e9  # scalars of data and responses that f^eta may touch unless it is asked for
SHARES = (0.1, 0.3)  # of the radius: smoothings that can be seen, beside the run's own
_LABELS = {"t": "t", "f": "f", "slope": "slope along the line", "x": "x", "y": "y(x)", "active": "active constraints"}


def report_slice(result: Result, settings: ReportSettings) -> tuple[Slice, str]:
    """Make the slice through x, and say what must be said about f^eta."""
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
    """The radius of a window that holds all iterates; 1 without any."""
    path = result.trajectory.get("x", np.zeros((0, 1)))
    if not len(path):
        return 1.0
    layout = result.require_problem("a report").compile().upper
    reach = float(np.max(np.linalg.norm(path - layout.flatten(result.x, "x"), axis=1)))
    return float(f"{1.1 * reach:.2g}") if 0 < reach < np.inf else 1.0


def _smoothing(result: Result, radius: float, settings: ReportSettings) -> tuple[tuple[float, ...], str]:
    """Choose the run's own eta and two that can be seen in the window; none where they would cost too much, with a note."""
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


def line_section(shown: Slice, note: str) -> Html:
    """Lay out the figures of the slice with what is said about it."""
    said = notes_along(shown)
    middle = said[len(shown.t) // 2]
    listed = (
        joined([element("dt", label), element("dd", getattr(middle, key), id=f"place-{key}")])
        for key, label in _LABELS.items()
    )
    names = ", ".join(variable.name() for variable in shown.compiled.upper.variables)
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
            element("div", drawn(line_figure(shown, said), "line-figure", _spoken(shown)), class_="figure"),
            line_sliders(shown, said),
            element("dl", joined(listed), class_="place", id="place"),
            element("h3", "Terms along the line"),
            paragraph(f"Each party's own term, unweighted{many}. A click on a name hides or shows it."),
            element(
                "div",
                drawn(terms_figure(shown), "terms-figure", "Each party's own term along the line"),
                class_="figure",
            ),
        ]
    )


def _spoken(shown: Slice) -> str:
    """What the figure shows, to those who do not see it."""
    low, high = extent(shown)
    span = "without a value" if low is None else f"between {low:.4g} and {high:.4g}"
    count, jumps = len(shown.kinks), len(shown.kinks.jumps)
    bends = f"{count} kink{'' if count == 1 else 's'}" + (f", {jumps} jump{'' if jumps == 1 else 's'}" if jumps else "")
    return f"f along a line through x, t from {shown.t[0]:.4g} to {shown.t[-1]:.4g}: {span}, {bends}"


def _accuracy(shown: Slice) -> str:
    """Say what the worst residual and error bound over the window are."""
    good = shown.sampled.reason == 0
    if shown.compiled.declaration.lower_level is None:
        return "there is no lower level."
    if not good.any():
        return "f has a value at none of them."
    bound = np.max(shown.error_bound[good])
    words = f"at most {bound:.1e}" if np.isfinite(bound) else "unknown"
    return f"its residual is at most {np.max(shown.residual[good]):.1e}, the error of y {words}."
