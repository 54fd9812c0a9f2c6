"""What every picture of a slice needs: curves broken at jumps, and the words along the axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hierfl.inspect.pictures.drawable import DrawableSlice

if TYPE_CHECKING:
    from hierfl.compiler.layout import Layout

SAME_PLACE = 1e-6  # in radii: a point so near to a jump is on it
ON_THE_LINE = 1e-12  # of a unit vector's entry
SHOWN_ENTRIES = 4  # of a direction in a title


class BrokenCurve(NamedTuple):
    """f to be drawn as a line: (k,) each, NaN where the line is broken; ``point`` is the slice's, -1 for what was put in."""

    t: np.ndarray
    value: np.ndarray
    point: np.ndarray


def curve(shown: DrawableSlice) -> BrokenCurve:
    """f along the slice, through its kinks. At a jump the line ends at its left value and begins again at its right one."""
    jumps = [jump.t for jump in shown.kinks.jumps]
    near = np.min(np.abs(np.subtract.outer(shown.t, jumps)), axis=1, initial=np.inf) <= SAME_PLACE * shown.line.radius
    put_in = [(kink.t, kink.value) for kink in shown.kinks]
    put_in += [(jump.t, value) for jump in shown.kinks.jumps for value in (jump.left, np.nan, jump.right)]
    at, values = np.reshape(put_in, (-1, 2)).T
    t = np.concatenate([shown.t[~near], at])
    point = np.concatenate([np.flatnonzero(~near), np.full(len(at), -1)])
    order = np.argsort(t, kind="stable")
    return BrokenCurve(t[order], np.concatenate([shown.value[~near], values])[order], point[order])


def broken(shown: DrawableSlice, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(t, values) of a term (k,) along the slice, broken by NaN at each jump of f."""
    place = np.searchsorted(shown.t, [jump.t for jump in shown.kinks.jumps])
    at = np.insert(shown.t, place, [jump.t for jump in shown.kinks.jumps])
    return at, np.insert(values, place, np.nan)


def entries(layout: Layout) -> Iterable[str]:
    """``x[0, 1]`` for every scalar of the flat vector, in order; a scalar variable has its bare name."""
    for variable in layout.variables:
        for index in np.ndindex(variable.shape):
            yield f"{variable.name()}[{', '.join(map(str, index))}]" if index else variable.name()


def line_title(shown: DrawableSlice) -> str:
    """Along which line f is drawn: by name where one scalar moves, by the unit vector where x is small, else how it was chosen."""
    layout = shown.compiled.upper
    (moving,) = np.nonzero(np.abs(shown.line.direction) > ON_THE_LINE)
    if len(moving) == 1:
        return f"f along {list(entries(layout))[moving[0]]}"
    if layout.size <= SHOWN_ENTRIES:
        return f"f along ({', '.join(f'{entry:.3g}' for entry in shown.line.direction)})"
    return f"f along {shown.chosen}"


def line_label(shown: DrawableSlice) -> str:
    """What t is, in the declared names: ``t   (x = 0.3 + t)`` where one scalar moves, else with centre and direction."""
    layout = shown.compiled.upper
    (moving,) = np.nonzero(np.abs(shown.line.direction) > ON_THE_LINE)
    if len(moving) > 1:
        names = ", ".join(variable.name() for variable in layout.variables)
        return f"t   ({names} = centre + t · direction)"
    (place,) = moving
    name, start = list(entries(layout))[place], float(f"{shown.line.centre[place]:.4g}")
    sign = "+" if shown.line.direction[place] > 0 else "−"
    moved = f"{start:g} {sign} t" if start else "t" if sign == "+" else "−t"
    return f"t   ({name} = {moved}{', the rest fixed' if layout.size > 1 else ''})"
