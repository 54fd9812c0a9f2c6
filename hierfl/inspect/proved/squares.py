"""Convex quadratic forms as sums of squares: what is convex by a matrix as a whole is not so product by product, as relaxations see it.

A form whose matrix is positive semidefinite up to the rounding of its entries is one of squares of sums, each an unknown of its own with a
linear definition.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hierfl.inspect.proved.polynomials import Polynomial, Unknowns

LARGEST = 300  # unknowns of a form that is looked at
ROUNDING = 8 * np.finfo(float).eps  # of a matrix, in its size times its largest entry


def as_squares(one: Polynomial, unknowns: Unknowns, sign: float) -> Polynomial:
    """The same number with every part of its quadratic form that is ``sign`` times a convex one as squares; others as they were."""
    pairs: dict[tuple[int, ...], float] = {places: value for places, value in one.terms.items() if len(places) == 2}
    cubic = {place for places in one.terms if len(places) > 2 for place in places}
    mixed = [places for places in pairs if places[0] != places[1]]
    if not mixed:
        return one
    ends = sorted({place for places in pairs for place in places})
    at = {place: k for k, place in enumerate(ends)}
    rows, columns = ([at[places[side]] for places in mixed] for side in (0, 1))
    count, label = connected_components(coo_array((np.ones(len(mixed)), (rows, columns)), (len(ends), len(ends))), directed=False)
    found = one
    for part in range(count):
        own = [place for place, of in zip(ends, label) if of == part]
        if 1 < len(own) <= LARGEST and not cubic & set(own):
            form: dict[tuple[int, ...], float] = {places: value for places, value in pairs.items() if places[0] in set(own)}
            squares = _squares(form, own, unknowns, sign)
            found = found if squares is None else Polynomial.sum_of([(1.0, found), (-1.0, Polynomial(form)), (sign, squares)])
    return found


def _squares(
    form: dict[tuple[int, ...], float], own: list[int], unknowns: Unknowns, sign: float
) -> Polynomial | None:
    """The sum of squares that ``sign`` times a form is; None if it is none."""
    at, matrix = {place: k for k, place in enumerate(own)}, np.zeros((len(own), len(own)))
    for (first, second), value in form.items():
        matrix[at[first], at[second]] += 0.5 * sign * value
        matrix[at[second], at[first]] += 0.5 * sign * value
    curvatures, ways = np.linalg.eigh(matrix)
    least = ROUNDING * len(own) * np.abs(matrix).max()
    if curvatures[0] < -least:
        return None
    parts = []
    for curvature, way in zip(curvatures, ways.T):
        if curvature > least:
            root = unknowns.defined("itself", Polynomial({(place,): float(a) for place, a in zip(own, way) if a}))
            parts.append((float(curvature), root * root))
    return Polynomial.sum_of(parts)
