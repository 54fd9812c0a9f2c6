"""Sampling the implicit function along a line, for a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import TOLERANCE
from hierfl.inspect.argument_checks import require_positive, require_whole
from hierfl.inspect.implicit.points import Points, shown
from hierfl.inspect.implicit.smoothing import radii, smoothed_values
from hierfl.inspect.line import Line
from hierfl.inspect.pictures.drawable import Smoothed
from hierfl.inspect.pictures.slice import Slice
from hierfl.inspect.window import centre_of, direction_of, require_window, run_of
from hierfl.jaxtools.precision import double_precision
from hierfl.result import Result


@double_precision
def slice_of(
    compiled: CompiledProblem,
    center: Any,
    direction: Any = None,
    radius: float = 1.0,
    points: int = 401,
    smoothing: float | Sequence[float] | None = None,
    *,
    samples: int = 256,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    progress: bool = True,
) -> Slice:
    """Sample f along a line; arguments and errors as for ``ImplicitFunction.slice``."""
    require_whole("seed", seed, 0)
    require_positive("tolerance", tolerance)
    run = run_of(compiled, center)
    require_window(radius, points)
    etas = radii(smoothing, samples)
    start = centre_of(compiled, center)
    chosen, along = direction_of(compiled, direction, run, seed, start, float(radius))
    line = Line(start, along, float(radius))
    t = float(radius) * ((np.arange(points) * 2 - (points - 1)) / (points - 1))  # linspace may miss 0 by a rounding
    with shown(points + points * samples * len(etas), "slice", progress) as bar:
        evaluate = Points(compiled, tolerance, bar)
        sampled = evaluate.values(line.at(t))
        inside = np.where(sampled.reason == 1, np.nan, 1.0)
        means = [smoothed_values(evaluate, line.at(t), eta, samples, seed) for eta in etas]
        smoothed = tuple(Smoothed(eta, inside * mean, half) for eta, (mean, half) in zip(etas, means))
    return Slice(compiled, line, chosen, t, sampled, smoothed, _iterates_along(line, run), tolerance, progress)


def _iterates_along(line: Line, run: Result | None) -> np.ndarray:
    """(t, distance from the line, round) of a run's iterates, (k, 3)."""
    if run is None or not len(run.trajectory.get("x", ())):
        return np.zeros((0, 3))
    moved = run.trajectory["x"] - line.centre
    t = moved @ line.direction
    return np.stack([t, np.linalg.norm(moved - t[:, None] * line.direction, axis=1), run.trajectory["round"]], axis=1)
