"""The section of a report on the kinks and jumps of the slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierfl.inspect.report.page import Html, element, joined, paragraph, table

if TYPE_CHECKING:
    from hierfl.inspect.kinks.kink import Kinks

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
