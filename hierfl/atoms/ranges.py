"""Rules for the range of an atom that several atoms share: by monotonicity, by magnitudes, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.sum_largest import sum_largest

from hierfl.atoms.intervals import EPS, Interval, bounded

Range = Callable[[Any, list[Interval]], Interval]


def monotone(atom: Any, arguments: list[Interval]) -> Interval:
    """Each argument at the end where the atom is least (greatest); only for atoms monotone in all of them."""
    ends = _ends(atom, arguments)
    if ends is None:
        return Interval.free(atom.shape)
    count = sum(argument.lo.size for argument in arguments)
    reached = bounded(*(value_at(atom, end) for end in ends))
    if not isinstance(atom, AffAtom | sum_largest):
        return reached.widened(4 * (count + 8) * EPS)
    return with_slack(reached, count, *(np.abs(value_at(atom, [np.abs(a) for a in end])) for end in ends))


def rearranged(atom: Any, arguments: list[Interval]) -> Interval:
    """As ``monotone``, without rounding: the atom only moves entries."""
    ends = _ends(atom, arguments)
    return Interval.free(atom.shape) if ends is None else bounded(*(value_at(atom, end) for end in ends))


def with_slack(reached: Interval, count: int, low: np.ndarray, high: np.ndarray) -> Interval:
    """Each end moved by the rounding of a sum of ``count`` numbers of that total size: sums of mixed signs lose what their parts' sizes say."""
    unit = 4 * (count + 2) * EPS
    return bounded(reached.lo - unit * low, reached.hi + unit * high)


_BILINEAR = cp.conv, cp.convolve, cp.kron, cp.dotsort  # whose ways CVXPY tells by the signs of one factor, taken for a constant


def _ends(atom: Any, arguments: list[Interval]) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
    """(Arguments where the atom is least, where it is greatest); None unless it is monotone in all of them."""
    if isinstance(atom, _BILINEAR) and sum(not argument.is_point for argument in arguments) > 1:
        return None
    low, high = [], []
    for place, argument in enumerate(arguments):
        if atom.is_incr(place):
            low.append(argument.lo)
            high.append(argument.hi)
        elif atom.is_decr(place):
            low.append(argument.hi)
            high.append(argument.lo)
        else:
            return None
    return low, high


def value_at(atom: Any, values: list[np.ndarray]) -> np.ndarray:
    """The atom at these arguments, dense; NaN where it is not defined."""
    result = atom.numeric([np.asarray(value, dtype=float) for value in values])
    dense = np.asarray(result.toarray() if hasattr(result, "toarray") else result, dtype=float)
    return dense.reshape(atom.shape)


def affine_map(atom: Any, points: list[np.ndarray], places: Sequence[int]) -> tuple[np.ndarray, list[sp.csr_array]]:
    """(value, matrices), flat in C order, of what is affine in some of its arguments: by CVXPY's own values at a point and at the unit vectors from there."""
    base = value_at(atom, points).ravel()
    matrices = []
    for place in places:
        columns = []
        for entry in np.ndindex(*points[place].shape):
            moved = [np.array(p, float) if k == place else p for k, p in enumerate(points)]
            moved[place][entry] += 1.0
            columns.append(sp.csc_array((value_at(atom, moved).ravel() - base)[:, None]))
        matrices.append(sp.csr_array(sp.hstack(columns)) if columns else sp.csr_array((base.size, 0)))
    return base, matrices


def broadcast(interval: Interval, shape: tuple[int, ...]) -> Interval:
    """Broadcast to a shape; one entry to any, as CVXPY takes 1 / y for a number where y has the shape (1,)."""
    return Interval(*(np.broadcast_to(end if end.size > 1 else end.reshape(()), shape) for end in (interval.lo, interval.hi)))


def reshaped(interval: Interval, shape: tuple[int, ...]) -> Interval:
    """The same entries in another shape."""
    return Interval(interval.lo.reshape(shape), interval.hi.reshape(shape))


def even(argument: Interval, function: Callable[[np.ndarray], np.ndarray], exact: bool = False) -> Interval:
    """A function of magnitudes that grows with each of them."""
    reached = bounded(function(argument.mignitude), function(argument.magnitude))
    return reached if exact else reached.widened(4 * (8 + argument.lo.size // max(reached.lo.size, 1)) * EPS)


def of_magnitudes(exact: bool = False) -> Range:
    """The rule of an atom of one argument that depends on magnitudes alone; exact without rounding."""

    def rule(atom: Any, arguments: list[Interval]) -> Interval:
        return even(arguments[0], lambda size: value_at(atom, [size]), exact)

    return rule


def slopes_between(low: float, high: float) -> Callable[[Any, Sequence[Interval]], Interval | None]:
    """Partial derivatives within these numbers, wherever the atom is looked at."""

    def rule(atom: Any, arguments: Sequence[Interval]) -> Interval:
        return Interval(np.asarray(low), np.asarray(high))

    return rule


def always_smooth(atom: Any, varies: Sequence[bool], enclosure: Callable[[Any], Interval]) -> bool:
    """An atom with a locally Lipschitz gradient everywhere."""
    return True


def smooth_above(end: float) -> Callable[[Any, Sequence[bool], Callable[[Any], Interval]], bool]:
    """An atom with a locally Lipschitz gradient where its argument is above a number, at which its domain ends."""

    def rule(atom: Any, varies: Sequence[bool], enclosure: Callable[[Any], Interval]) -> bool:
        return bool((enclosure(atom.args[0]).lo > end).all())

    return rule


def kinked_at_zero(atom: Any, arguments: list[Interval]) -> Interval:
    """An atom that has a gradient wherever its value is not 0."""
    return Interval.of(np.zeros(atom.shape))


def flat_at_zero(atom: Any, index: int, values: Interval, arguments: list[Interval]) -> np.ndarray:
    """An atom that is flat in its first argument where that is 0, as a square is."""
    return (values.lo == 0) & (values.hi == 0) & (index == 0)


def everywhere(atom: Any) -> bool:
    """What holds of an atom whatever its settings are."""
    return True


def within_rows(atom: Any) -> bool:
    """Whether an atom along axes leaves the first one alone."""
    axes = atom.axis if isinstance(atom.axis, tuple) else (atom.axis,)
    return None not in axes and 0 not in {int(k) % atom.args[0].ndim for k in axes}
