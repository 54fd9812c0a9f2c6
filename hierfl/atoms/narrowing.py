"""What the interval of an atom's values says about each of its arguments: the backward half of interval propagation.

A rule takes a node, the interval that its values are known to lie in, and its arguments' intervals; it gives a narrower
interval for each argument, None for nothing. Each is the ``narrow`` of an atom's row.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.axis_atom import AxisAtom
from cvxpy.expressions.expression import Expression

from hierfl.atoms.intervals import EPS, Interval

_PRODUCT_LIMIT = 1_000_000


def of_sum_of_terms(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """Each summand is what the others leave of the sum: those before it and those after it."""
    before, after = list(accumulate(arguments[:-1])), list(accumulate(arguments[:0:-1]))[::-1]

    def rest(place: int) -> Interval:
        left = target - before[place - 1] if place else target
        return left - after[place] if place < len(after) else left

    return [rest(place) if argument.shape == node.shape else None for place, argument in enumerate(arguments)]


def of_entrywise_product(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """Each factor is the product over the other; where both may be 0, it is anything."""

    def over(other: Interval) -> Interval:
        open_ = ((target.lo <= 0) & (target.hi >= 0)) & ((other.lo <= 0) & (other.hi >= 0))
        quotient = target * other.inverse()
        return Interval(np.where(open_, -np.inf, quotient.lo), np.where(open_, np.inf, quotient.hi))

    left, right = arguments
    return [over(right) if left.shape == node.shape else None, over(left) if right.shape == node.shape else None]


def of_matrix_product(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """What a known factor leaves to the other."""
    left, right = arguments
    if left.lo.ndim not in (1, 2) or right.lo.ndim not in (1, 2):
        return [None, None]
    if left.is_point and left.is_bounded:
        rows = target if left.lo.ndim == 2 else Interval(target.lo[None], target.hi[None])
        return [None, _rows(_with_rows(left.lo), rows, right)]
    if right.is_point and right.is_bounded:
        matrix = _with_rows(right.lo.T)
        across = Interval(left.lo.T, left.hi.T)
        rows = target if right.lo.ndim == 1 and left.lo.ndim == 2 else Interval(target.lo.T, target.hi.T)
        rows = Interval(rows.lo[None], rows.hi[None]) if right.lo.ndim == 1 else rows
        narrower = _rows(matrix, rows, across)
        return [None if narrower is None else Interval(narrower.lo.T, narrower.hi.T), None]
    return [None, None]


def _with_rows(matrix: Any) -> Any:
    """A vector as a matrix of one row."""
    return matrix if matrix.ndim == 2 else matrix[None]


def _rows(matrix: Any, target: Interval, unknown: Interval) -> Interval | None:
    """Bounds on z from ``matrix @ z`` in ``target``: what each row leaves to each entry."""
    vector = unknown.lo.ndim == 1
    lo, hi = (end[:, None] if vector else end for end in (unknown.lo, unknown.hi))
    by_rows = sp.csr_array(matrix)
    counts = np.diff(by_rows.indptr)
    longest = int(counts.max(initial=0))
    if matrix.shape[0] * longest * lo.shape[1] > _PRODUCT_LIMIT:
        return None
    held = np.arange(longest) < counts[:, None]  # of each row's entries, and zeros
    places, entries = np.zeros(held.shape, int), np.zeros((*held.shape, 1))
    places[held], entries[held, 0] = by_rows.indices, by_rows.data
    goal = [end.reshape(matrix.shape[0], lo.shape[1])[:, None, :] for end in (target.lo, target.hi)]
    coefficients = Interval.of(entries)
    terms = coefficients * Interval(lo[places], hi[places])
    left = (Interval(goal[0], goal[1]) - _others(terms, 1)) * coefficients.inverse()
    low, high = np.full(lo.shape, -np.inf), np.full(lo.shape, np.inf)
    np.maximum.at(low, places, np.where(entries != 0, left.lo, -np.inf))
    np.minimum.at(high, places, np.where(entries != 0, left.hi, np.inf))
    return Interval(low[:, 0], high[:, 0]) if vector else Interval(low, high)


def _others(terms: Interval, axis: int) -> Interval:
    """Sums over the axis that leave out each entry in turn."""
    return Interval(_without_own(terms.lo, axis, -1.0), _without_own(terms.hi, axis, 1.0))


def _without_own(ends: np.ndarray, axis: int, outward: float) -> np.ndarray:
    """Sums of the entries before and after each one: without cancellation, so that zeros stay exact."""
    terms = np.moveaxis(ends, axis, 0)
    zero = np.zeros_like(terms[:1])

    def exclusive(parts: np.ndarray) -> np.ndarray:
        before = np.concatenate([zero, np.cumsum(parts, axis=0)[:-1]])
        after = np.concatenate([np.cumsum(parts[::-1], axis=0)[::-1][1:], zero])
        return np.asarray(before + after)

    sizes = exclusive(np.abs(terms))
    slack = np.where(np.isfinite(sizes), 4 * (len(terms) + 2) * EPS * sizes, 0.0)
    return np.moveaxis(exclusive(terms) + outward * slack, 0, axis)


def of_sum_of_entries(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """Each entry is what the others leave of the sum."""
    (argument,) = arguments
    if argument.lo.ndim == 0:
        return [target]
    if node.axis is None:
        flat = Interval(argument.lo.ravel(), argument.hi.ravel())
        narrower = Interval(target.lo.reshape(-1), target.hi.reshape(-1)) - _others(flat, 0)
        return [Interval(narrower.lo.reshape(argument.shape), narrower.hi.reshape(argument.shape))]
    if not isinstance(node.axis, (int, np.integer)):
        return [None]
    spread = _over(node, target)
    return [spread - _others(argument, int(node.axis))]


def of_trace(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """Each diagonal entry is what the others leave of the trace."""
    (argument,) = arguments
    diagonal = Interval(np.diag(argument.lo), np.diag(argument.hi))
    narrower = Interval(target.lo.reshape(-1), target.hi.reshape(-1)) - _others(diagonal, 0)
    low, high = np.full(argument.shape, -np.inf), np.full(argument.shape, np.inf)
    np.fill_diagonal(low, narrower.lo)
    np.fill_diagonal(high, narrower.hi)
    return [Interval(low, high)]


def _over(node: Expression, target: Interval) -> Interval:
    """A reduction's interval, laid over the axis that it reduced."""
    shape = node.args[0].shape

    def lay(ends: np.ndarray) -> np.ndarray:
        if node.axis is None:
            return np.broadcast_to(ends.reshape(-1)[0], shape)
        expanded = ends if getattr(node, "keepdims", False) else np.expand_dims(ends, node.axis)
        return np.broadcast_to(expanded, shape)

    return Interval(lay(target.lo), lay(target.hi))


