"""Where the density of a law of one scalar jumps: within its support, and at the ends of that.

Answers to such a law have kinks there, and what is told of it between nodes has to begin anew (``LawIntegrals``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

LEAST = 1e-6  # of the density beside it: a jump that is one
HALVINGS, TRIED = 60, 6  # down to neighbouring numbers; and before those that shrink are given up
SHRUNK = 0.125  # of the first difference: one that is smooth has come to 2^-TRIED
PARTS = 16  # in which an interval is looked at: what is narrower than one may go unseen
NARROW = 1e6  # units of rounding: in intervals that are no wider a jump is not told from a steep density
ROUNDS = 8  # jumps between the same two nodes are found one after another

Density = Callable[[np.ndarray], np.ndarray]


def has_density(law: Any) -> bool:
    """Whether SciPy tells the density and the probability beyond a point of a law."""
    return all(hasattr(law, part) for part in ("sf", "pdf", "ppf"))


def jumps_within(law: Any, nodes: Float[np.ndarray, " n"]) -> Float[np.ndarray, " jumps"]:
    """The places between ascending nodes where the density jumps, ascending; several between the same nodes as far as they are seen."""
    density, found = _density_of(law), np.zeros(0)
    low, high = _looked_at(law, density, nodes)
    for _ in range(ROUNDS):
        before, place, after = _largest_jumps(density, low, high)
        if not place.size:
            break
        found = np.append(found, place)
        beside = 4 * np.spacing(np.abs(place))  # a jump is not found again
        low, high = np.append(before, place + beside), np.append(place - beside, after)
        low, high = low[low < high], high[low < high]
    return np.unique(found)


def jumps_at_ends(law: Any, nodes: Float[np.ndarray, " n"]) -> tuple[bool, bool]:
    """Whether the density jumps at the first and at the last node: they are the ends of the support, and it is not zero beside them."""
    density = _density_of(law)
    least = LEAST * np.median(density(nodes))
    beside = inward(nodes[[0, -1]], np.median(np.diff(nodes)) * np.array([1, -1]))
    first, last = (
        bool(np.isfinite(np.ravel(end)[0]) and not there <= least) for end, there in zip(law.support(), density(beside))
    )
    return first, last


def inward(places: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Places moved a little into intervals that begin (``width`` > 0) or end there: the density there is that of one side."""
    return places + np.sign(width) * np.maximum(1e-10 * np.abs(width), 4 * np.spacing(np.abs(places)))


def _density_of(law: Any) -> Density:
    def density(places: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):  # it may be infinite at an end
            return np.ravel(np.asarray(law.pdf(places), float))

    return density


def _looked_at(law: Any, density: Density, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(starts, ends) of the intervals between nodes, in parts where their probability is not that of the density by Simpson's rule."""
    low, high = nodes[:-1], nodes[1:]
    wide = high - low > NARROW * np.spacing(np.maximum(np.abs(low), np.abs(high)))
    low, high = low[wide], high[wide]
    probability = np.ravel(law.sf(low)) - np.ravel(law.sf(high))
    with np.errstate(invalid="ignore"):  # it may be infinite
        by_density = (high - low) * (density(low) + 4 * density(0.5 * (low + high)) + density(high)) / 6
        agrees = np.abs(probability - by_density) <= LEAST * probability
    edges = np.linspace(low[~agrees], high[~agrees], PARTS + 1)
    return np.append(low[agrees], edges[:-1]), np.append(high[agrees], edges[1:])


@np.errstate(invalid="ignore")  # infinite on both sides
def _largest_jumps(density: Density, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(low, place, high) of the intervals with a jump, by bisection towards the larger difference."""
    start, end = low, high
    at_low, at_high = density(low), density(high)
    first = np.abs(at_high - at_low)
    for step in range(HALVINGS):
        middle = 0.5 * (low + high)
        at_middle = density(middle)
        left = np.abs(at_middle - at_low) >= np.abs(at_high - at_middle)
        low, at_low = np.where(left, low, middle), np.where(left, at_low, at_middle)
        high, at_high = np.where(left, middle, high), np.where(left, at_middle, at_high)
        first = np.maximum(first, np.abs(at_high - at_low)) if step == 0 else first
        if step >= TRIED:
            jump = np.abs(at_high - at_low)
            kept = (jump > SHRUNK * first) & (jump > LEAST * np.maximum(at_low, at_high))
            low, high, at_low, at_high, first, start, end = (
                part[kept] for part in (low, high, at_low, at_high, first, start, end)
            )
            if not low.size:
                break
    return start, 0.5 * (low + high), end
