"""What the duality of a lower level says besides its optimality conditions: u'(P u + q) + b'z = 0 at every solution, with x in q and b.

It follows from complementarity, but a relaxation that has complementarity only as choices not made yet does not see it. So products in upper terms
that it has as well are replaced, and what it says whatever x is becomes a row of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from hierfl.compiler.programs.cones import NONNEGATIVE, blocks
from hierfl.compiler.programs.smooth_atoms import SQUARE
from hierfl.inspect.proved.conditions import Level, place_of
from hierfl.inspect.proved.polynomials import Entries, Polynomial, Unknowns


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
    ends = _ends(level, u, unknowns)
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


def _ends(level: Level, u: Entries, unknowns: Unknowns) -> dict[int, tuple[float, float]]:
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
