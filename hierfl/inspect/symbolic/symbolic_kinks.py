"""The sets on which the gradient of a piecewise expression jumps, and its pieces along one coordinate.

An expression can have a kink only where two of its branches meet, or where a root vanishes. On such a set a jump is looked for at a point
of every cell into which the zeros of polynomials cut it: cylindrical decomposition (Collins, 1975), of open cells only. One symbol is
eliminated by discriminants, leading coefficients and resultants; above a cell of what is left, the zeros in this symbol keep their number
and order, and a number between each two of them gives a point of each cell. Cells of any size are found, also far smaller than the bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy

from hierfl.atoms.formulas import Expr
from hierfl.errors import SymbolicError
from hierfl.inspect.symbolic import branches

_SYMBOLS_LIMIT, _CELLS_LIMIT, _EXPRESSIONS_LIMIT, _DEGREE_LIMIT = 3, 300, 60, 8


class TooManyCellsError(Exception):
    """The decomposition is too large, of more than three symbols or 300 cells, or not of polynomials."""


def cell_points(expressions: Sequence[Expr], symbols: Sequence[Expr], region: branches.Region) -> list[branches.Point]:
    """A rational point in each open cell of the region's box on which no expression changes sign; raises ``TooManyCellsError``."""
    if len(symbols) > _SYMBOLS_LIMIT:
        raise TooManyCellsError
    if not symbols:
        return [{}]
    *others, last = symbols
    points: list[branches.Point] = []
    own = [e for e in expressions if e.has(last)]
    projected = [e for e in expressions if not e.has(last)]
    for place, one in enumerate(own):
        projected += meeting(one, own[place + 1 :], last)
    for base in cell_points(_distinct(projected), others, region):
        roots = {root for e in own for root in _roots(e.subs(base), last)}
        low, high = region.limits(last)
        inside = sorted((r for r in roots if bool(low < r) and bool(r < high)), key=lambda r: sympy.N(r, 30))
        points += [{**base, last: number} for number in branches.numbers_between(inside, low, high)]
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
    if not all(expr.is_polynomial(*expr.free_symbols) for expr in expressions):
        raise TooManyCellsError
    factors = dict.fromkeys(factor for expr in expressions for factor in branches.irreducible_factors(expr))
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


_SAMPLES = 24  # points of a set on which a jump is looked for


@dataclass(frozen=True)
class SymbolicKink:
    """A set of x on which the gradient of f jumps.

    Attributes
    ----------
    condition
        The set, as a SymPy relation such as ``Eq(x, 0)``.
    coordinate
        The symbol that crosses the set where this is ``coordinate = constant`` and slopes are told; else None.
    left_slope, right_slope
        The derivatives along the coordinate on the set's two sides, exact, in the other symbols (where these lie on no
        other kink); None, as ``coordinate``, for other sets, and where no formula holds on all of the set.
    """

    condition: Expr
    coordinate: Expr | None = None
    left_slope: Expr | None = None
    right_slope: Expr | None = None

    def __str__(self) -> str:
        equations = sorted(self.condition.atoms(sympy.Eq), key=str)
        where = ", ".join(f"{equation.lhs} = {equation.rhs}" for equation in equations)
        if self.coordinate is None:
            return where
        left, right = branches.formula_text(self.left_slope), branches.formula_text(self.right_slope)
        return f"{where}: slope {left} on the left, {right} on the right"


_Place = tuple[Expr, SymbolicKink | None]  # a condition and its kink; None where it is not known


def find_kinks(expr: Expr, region: branches.Region) -> tuple[tuple[SymbolicKink, ...], tuple[Expr, ...]]:
    """(All kinks of the expression inside the region, the sets of which it is not known).

    A set that is no ``coordinate = constant``, and slopes that depend on other symbols, are tested for a jump exactly, at a point of
    each of the set's pieces between other switches; at two dozen random points where it has too many, or where switches are no
    polynomials. Then a jump on a small part of the set only may be missed: without any, the set is returned as not known.

    Raises ``SymbolicError`` if the set where two branches meet, or a root vanishes, cannot be solved for.
    """
    by_condition: dict[Expr, SymbolicKink | None] = {}  # by condition; None where it is not known
    for switch in branches.switches(expr):
        kinks = _on_coordinate(expr, switch, region) if len(switch.free_symbols) == 1 else _on_set(expr, switch, region)
        by_condition |= dict(kinks)
    for base in branches.roots_in(expr):
        known = [place for place, kink in by_condition.items() if kink]
        by_condition |= dict(_where_vanishing(expr, base, region, known))
    unknown = sorted((place for place, kink in by_condition.items() if kink is None), key=str)

    def order(kink: SymbolicKink) -> Any:
        where = float(kink.condition.rhs) if kink.coordinate else 0.0
        return kink.coordinate is None, str(kink.coordinate), where, str(kink.condition)

    return tuple(sorted(filter(None, by_condition.values()), key=order)), tuple(unknown)


