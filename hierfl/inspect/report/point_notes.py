"""What is to be said about each point of a slice: x, f, y(x), slope and active constraints, in words."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hierfl.inspect.implicit.points import KEPT_LIMIT, REASONS, Points, owner_called
from hierfl.inspect.pictures.response_panel import entries
from hierfl.jaxtools.precision import double_precision

if TYPE_CHECKING:
    from hierfl.inspect.pictures.slice import Slice

SCALARS = 4  # entries of x and of y that are written out
CONSTRAINTS = 4


class PointNotes(NamedTuple):
    """What is said about one point; ``f`` says why where there is no value."""

    t: str
    f: str
    slope: str
    x: str
    y: str
    active: str


@double_precision
def notes_along(shown: Slice, exact_slopes: bool) -> list[PointNotes]:
    """Describe the points of a slice, in order; slopes are exact where there are such and they are wanted, else by differences."""
    compiled, reason = shown.compiled, shown.sampled.reason
    points, x, slopes = Points(compiled, shown.tolerance), shown.line.at(shown.t), _slopes(shown, exact_slopes)
    labels, kept = _answer_labels(shown), points.switches.entries <= KEPT_LIMIT
    return [
        PointNotes(
            t=f"{t:.6g}",
            f=f"{shown.value[k]:.8g}" if reason[k] == 0 else f"no value: {REASONS[reason[k]]}",
            slope=slopes[k],
            x=_listed(zip(entries(compiled.upper), x[k]), compiled.upper.size),
            y=_answer(shown, labels, k),
            active=_active(shown.active(k), kept),
        )
        for k, t in enumerate(shown.t)
    ]


def _slopes(shown: Slice, exact_slopes: bool) -> list[str]:
    points = Points(shown.compiled, shown.tolerance)
    if exact_slopes and points.differentiable:
        exact = points.slopes(shown.line.at(shown.t), shown.line.direction)[1]
        return [f"{slope:.6g}" if np.isfinite(slope) else "unknown" for slope in exact]
    rough = np.gradient(shown.value, shown.t)
    return [f"about {slope:.4g}, by differences" if np.isfinite(slope) else "unknown" for slope in rough]


def _answer_labels(shown: Slice) -> list[str]:
    """Name the first scalars of y, with their owners where there are several."""
    compiled, owners = shown.compiled, shown.answers.shape[1] if shown.answers.ndim == 3 else 0
    named = ((owner, entry) for owner in range(owners) for entry in entries(compiled.lower))
    alone = owners == 1
    return [
        entry if alone else f"{entry} of {owner_called(compiled, owner)}" for owner, entry in islice(named, SCALARS)
    ]


def _answer(shown: Slice, labels: list[str], k: int) -> str:
    if shown.compiled.declaration.lower_level is None:
        return "no lower level"
    if not labels:
        return "not kept: over 100,000 scalars"
    if shown.sampled.reason[k] != 0:
        return "none"
    return _listed(zip(labels, shown.answers[k].ravel()), shown.answers[k].size)


def _listed(named: Iterable[tuple[str, float]], size: int) -> str:
    written = [f"{name} = {value + 0.0:.6g}" for name, value in islice(named, SCALARS)]
    return "\n".join([*written, *([f"and {size - SCALARS:,} more"] if size > SCALARS else [])])


def _active(constraints: tuple[str, ...], kept: bool) -> str:
    if not kept:
        return "not kept: over 100,000 constraints"
    more = [f"and {len(constraints) - CONSTRAINTS:,} more"] if len(constraints) > CONSTRAINTS else []
    return "\n".join([*constraints[:CONSTRAINTS], *more]) or "none"
