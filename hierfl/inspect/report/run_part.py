"""The sections of a report on the run: warnings, communication, the certificate behind its value, settings and seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.inspect.report.page import Html, element, escaped, facts, joined, notice, number, paragraph, table
from hierfl.runs import scalars

if TYPE_CHECKING:
    from hierfl.result import Result
    from hierfl.runs import Runs

DIRECTIONS = {
    "scalars_down": "scalars from the server to the clients",
    "scalars_up": "scalars from the clients to the server",
    "lower_scalars_down": "for the lower level, down",
    "lower_scalars_up": "for the lower level, up",
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
        return joined(
            [paragraph("There is no lower level: f(x) is evaluated as declared."), facts(rows, "certificate-facts")]
        )
    own = "the solver keeps no y of its own" if result.own_value is None else result.own_value
    rows += [
        ("the run's own objective, with its own y", own),
        ("method", known.method),
        (
            "natural residual of the lower level, worst owner",
            f"{number(known.lower_residual)}{known.worst and f', {known.worst}'}",
        ),
        (
            "natural residual of the run's own y, worst client",
            f"{number(known.own_residual)}{known.own_worst and f', {known.own_worst}'}",
        ),
        ("error of y at most", known.error_bound if np.isfinite(known.error_bound) else "unknown"),
        ("proved modulus of strong convexity, smallest", known.strong_convexity or "unknown"),
        ("iterations, most", known.iterations),
        ("largest distance of the raw iterate to a client's X", float(np.max(result.distances, initial=0.0))),
    ]
    return facts(rows, "certificate-facts")


def settings(result: Result, runs: Runs | None, slice_seed: int) -> Html:
    """Show the solver with all its settings, and the seeds of the run and of this report."""
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


def warnings_of(result: Result, own_value_matters: bool) -> list[Html]:
    """Say what a reader must know before the numbers."""
    warnings = []
    if result.status == "diverged":
        warnings.append("This run diverged: what follows describes its last finite state, not a solution.")
    if own_value_matters:
        warnings.append(
            f"The run's own objective is {number(result.own_value)}, but f(x) with the lower level solved is "
            f"{number(result.value)}: the run's lower solver stopped short."
        )
    away = float(np.max(result.distances, initial=0.0))
    if away > 1e-9:
        warnings.append(f"The raw iterate is up to {away:.3g} outside X; x and f(x) are those of its projection.")
    if not np.isfinite(result.certificate.error_bound):
        warnings.append("No bound on the error of y is known: the value of f(x) is as good as the residual below says.")
    return [notice(text) for text in warnings]
