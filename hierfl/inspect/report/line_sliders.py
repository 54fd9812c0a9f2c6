"""The sliders of a slice's figure: one for the place on the line, one for eta."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from hierfl.inspect.pictures.drawable import Smoothed
    from hierfl.inspect.pictures.slice import Slice

STEPS = 401  # places of the slider


def slider_points(shown: Slice) -> np.ndarray:
    """The points of the slice at which the slider stops, both ends and the middle among them."""
    count = len(shown.t)
    return np.unique(np.linspace(0, count - 1, min(count, STEPS)).round().astype(int))


def place_slider(figure: Figure, shown: Slice) -> dict[str, Any]:
    """Make the slider that moves the marker, the last two traces of the figure, along the line."""
    ring = len(figure.data) - 1
    stops = slider_points(shown)
    steps = [
        {"method": "restyle", "label": f"{shown.t[k]:.3g}",
         "args": [{"x": [[float(shown.t[k])] * 2, [float(shown.t[k])]], "y": [list(extent(shown)), [finite(shown.value[k])]]},
                  [ring - 1, ring]]}
        for k in stops
    ]  # fmt: skip
    return _slider("place", "place on the line: t = ", steps, int(np.searchsorted(stops, len(shown.t) // 2)), 56)


def smoothing_slider(figure: Figure, smoothed: Sequence[Smoothed]) -> list[dict[str, Any]]:
    """Make the slider with one stop without f^eta, and one for each eta; none without smoothings."""
    if not smoothed:
        return []
    traces = [place for place, trace in enumerate(figure.data) if trace.meta in ("band", "smoothed")]
    labels = ["not shown", *(f"{smooth.eta:g}" for smooth in smoothed)]
    steps = [
        {"method": "restyle", "label": label,
         "args": [{"visible": [1 + place // 2 == number for place in range(len(traces))]}, traces]}
        for number, label in enumerate(labels)
    ]  # fmt: skip
    return [_slider("smoothing", "smoothing: η = ", steps, 1, 148)]


def _slider(name: str, prefix: str, steps: list[dict[str, Any]], active: int, below: int) -> dict[str, Any]:
    many = len(steps) > 12
    return {
        "name": name,
        "steps": steps,
        "active": active,
        "currentvalue": {"prefix": prefix, "xanchor": "left", "font": {"size": 13, "color": "#24292f"}},
        "pad": {"t": below, "b": 0, "l": 10, "r": 10},
        "len": 1.0,
        "x": 0,
        "minorticklen": 0 if many else 4,
        "ticklen": 0 if many else 4,
        "font": {"size": 11, "color": "rgba(0,0,0,0)" if many else "#24292f"},
        "bgcolor": "#d8dee4",
        "bordercolor": "#8c959f",
        "transition": {"duration": 0},
    }


def extent(shown: Slice) -> tuple[float | None, float | None]:
    """The least and the largest value of f on the slice; None where f has no value at all."""
    finite = shown.value[np.isfinite(shown.value)]
    return (float(finite.min()), float(finite.max())) if finite.size else (None, None)


def finite(value: float) -> float | None:
    """A number that JSON knows: None for one that is not finite."""
    return float(value) if np.isfinite(value) else None
