"""Places on a line where f may have a kink, from its values alone: where f has no implicit gradients."""

from __future__ import annotations

import numpy as np

from hierfl.inspect.implicit.points import Points, Sampled
from hierfl.inspect.kinks.kink_places import KinkPlace
from hierfl.inspect.kinks.one_sided import ROUGH_DISTANCES
from hierfl.inspect.kinks.slope_leaps import NEIGHBOURS, OUTLIER
from hierfl.inspect.line import Line


def outliers(points: Points, line: Line, t: np.ndarray, sampled: Sampled, coarse: bool) -> list[KinkPlace]:
    """Narrow down the cells whose second difference of values sticks out.

    Parameters
    ----------
    points, line
        What is looked at.
    t, sampled
        Places on the line (k,), and f there.
    coarse
        Whether values are only as good as a conic solver's.
    """
    value = np.where(sampled.reason == 0, sampled.value, np.nan)
    bend = np.abs(value[:-2] - 2 * value[1:-1] + value[2:])
    floor = 1e-9 * (1.0 + np.nanmax(np.abs(value), initial=0.0))
    spans = []
    for i in np.flatnonzero(np.isfinite(bend)):
        near = np.concatenate([bend[max(0, i - NEIGHBOURS) : max(0, i - 1)], bend[i + 2 : i + 2 + NEIGHBOURS]])
        usual = np.nanmedian(near) if np.isfinite(near).any() else 0.0
        if bend[i] > OUTLIER * usual + floor:
            spans.append((t[i], t[i + 2]))
    least = (ROUGH_DISTANCES[0] if coarse else 1e-7) * line.radius
    while spans and max(b - a for a, b in spans) > least:
        fine = np.array([np.linspace(a, b, 5) for a, b in spans])
        inside = points.values(line.at(fine.ravel())).value.reshape(fine.shape)
        second = np.abs(inside[:, :-2] - 2 * inside[:, 1:-1] + inside[:, 2:])
        chosen = np.argmax(np.where(np.isfinite(second), second, -1.0), axis=1)
        spans = [(row[k], row[k + 2]) for row, k in zip(fine, chosen)]
    return [KinkPlace(0.5 * (a + b), b - a, frozenset()) for a, b in spans]
