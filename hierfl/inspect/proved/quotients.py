"""Quotients of unknowns as unknowns: q = v / d by the row q d = v, which relaxations see better than v times w with w d = 1, where d may come to nothing.

Where d and v are 0 the row says nothing of q: there the program is wider than what is meant, its bound as true, and the value at its end, which is computed anew, decides.
"""

from __future__ import annotations

from typing import NamedTuple

from hierfl.inspect.proved.polynomials import Polynomial, Unknowns


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
