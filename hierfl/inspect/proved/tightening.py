"""The same program, said so that relaxations see more of it.

The duality of a lower level, u'(P u + q) + b'z = 0 at every solution with x in q and b, follows from complementarity, but a relaxation that has complementarity
only as choices not made yet does not see it. So products in upper terms that it has as well are replaced, and what it says whatever x is becomes a row of its own.

What is convex by a matrix as a whole is not so product by product: a form whose matrix is positive semidefinite up to the rounding of its entries is one of squares
of sums, each an unknown of its own with a linear definition.

Quotients are unknowns: q = v / d by the row q d = v, which relaxations see better than v times w with w d = 1, where d may come to nothing. Where d and v are 0 the
row says nothing of q: there the program is wider than what is meant, its bound as true, and the value at its end, which is computed anew, decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hierfl.compiler.programs.cones import NONNEGATIVE, blocks
from hierfl.compiler.programs.smooth_atoms import SQUARE
from hierfl.inspect.proved.conditions import Level, place_of
from hierfl.inspect.proved.polynomials import Entries, Polynomial, Unknowns

LARGEST = 300  # unknowns of a form that is looked at
ROUNDING = 8 * np.finfo(float).eps  # of a matrix, in its size times its largest entry


def without_products(one: Polynomial, dualities: Iterable[Polynomial], sign: float) -> Polynomial:
    """The same number at solutions of the lower levels, without products that a duality says in fewer: tolls times flows are the prices of
    demands, less the costs of flows, and prices times outputs those of demands, less the rents of rows and the costs of others.
    """
    for duality in dualities:
        products = _mixed(duality)
        if products and products <= _mixed(one):
            product = max(sorted(products), key=lambda places: abs(duality.terms[places]))
            other = Polynomial.sum_of([(1.0, one), (-one.terms[product] / duality.terms[product], duality)])
            one = other if _bent(other, sign) < _bent(one, sign) else one
    return one


def _mixed(one: Polynomial) -> set[tuple[int, ...]]:
    """The products of several unknowns in a sum, squares left out."""
    return {places for places in one.terms if len(places) > 1 and not (len(places) == 2 and places[0] == places[1])}


def _bent(one: Polynomial, sign: float) -> int:
    """How many products there are, with squares of the other sign, which bend the wrong way."""
    return sum(len(places) > 1 and (places[0] != places[-1] or sign * value < 0) for places, value in one.terms.items())


def primal_dual_row(duality: Polynomial, level: Level, u: Entries, z: Entries, unknowns: Unknowns, is_map: bool) -> Polynomial | None:
    """What is at least 0 by the duality, whatever x is, without a product: u'P u is at least 0, and a number times a multiplier or an entry of u that has an end
    is at least what it is where x makes the number worst. None where an end, or one of x, is not known.

    The valid inequality of Kleinert, Labbe, Plein and Schmidt (Closing the gap in linear bilevel optimization: a new valid primal-dual inequality,
    Optimization Letters 15, 2021), with costs that move and quadratic ones as well.
    """
    primal, convex = set(map(place_of, u)), not is_map and all(one.atom is SQUARE for one in level.smooth)
    own = primal | {place for one in z for places in Polynomial.of(one).terms for place in places}
    ends = _ends(level, u)
    parts: list[tuple[float, Polynomial]] = []
    for places, value in duality.terms.items():
        mine = [place for place in places if place in own]
        if len(places) <= 1:
            parts.append((1.0, Polynomial({places: value})))
        elif len(places) != 2 or not mine or (len(mine) == 2 and not (convex and primal >= set(mine))):
            return None
        elif len(mine) == 1:
            (other,) = set(places) - set(mine)
            low, high = ends.get(mine[0], (unknowns.low[mine[0]], unknowns.high[mine[0]]))
            end = low if np.isfinite(low) else high
            worst = (min if end == low else max)(value * unknowns.low[other], value * unknowns.high[other])
            if not np.isfinite(end + worst):
                return None
            parts.append((1.0, Polynomial({(other,): value * end, (mine[0],): worst, (): -worst * end})))
    return Polynomial.sum_of((-1.0, part) for _, part in parts)


def _ends(level: Level, u: Entries) -> dict[int, tuple[float, float]]:
    """(the least, the most) of entries of u that have rows of their own, by place."""
    offsets, entries = dict(level.offset), Counter(i for i, _, _ in level.matrix)
    of_one = {i for cone, rows in blocks(level.cones) if cone.kind == NONNEGATIVE for i in range(rows.start, rows.stop) if entries[i] == 1}
    found: dict[int, tuple[float, float]] = {}
    for i, j, value in level.matrix:
        offset = offsets.get(i, 0.0)
        if i in of_one and not isinstance(value, Polynomial) and not isinstance(offset, Polynomial):
            low, high = found.get(place_of(u[j]), (-np.inf, np.inf))
            end = -offset / value
            found[place_of(u[j])] = (max(low, end), high) if value > 0 else (low, min(high, end))
    return found


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


class Quotient(NamedTuple):
    """``unknown[place]`` times ``below`` is ``unknown[above]``."""

    place: int
    above: int
    below: Polynomial


def with_quotients(equations: list[Polynomial], others: list[Polynomial], unknowns: Unknowns) -> tuple[list[Polynomial], list[Quotient]]:
    """The equations with an unknown for each quotient, whose rows are among them; what others mention, or more than two factors have, keeps its inverse."""
    found: list[Quotient] = []
    outside = {place for one in others for places in one.terms for place in places}
    outside |= {place for one in unknowns.definitions for places in one.argument.terms for place in places}
    for inverse in [one for one in unknowns.definitions if one.kind == "power" and one.exponent == -1.0]:
        products = [places for one in equations for places in one.terms if inverse.place in places]
        above = {tuple(place for place in places if place != inverse.place) for places in products}
        if inverse.place in outside or not above or any(len(left) != 1 for left in above) or any(len(places) != 2 for places in products):
            continue
        new = {left[0]: unknowns.new() for left in above}
        moved = {tuple(sorted((inverse.place, factor))): (place,) for factor, place in new.items()}
        equations = [Polynomial({moved.get(places, places): value for places, value in one.terms.items()}) for one in equations]
        equations += [inverse.argument * Polynomial({(place,): 1.0}) - Polynomial({(factor,): 1.0}) for factor, place in new.items()]
        found += [Quotient(place, factor, inverse.argument) for factor, place in new.items()]
        unknowns.definitions.remove(inverse)
    return equations, found