def pieces(expr: Expr, symbol: Expr, region: branches.Region) -> Expr:
    """An expression in one symbol as a Piecewise over intervals of the region's box, smooth on each of them.

    An interval on which one of the region's conditions fails has no piece: the one that follows, or else the last, is
    carried on over it. Errors as for ``find_kinks``.
    """
    own = [condition for condition in region.conditions if condition.free_symbols == {symbol}]
    ends = {condition: branches.listed_zeros(condition, symbol) for condition in own}
    candidates = {root for switch in branches.switches(expr) for root in branches.real_roots(switch, symbol)}
    candidates |= {root for roots in ends.values() for root in roots or ()}
    points = sorted((root for root in candidates if region.has_inside_box({symbol: root})), key=float)
    kept: list[tuple[Expr, Expr]] = []
    for middle, end in zip(branches.numbers_between(points, *region.limits(symbol)), [*points, sympy.oo]):
        if any(branches.sign_of_number(c.subs(symbol, middle)) == -1 for c, roots in ends.items() if roots is not None):
            continue
        branch = branches.shortest(branches.branch_at(expr, {symbol: middle}))
        if kept and sympy.simplify(kept[-1][0] - branch) == 0:
            kept.pop()
        kept.append((branch, end))
    if not kept:  # Y(x) is empty everywhere
        return expr
    return sympy.Piecewise(*((branch, symbol < end) for branch, end in kept[:-1]), (kept[-1][0], True))


# Kinks of one set


def _on_coordinate(expr: Expr, switch: Expr, region: branches.Region) -> Iterator[_Place]:
    """Kinks on the planes where a coordinate is a root of the switch."""
    (symbol,) = switch.free_symbols
    own, step = _terms_in(expr, {symbol}), {symbol: sympy.Integer(1)}
    for root in branches.real_roots(switch, symbol):
        if not _is_defined_around(region, {symbol: root}, step):
            continue
        plane, slopes = sympy.Eq(symbol, root), branches.one_sided_derivatives(own, {symbol: root}, step)
        points, complete = _places(own, region, on={symbol: root})
        # at points, since formulas of slopes do not see what vanishes on a part of the plane only
        found = [branches.one_sided_derivatives(own, {**point, symbol: root}, {**dict.fromkeys(point, 0), **step}) for point in points]
        if any(_differ(*pair) for pair in found):
            known = not any(_differ(slope.subs(point), own) for point, pair in zip(points, found) for slope, own in zip(slopes, pair))
            yield plane, SymbolicKink(plane, symbol, *slopes) if known else SymbolicKink(plane)
        elif not complete:
            yield plane, None


def _on_set(expr: Expr, switch: Expr, region: branches.Region) -> Iterator[_Place]:
    """A kink on a set that is no coordinate plane, if the gradient jumps at a point of it."""
    own = _terms_in(expr, switch.free_symbols)
    solved = min(switch.free_symbols, key=lambda s: (sympy.degree(switch, s) if switch.is_polynomial(s) else sympy.oo, str(s)))
    points, complete = _places(own, region, (switch, solved))
    for point in points:
        for root in branches.real_roots(switch.subs(point), solved):
            here = {**point, solved: root}
            across = {symbol: sympy.diff(switch, symbol).subs(here) for symbol in here}
            if _is_defined_around(region, here, across) and _jumps(own, here, across):
                yield (place := sympy.Eq(switch, 0)), SymbolicKink(place)
                return
    if not complete:
        yield sympy.Eq(switch, 0), None


