"""The arguments of ``Result.report``, handed from module to module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.inspect.implicit.points import Points
from hierfl.inspect.kinks.kink import Kinks, Resolution
from hierfl.inspect.kinks.kink_search import effort
from hierfl.inspect.pictures.slice import Slice
from hierfl.inspect.report.line_figure import CLIENTS, extent, line_figure, line_sliders, notes_along, terms_figure
from hierfl.inspect.report.page import Html, drawn, element, joined, notice, paragraph, table
from hierfl.jaxtools.precision import double_precision

if TYPE_CHECKING:
    from hierfl.inspect.kinks.kink import Kinks
    from hierfl.result import Result


class ReportSettings(NamedTuple):
    """The arguments of ``Result.report``."""

    radius: float | None
    smoothing: float | Sequence[float] | None
    points: int
    samples: int
    seed: int
    check: bool
    progress: bool
    time_budget: float


ASIDE = 1e-3  # of a step
FEW = 64  # points that are timed: a whole piece of those that are evaluated together
SLOPES_FOR_KINKS = 4  # evaluations of a slope for each point of a slice, about, in a search for kinks


@dataclass(frozen=True)
class TimeBudget:
    """Estimates for a slice that has been sampled; ``seconds`` is what a part may take."""

    shown: Slice
    seconds: float

    def smoothing(self, etas: int, samples: int) -> float:
        """Seconds of f^eta for so many etas."""
        return etas * samples * len(self.shown.t) * self._value

    def slopes(self) -> float:
        """Seconds of exact slopes at the slice's points; 0 where there are none."""
        return len(self.shown.t) * self._slope

    def kinks(self) -> float:
        """Seconds of a search for kinks."""
        return effort(self.shown.t, self.shown.sampled) * self._value + SLOPES_FOR_KINKS * self.slopes()

    @cached_property
    def _value(self) -> float:
        return self._timed(self._points.values, 2 / 3)

    @cached_property
    def _slope(self) -> float:
        return self._timed(self._points.gradients, 0) if self._points.differentiable else 0.0

    @cached_property
    def _points(self) -> Points:
        return Points(self.shown.compiled, self.shown.tolerance)

    @double_precision
    def _timed(self, function: Callable[[np.ndarray], Any], after: float) -> float:
        """Seconds for one point, of a few in the middle that are evaluated together; what they compile is not counted.

        They are a share ``after`` of a step behind the slice's own points, a little aside, and compiled for at others: lower levels that
        are solved on the host remember what they were asked, and answer it again in no time; along the line all may be one question.
        """
        t = self.shown.t
        count = min(FEW, len(t) - 1)
        few, step = t[(len(t) - count) // 2 :][:count], t[1] - t[0]
        places = self.shown.line.at(few + step / 3)
        aside = ASIDE * step * after * np.cos(np.arange(1, places.shape[-1] + 1) ** 2)
        function(places + 0.5 * aside)
        began = perf_counter()
        function(self.shown.line.at(few + after * step) + aside)
        return (perf_counter() - began) / count


TIES = 5  # written out
LEAST_DRAWS = 16  # for f^eta to be worth looking at
SHARES = (0.1, 0.3)  # of the radius: smoothings that can be seen, beside the run's own
_LABELS = {"t": "t", "f": "f", "slope": "slope along the line", "x": "x", "y": "y(x)", "active": "active constraints"}


@dataclass(frozen=True, eq=False, repr=False)
class SliceWithoutKinks(Slice):
    """A slice whose kinks nobody looked for, since that would take too long."""

    @property
    def kinks(self) -> Kinks:
        nothing = Resolution(np.inf, np.inf, np.inf, np.inf, ())
        return Kinks((), (), None, nothing)


class ReportedLine(NamedTuple):
    """The slice, whether its slopes are exact, and what was left out: of the figure, and of the table of kinks."""

    shown: Slice
    exact_slopes: bool
    notes: tuple[str, ...]
    without_kinks: str | None


def report_slice(result: Result, settings: ReportSettings) -> ReportedLine:
    """Make the slice through x, leave out what would take too long, and say so."""
    radius = settings.radius if settings.radius is not None else _radius(result)
    implicit = result.require_problem("a report").implicit
    asked: dict[str, Any] = {"radius": radius, "points": settings.points, "samples": settings.samples}
    asked |= {"seed": settings.seed, "progress": settings.progress}
    shown = implicit.slice(result, smoothing=settings.smoothing, **asked)
    if not (shown.sampled.reason == 0).any():
        return ReportedLine(shown, False, (), None)
    budget, notes = TimeBudget(shown, settings.time_budget), []
    if settings.smoothing is None:
        etas = _smoothing(result, radius)
        seconds = budget.smoothing(len(etas), settings.samples)
        if seconds <= settings.time_budget:
            shown = implicit.slice(result, smoothing=etas, **asked)
        else:
            notes.append(_smoothing_note(budget, etas, settings, seconds))
    exact = budget.slopes() <= settings.time_budget
    if not exact:
        notes.append(f"Slopes are by differences: exact ones would take about {said_seconds(budget.slopes())}.")
    seconds = budget.kinks()
    if seconds <= settings.time_budget:
        return ReportedLine(shown, exact, tuple(notes), None)
    without = SliceWithoutKinks(**{part.name: getattr(shown, part.name) for part in fields(shown)})
    why = (
        f"Kinks were not looked for: that would take about {said_seconds(seconds)}. Write time_budget={_rounded_up(seconds)} for a report "
        f"that has them, or points=101 for a coarser line."
    )
    return ReportedLine(without, exact, tuple(notes), why)


def _smoothing_note(budget: TimeBudget, etas: tuple[float, ...], settings: ReportSettings, seconds: float) -> str:
    """Say what f^eta would take, and what to write for as much of it as there is time for, or for all."""
    per_draw = budget.smoothing(1, 1)
    samples = int(settings.time_budget / per_draw) // 2 * 2
    fits = (
        f"smoothing={etas[0]:g}, samples={min(samples, settings.samples)} takes about "
        f"{said_seconds(per_draw * min(samples, settings.samples))}"
        if samples >= LEAST_DRAWS
        else f"smoothing={etas[0]:g}, samples={LEAST_DRAWS}, points=51 takes about "
        f"{said_seconds(per_draw * LEAST_DRAWS * 51 / settings.points)}"
    )
    return (
        f"f^η is left out: for η = {', '.join(f'{eta:g}' for eta in etas)} it would take about {said_seconds(seconds)}. {fits}; "
        f"time_budget={_rounded_up(seconds)} gives all of it."
    )


def said_seconds(seconds: float) -> str:
    """A time to be read: ``0.4 s``, ``35 s``, ``12 minutes``."""
    return (
        f"{seconds:.2g} s"
        if seconds < 100
        else f"{seconds / 60:.2g} minutes"
        if seconds < 6000
        else f"{seconds / 3600:,.3g} hours"
    )


def _rounded_up(seconds: float) -> int:
    return int(np.ceil(1.5 * seconds / 10) * 10)


def _radius(result: Result) -> float:
    """The radius of a window that holds all iterates; 1 without any."""
    path = result.trajectory.get("x", np.zeros((0, 1)))
    if not len(path):
        return 1.0
    layout = result.require_problem("a report").compile().upper
    reach = float(np.max(np.linalg.norm(path - layout.flatten(result.x, "x"), axis=1)))
    return float(f"{1.1 * reach:.2g}") if 0 < reach < np.inf else 1.0


def _smoothing(result: Result, radius: float) -> tuple[float, ...]:
    """The run's own eta and two that can be seen in the window."""
    own = result.settings.get("smoothing")
    return tuple(sorted({float(f"{share * radius:.1g}") for share in SHARES} | ({float(own)} if own else set())))


def line_section(line: ReportedLine) -> Html:
    """Lay out the figures of the slice with what is said about it."""
    shown = line.shown
    said = notes_along(shown, line.exact_slopes)
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
            *map(notice, line.notes),
            *(paragraph(f"No value for {gap}.") for gap in shown.gaps),
            *(notice(f"For {tie}.") for tie in shown.ties[:TIES]),
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
    if isinstance(shown, SliceWithoutKinks):
        return f"f along a line through x, t from {shown.t[0]:.4g} to {shown.t[-1]:.4g}: {span}"
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


ROWS = 200


def kinks_table(kinks: Kinks) -> Html:
    """Show the kinks and jumps of the slice, with what could be told apart."""
    rows = [
        [kink.t, kink.value, kink.left_slope, kink.right_slope, kink.bend, kink.cause]
        for kink in sorted(kinks, key=lambda kink: -kink.sharpness)[:ROWS]
    ]
    parts: list[Html] = []
    if rows:
        header = ["t", "f", "slope before", "slope after", "bends", "cause"]
        parts.append(element("div", table(header, sorted(rows, key=lambda row: row[0]), "kink-rows"), class_="long"))
    else:
        parts.append(paragraph("No kinks in this window."))
    if len(kinks) > ROWS:
        parts.append(paragraph(f"The {ROWS} sharpest of {len(kinks):,} kinks."))
    if kinks.jumps:
        jumps = [[jump.t, jump.left, jump.right, jump.cause] for jump in kinks.jumps[:ROWS]]
        parts += [element("h3", "Jumps"), table(["t", "f before", "f after", "cause"], jumps, "jump-rows")]
    if kinks.sampled is not None:
        parts.append(paragraph(f"{kinks.sampled}."))
    return joined([*parts, paragraph(f"Resolved: {kinks.resolution}.")])