def of_layout(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """Atoms that copy entries: numbered entries show where each one went."""
    places, start = [], 0
    for argument in node.args:
        places.append(start + np.arange(argument.size, dtype=float).reshape(argument.shape))
        start += argument.size
    origin = np.asarray(node.numeric(places)).reshape(node.shape).astype(int).ravel()
    low, high = np.full(start, -np.inf), np.full(start, np.inf)
    np.maximum.at(low, origin, target.lo.ravel())
    np.minimum.at(high, origin, target.hi.ravel())
    ends = np.cumsum([argument.size for argument in node.args])[:-1]
    return [
        Interval(a.reshape(argument.shape), b.reshape(argument.shape))
        for argument, a, b in zip(node.args, np.split(low, ends), np.split(high, ends))
    ]


def within(size: np.ndarray) -> Interval:
    """What is as large at most, of either sign."""
    size = np.maximum(size, 0.0)
    return Interval(-size, size)


def _root(value: np.ndarray, exponent: float) -> np.ndarray:
    """A root, rounded up unless it is a whole number."""
    value = np.maximum(value, 0.0)
    root = np.sqrt(value) if exponent == 2 else value ** (1 / exponent)
    return np.where((root == np.rint(root)) & (root**exponent == value), root, root * (1 + 16 * EPS))


def of_norm(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """No entry is larger than the norm, if it is one: p is at least 1."""
    if float(getattr(node, "p", 1)) < 1:
        return [None]
    return [within(_over(node, target).hi)]


def of_even_power(exponent: float, target: Interval) -> Interval:
    """What an even power's values say about its argument."""
    return within(_root(target.hi, exponent))


def of_quadratic_over_linear(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """No entry of the vector is larger than the root of values times denominator."""
    product = target * Interval(np.zeros(()), arguments[1].hi.reshape(()))
    return [within(_root(_over(node, product).hi, 2.0)), None]


def below_largest(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """Below a maximum (or a log-sum-exp), of arguments or along an axis, is every entry that it was taken of."""
    ends = _over(node, target).hi if isinstance(node, AxisAtom) else target.hi
    return [Interval(np.full(ends.shape, -np.inf), ends) if argument.shape == ends.shape else None for argument in arguments]


def above_smallest(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """Above a minimum is every entry that it was taken of."""
    ends = _over(node, target).lo if isinstance(node, AxisAtom) else target.lo
    return [Interval(ends, np.full(ends.shape, np.inf)) if argument.shape == ends.shape else None for argument in arguments]


def of_exponential(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """The argument is the logarithm of the values."""
    return [Interval(np.log(np.maximum(target.lo, 0.0)), np.log(np.maximum(target.hi, 0.0))).widened(16 * EPS)]


def of_logarithm(node: Expression, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """The argument is the exponential of the values."""
    return [Interval(np.exp(target.lo), np.exp(target.hi)).widened(16 * EPS)]
