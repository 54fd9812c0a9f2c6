"""Places on a line where f may have a kink, and how near ones are taken together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

BRACKET = 1e-9  # widths and distances are in units of the window's radius
MERGE = 1e-6
LIMIT = 4000  # places looked at side by side
EACH_PLACE = 16  # points at which each place is looked at from either side


class KinkPlace(NamedTuple):
    """A place where f may have a kink, to within ``width``, and the switches that change there."""

    t: float
    width: float
    entries: frozenset[int]


def changed(left: np.ndarray, right: np.ndarray, names: np.ndarray | None = None) -> frozenset[int]:
    """The switches that differ between two signatures."""
    places = np.flatnonzero(left != right)
    return frozenset((places if names is None else names[places]).tolist())


def merged(places: Iterable[KinkPlace], separation: float, zero: float) -> list[KinkPlace]:
    """Put places in order, and take those together that are closer than the separation.

    A switch counts as zero within a tolerance: the two ends of that stretch, up to ``zero`` from each other, are one place.
    """
    together: list[KinkPlace] = []
    for place in sorted(places):
        last = together[-1] if together else None
        if last is not None and place.t - last.t <= (
            max(separation, zero) if last.entries & place.entries else separation
        ):
            together[-1] = _joined(last, place)
        else:
            together.append(place)
    return together


def _joined(last: KinkPlace, other: KinkPlace) -> KinkPlace:
    """One place: half-way between both ends of one switch's zero; else where the slope leaps, or the sharper of the two."""
    entries = last.entries | other.entries
    if last.entries & other.entries:
        return KinkPlace(0.5 * (last.t + other.t), max(last.width, other.width, other.t - last.t), entries)
    sharper = min(last, other, key=lambda place: (len(place.entries) > 0, place.width))
    return KinkPlace(sharper.t, sharper.width, entries)
