"""The sliders of a slice's figure, one for the place on the line and one for eta, and what the page's script needs to move them.

They are the browser's own: arrows, Home and End move them, and screen readers say where they stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.inspect.report.page import Html, data, element, joined, void

if TYPE_CHECKING:
    from hierfl.inspect.pictures.slice import Slice
    from hierfl.inspect.report.point_notes import PointNotes

STEPS = 401  # places of the slider


def slider_points(shown: Slice) -> np.ndarray:
    """The points of the slice at which the slider stops, both ends and the middle among them."""
    count = len(shown.t)
    return np.unique(np.linspace(0, count - 1, min(count, STEPS)).round().astype(int))


def line_sliders(shown: Slice, said: list[PointNotes]) -> Html:
    """Make the sliders, with what is said at each stop: the place begins in the middle, eta at the first f^eta."""
    stops = slider_points(shown)
    middle = int(np.searchsorted(stops, len(shown.t) // 2))
    low, high = extent(shown)
    moved = {
        "t": [float(shown.t[k]) for k in stops],
        "f": [finite(shown.value[k]) for k in stops],
        "extent": [low, high],
    }
    etas = [f"{smooth.eta:g}" for smooth in shown.smoothed]
    return joined(
        [
            _slider("place", "place on the line: t = ", said[stops[middle]].t, len(stops) - 1, middle),
            *([_slider("smoothing", "smoothing: η = ", etas[0], len(etas), 1)] if etas else []),
            data([said[k]._asdict() for k in stops], "line-places"),
            data(moved, "line-stops"),
            data(["not shown", *etas], "line-smoothings"),
        ]
    )


def _slider(name: str, label: str, shown: str, last: int, start: int) -> Html:
    stops: dict[str, Any] = {"min": "0", "max": str(last), "step": "1", "value": str(start)}
    words = joined([element("label", label, for_=f"{name}-slider"), element("output", shown, id=f"{name}-at")], "")
    bar = void("input", type="range", id=f"{name}-slider", autocomplete="off", **stops)
    return element("div", joined([element("div", words), bar]), class_="slider")


def extent(shown: Slice) -> tuple[float | None, float | None]:
    """The least and the largest value of f on the slice; None where f has no value at all."""
    finite = shown.value[np.isfinite(shown.value)]
    return (float(finite.min()), float(finite.max())) if finite.size else (None, None)


def finite(value: float) -> float | None:
    """A number that JSON knows: None for one that is not finite."""
    return float(value) if np.isfinite(value) else None