def _places(expr: Expr, region: branches.Region, surface: tuple[Expr, Expr] | None = None, on: branches.Point | None = None) -> tuple[list[branches.Point], bool]:
    """(Points, whether they miss no cell between the switches of the expression): its symbols' values.

    With a surface, (its expression, the symbol to solve it for), the values of the other symbols, for each piece of the surface; ``on`` a
    set, (some symbols as functions of others), those of the others.
    """
    on = on or {}
    symbols = sorted((expr.free_symbols | (surface[0].free_symbols if surface else set())) - set(on), key=str)
    others = [s for s in symbols if surface is None or s != surface[1]]
    limits = [condition for condition in region.conditions if condition.free_symbols & {*symbols, *on}]
    cuts = [*branches.switches(expr), *branches.roots_in(expr), *(cut for c in limits for cut in (*branches.irreducible_factors(c), *branches.switches(c)))]
    cuts = [cut.subs(on) for cut in cuts]
    try:
        if not all(cut.free_symbols <= set(symbols) for cut in cuts):
            raise TooManyCellsError
        if surface:
            crossed = [c for c in cuts if c.has(surface[1]) and c not in (surface[0], -surface[0])]
            ends = [surface[1] - end for end in region.limits(surface[1]) if end.is_finite]
            cuts = [c for c in cuts if not c.has(surface[1])] + meeting(surface[0], [*crossed, *ends], surface[1])
        return cell_points(cuts, others, region), True
    except TooManyCellsError:
        rng = np.random.default_rng(0)
        return [{s: branches.random_rational(rng, region.limits(s)) for s in others} for _ in range(_SAMPLES)], False


def _where_vanishing(expr: Expr, base: Expr, region: branches.Region, known: Sequence[Expr]) -> Iterator[_Place]:
    """Kinks where the argument of a root is 0: for one symbol its zeros, else the minimisers of a sum of squares.

    A minimiser that lies on a kink already known is part of it.
    """
    if region.positive(base) or base.is_positive:
        return
    symbols = sorted(base.free_symbols, key=str)
    if len(symbols) == 1:
        for factor in branches.irreducible_factors(base):
            yield from _on_coordinate(expr, factor, region)
        return
    solution = _minimiser(base, symbols)
    if sympy.simplify(base.subs(solution)) != 0:
        return
    place = sympy.And(*(sympy.Eq(s, value) for s, value in solution.items()))
    rng = np.random.default_rng(0)
    across = {s: branches.random_rational(rng, (-sympy.oo, sympy.oo)) for s in sorted(expr.free_symbols, key=str)}
    points, complete = _places(expr, region, on=solution)
    found = ({**point, **{s: value.subs(point) for s, value in solution.items()}} for point in points)
    inside = [here for here in found if region.has_inside_box(here) and not any(c.subs(here) == sympy.true for c in known)]
    if any(_is_defined_around(region, here, across) and _jumps(expr, here, across) for here in inside):
        yield place, SymbolicKink(place)
    elif inside and not complete:
        yield place, None


def _minimiser(base: Expr, symbols: Sequence[Expr]) -> dict[Expr, Expr]:
    """The one point, or the affine set, where the gradient vanishes."""
    try:
        solutions = [] if base.has(*branches.BRANCHING) else sympy.solve([base.diff(s) for s in symbols], symbols, dict=True)
    except NotImplementedError:
        solutions = []
    if len(solutions) != 1:
        raise SymbolicError(f"where {base} vanishes, and its root has a kink, cannot be solved for.")
    return dict(solutions[0])


def _terms_in(expr: Expr, symbols: set[Expr]) -> Expr:
    """The terms of a sum that change with one of the symbols."""
    return sympy.Add(*(term for term in sympy.Add.make_args(expr) if term.free_symbols & symbols))


def _is_defined_around(region: branches.Region, point: branches.Point, direction: branches.Point) -> bool:
    """Whether the point is inside the box, and no condition of the region is known to fail beside it on the line.

    Where a condition is 0 and its sign beside the point cannot be found, the point counts as its boundary.
    """
    if not region.has_inside_box(point):
        return False
    for condition in region.conditions:
        here = condition.subs(point)
        if not here.is_number:  # depends on coordinates that are not given
            continue
        sign = branches.sign_of_number(here)
        beside = branches.signs_beside(condition, point, direction) if sign == 0 else (sign,)
        if any(sign is None or sign < 0 for sign in beside):
            return False
    return True


def _jumps(expr: Expr, point: branches.Point, direction: branches.Point) -> bool:
    return _differ(*branches.one_sided_derivatives(expr, point, direction))


def _differ(one: Expr, other: Expr) -> bool:
    return branches.sign_of_number(sympy.expand(one - other)) != 0
