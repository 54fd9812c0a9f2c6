"""A point in every cell into which the zeros of polynomials cut space: where any of their signs is, it is found.

Cylindrical decomposition (Collins, 1975), of open cells only: one symbol is eliminated by discriminants, leading coefficients and
resultants; above a cell of what is left, the zeros in this symbol keep their number and order, and a number between each two of them
gives a point of each cell. Cells of any size are found, also far smaller than the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import sympy

from hierfl.atoms.formulas import Expr
from hierfl.inspect.symbolic.branches import Region

Point = dict[Expr, Expr]
_SYMBOLS_LIMIT, _CELLS_LIMIT, _EXPRESSIONS_LIMIT, _DEGREE_LIMIT = 3, 300, 60, 8
_SHARE = Fraction(19, 47)  # of an interval: no centre of symmetry, where something may vanish by chance


class TooManyCellsError(Exception):
    """The decomposition is too large, or not of polynomials."""


def cell_points(expressions: Sequence[Expr], symbols: Sequence[Expr], region: Region) -> list[Point]:
    """A rational point in each open cell of the region's box on which no expression changes sign.

    Raises ``TooManyCellsError`` for more than three symbols, for expressions that are no polynomials, and beyond 300
    cells.
    """
    if len(symbols) > _SYMBOLS_LIMIT:
        raise TooManyCellsError
    if not symbols:
        return [{}]
    *others, last = symbols
    points = []
    own = [e for e in expressions if e.has(last)]
    projected = [e for e in expressions if not e.has(last)]
    for place, one in enumerate(own):
        projected += meeting(one, own[place + 1 :], last)
    for base in cell_points(_distinct(projected), others, region):
        roots = {root for e in own for root in _roots(e.subs(base), last)}
        low, high = region.limits(last)
        inside = sorted((r for r in roots if bool(low < r) and bool(r < high)), key=lambda r: sympy.N(r, 30))
        points += [{**base, last: _between(a, b)} for a, b in pairwise([low, *inside, high])]
        if len(points) > _CELLS_LIMIT:
            raise TooManyCellsError
    return points


def meeting(surface: Expr, others: Sequence[Expr], last: Expr) -> list[Expr]:
    """Polynomials without ``last`` that change sign wherever the zeros of the surface in it do not follow one another as before."""
    poly = _polynomial(surface, last)
    projected = [poly.LC(), sympy.discriminant(poly) if poly.degree() > 1 else sympy.S.One]
    for other in others:
        met = _polynomial(other, last)
        projected.append(sympy.resultant(poly, met) if met.degree() > 0 else met.as_expr())
    return _distinct(projected)


def _polynomial(expr: Expr, symbol: Expr) -> Any:
    if not expr.is_polynomial(*expr.free_symbols):
        raise TooManyCellsError
    return sympy.Poly(expr, symbol)


def _distinct(expressions: Sequence[Expr]) -> list[Expr]:
    """Their irreducible factors that are no numbers."""
    factors: dict[Expr, None] = {}
    for expr in expressions:
        if expr.free_symbols:
            if not expr.is_polynomial(*expr.free_symbols):
                raise TooManyCellsError
            factors |= dict.fromkeys(factor for factor, _ in sympy.factor_list(expr)[1])
    if len(factors) > _EXPRESSIONS_LIMIT:
        raise TooManyCellsError
    return list(factors)


def _roots(expr: Expr, symbol: Expr) -> list[Expr]:
    if not expr.has(symbol):
        return []
    poly = sympy.Poly(expr, symbol)
    if poly.degree() > _DEGREE_LIMIT:
        raise TooManyCellsError
    return list(sympy.real_roots(poly))


def _between(low: Expr, high: Expr) -> Expr:
    """A fraction of few digits between two numbers."""
    if not low.is_finite and not high.is_finite:
        return sympy.Rational(_SHARE.numerator, _SHARE.denominator)
    start = low if low.is_finite else high - 1
    width = _fraction(high - low) if low.is_finite and high.is_finite else Fraction(1)
    inside = _fraction(start) + width * _SHARE
    short = inside.limit_denominator(int(16 / width) + 16)
    return sympy.Rational(short.numerator, short.denominator)


def _fraction(value: Expr) -> Fraction:
    number = sympy.Rational(sympy.N(value, 40))
    return Fraction(int(number.p), int(number.q))
