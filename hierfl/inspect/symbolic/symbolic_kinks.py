"""Exact one-sided derivatives of piecewise expressions, the sets where they jump, and pieces along one coordinate.

Along a line x + t d every maximum, minimum and absolute value keeps one branch for small t > 0: the one that the first
nonzero Taylor coefficient of a difference of branches decides. What is left is smooth, and its derivative at t = 0 is the
one-sided one. An expression can have a kink only where two of its branches meet, or where a root vanishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import sympy
from sympy.core.relational import Relational

from hierfl.errors import SymbolicError
from hierfl.inspect.symbolic.cells import TooManyCellsError, cell_points, meeting
from hierfl.inspect.symbolic.formula_text import formula_text
from hierfl.inspect.symbolic.region import BRANCHING, Region

Expr = Any
Point = Mapping[Expr, Expr]
SignOf = Callable[[Expr], int | None]  # of a difference of branches; None where it is not decided
_TAYLOR_TERMS = 8
_DIGITS = 50  # zero to so many digits counts as zero
_SAMPLES = 24  # points of a set on which a jump is looked for


@dataclass(frozen=True)
class SymbolicKink:
    """A set of x on which the gradient of f jumps.

    Attributes
    ----------
    condition
        The set, as a SymPy relation such as ``Eq(x, 0)``.
    coordinate
        The symbol that crosses the set where this is ``coordinate = constant``; None for other sets.
    left_slope, right_slope
        The derivatives along the coordinate on the set's two sides, exact, in the other symbols (where these lie on no
        other kink); None for other sets.
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
        left, right = formula_text(self.left_slope), formula_text(self.right_slope)
        return f"{where}: slope {left} on the left, {right} on the right"


_Place = tuple[Expr, SymbolicKink | None]  # a condition and its kink; None where it is not known


def one_sided_derivatives(expr: Expr, point: Point, direction: Point) -> tuple[Expr, Expr]:
    """(left, right) derivatives at t = 0 of the expression at ``point + t direction``."""
    t = sympy.Dummy("t", positive=True)

    def slope(sign: int) -> Expr:
        line = {symbol: value + sign * t * direction[symbol] for symbol, value in point.items()}
        active = _resolved(expr, lambda difference: _sign_near_zero(difference.xreplace(line), t))
        return _slope(sign * active.xreplace(line), t)

    return slope(-1), slope(1)


def find_kinks(expr: Expr, region: Region) -> tuple[tuple[SymbolicKink, ...], tuple[Expr, ...]]:
    """(All kinks of the expression inside the region, the sets of which it is not known).

    A set that is no ``coordinate = constant``, and slopes that depend on other symbols, are tested for a jump exactly, at a point of
    each of the set's pieces between other switches; at two dozen random points where it has too many, or where switches are no
    polynomials. Then a jump on a small part of the set only may be missed: without any, the set is returned as not known.

    Raises
    ------
    SymbolicError
        If the set where two branches meet, or a root vanishes, cannot be solved for.
    """
    found: dict[Expr, SymbolicKink | None] = {}  # by condition; None where it is not known
    for switch in switches(expr):
        kinks = _on_coordinate(expr, switch, region) if len(switch.free_symbols) == 1 else _on_set(expr, switch, region)
        found |= dict(kinks)
    for base in roots_in(expr):
        found |= dict(_where_vanishing(expr, base, region, [place for place, kink in found.items() if kink]))
    unknown = sorted((place for place, kink in found.items() if kink is None), key=str)
    return tuple(sorted(filter(None, found.values()), key=_order)), tuple(unknown)


def _order(kink: SymbolicKink) -> Any:
    where = float(kink.condition.rhs) if kink.coordinate else 0.0
    return kink.coordinate is None, str(kink.coordinate), where, str(kink.condition)


def pieces(expr: Expr, symbol: Expr, region: Region) -> Expr:
    """An expression in one symbol as a Piecewise over intervals of the region's box, smooth on each of them.

    An interval on which one of the region's conditions fails has no piece: the one that follows, or else the last, is
    carried on over it. Errors as for ``find_kinks``.
    """
    own = [condition for condition in region.conditions if condition.free_symbols == {symbol}]
    ends = {condition: _solved(condition, symbol) for condition in own}
    candidates = {root for switch in switches(expr) for root in _real_roots(switch, symbol)}
    candidates |= {root for roots in ends.values() for root in roots or ()}
    points = sorted((root for root in candidates if region.has_inside_box({symbol: root})), key=float)
    kept: list[tuple[Expr, Expr]] = []
    for middle, end in zip(_between(points, *region.limits(symbol)), [*points, sympy.oo]):
        if any(_sign_of_number(c.subs(symbol, middle)) == -1 for c, roots in ends.items() if roots is not None):
            continue
        branch = shortest(_branch_at(expr, {symbol: middle}))
        if kept and sympy.simplify(kept[-1][0] - branch) == 0:
            kept.pop()
        kept.append((branch, end))
    if not kept:  # Y(x) is empty everywhere
        return expr
    return sympy.Piecewise(*((branch, symbol < end) for branch, end in kept[:-1]), (kept[-1][0], True))


def shortest(expr: Expr) -> Expr:
    """The shortest of a few ways to write the expression."""
    return min((sympy.factor(expr), sympy.expand(expr), expr), key=sympy.count_ops)


# Where branches meet


def switches(expr: Expr) -> tuple[Expr, ...]:
    """Irreducible factors of the differences of branches: their signs decide which branch is active."""
    found: dict[Expr, None] = {}
    for node in sympy.preorder_traversal(expr):
        for difference in _differences(node):
            found |= dict.fromkeys(_factors(difference))
    return tuple(found)


def _differences(node: Expr) -> Iterator[Expr]:
    if isinstance(node, (sympy.Max, sympy.Min)):
        first = list(node.args)
        yield from (a - b for place, a in enumerate(first) for b in first[place + 1 :])
    elif isinstance(node, sympy.Abs):
        yield node.args[0]
    elif isinstance(node, sympy.Piecewise):
        for _, condition in node.args:
            yield from (relation.lhs - relation.rhs for relation in condition.atoms(Relational))


def _factors(expr: Expr) -> list[Expr]:
    if expr.has(*BRANCHING):
        return [factor for branch in _all_branches(expr) for factor in _factors(branch)]
    try:
        factors = [factor for factor, _ in sympy.factor_list(expr)[1]]
    except sympy.PolynomialError:
        factors = [expr]
    return [factor for factor in factors if factor.free_symbols]


def _all_branches(expr: Expr) -> list[Expr]:
    """The expression with its first branching node replaced by each of its branches."""
    node = next(n for n in sympy.postorder_traversal(expr) if isinstance(n, BRANCHING))
    if isinstance(node, sympy.Abs):
        branches = [node.args[0], -node.args[0]]
    else:
        branches = [b[0] if isinstance(node, sympy.Piecewise) else b for b in node.args]
    return [expr.xreplace({node: branch}) for branch in branches]


def roots_in(expr: Expr) -> tuple[Expr, ...]:
    """Bases of fractional powers below 1: where one vanishes, the power may have a kink."""
    powers = (node for node in expr.atoms(sympy.Pow) if node.exp.is_Rational and not node.exp.is_Integer)
    return tuple({power.base: None for power in powers if power.exp < 1 and power.base.free_symbols})


# Active branches


def _resolved(expr: Expr, sign_of: SignOf) -> Expr:
    """The expression with its active branches only; what ``sign_of`` leaves open stays as cases."""
    if not expr.has(*BRANCHING):
        return expr
    if isinstance(expr, sympy.Piecewise):
        return _active_piece(expr, sign_of)
    args = [_resolved(arg, sign_of) for arg in expr.args]
    if isinstance(expr, sympy.Abs):
        sign = sign_of(args[0])
        return sympy.Abs(args[0]) if sign is None else args[0] if sign >= 0 else -args[0]
    if isinstance(expr, (sympy.Max, sympy.Min)):
        return _active_extreme(args, 1 if isinstance(expr, sympy.Max) else -1, sign_of)
    return expr.func(*args)


def _active_piece(node: Expr, sign_of: SignOf) -> Expr:
    cases = []
    for branch, condition in node.args:
        signs = {relation: sign_of(relation.lhs - relation.rhs) for relation in condition.atoms(Relational)}
        truth = {r: r.func(sympy.Integer(sign), 0) for r, sign in signs.items() if sign is not None}
        holds = condition.xreplace(truth)
        if holds == sympy.false:
            continue
        cases.append((_resolved(branch, sign_of), holds))
        if holds == sympy.true:
            break
    return sympy.Piecewise(*cases)


def _active_extreme(args: Sequence[Expr], better: int, sign_of: SignOf) -> Expr:
    """The largest (better = 1) or least argument; cases over those that are not known to lose."""
    kept: list[Expr] = []
    for new in args:
        signs = [sign_of(better * (new - old)) for old in kept]
        if any(sign is not None and sign <= 0 for sign in signs):
            continue
        kept = [old for old, sign in zip(kept, signs) if sign is None] + [new]
    wins = sympy.Ge if better == 1 else sympy.Le
    *first, last = kept
    cases = [(a, sympy.And(*(wins(a, b) for b in kept if b is not a))) for a in first]
    return sympy.Piecewise(*cases, (last, True))


def _sign_near_zero(expr: Expr, t: Expr) -> int | None:
    """Sign for small t > 0, by the first nonzero Taylor coefficient; None where other symbols decide it."""
    coefficient = sympy.expand(expr)
    for _ in range(_TAYLOR_TERMS):
        if coefficient == 0:
            return 0
        start = sympy.expand(coefficient.subs(t, 0))
        if start.is_number:
            sign = _sign_of_number(start)
            if sign != 0:
                return sign
        elif sympy.simplify(start) != 0:
            return None
        coefficient = sympy.expand(sympy.diff(coefficient, t))
    return 0 if sympy.simplify(expr) == 0 else None


def _sign_of_number(value: Expr) -> int | None:
    number = sympy.N(value, _DIGITS)
    if not number.is_real:
        return None
    return 0 if abs(number) < sympy.Float(10) ** (20 - _DIGITS) else int(sympy.sign(number))


def _slope(smooth: Expr, t: Expr) -> Expr:
    derivative = sympy.diff(smooth, t)
    value = derivative.subs(t, 0)
    if value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        value = sympy.limit(derivative, t, 0, "+")
    return _tidied(value)


def _tidied(value: Expr) -> Expr:
    """Simplified; with several cases only case by case, since SymPy compares the conditions of all pairs."""
    cases = value.atoms(sympy.Piecewise)
    if not cases:
        return sympy.simplify(value)
    if len(cases) == 1 and len(next(iter(cases)).args) == 2:
        value = sympy.piecewise_fold(value)
    return value.replace(sympy.Piecewise, lambda *args: sympy.Piecewise(*((shortest(e), c) for e, c in args)))


def _branch_at(expr: Expr, point: Point) -> Expr:
    """The expression with the branches that are active at a point at which none meet."""
    return _resolved(expr, lambda difference: _sign_of_number(difference.xreplace(dict(point))))


# Kinks of one set


def _on_coordinate(expr: Expr, switch: Expr, region: Region) -> Iterator[_Place]:
    """Kinks on the planes where a coordinate is a root of the switch."""
    (symbol,) = switch.free_symbols
    own, step = _terms_in(expr, {symbol}), {symbol: sympy.Integer(1)}
    for root in _real_roots(switch, symbol):
        if not _is_defined_around(region, {symbol: root}, step):
            continue
        left, right = one_sided_derivatives(own, {symbol: root}, step)
        points, complete = _places(left - right, region)
        if any(_sign_of_number(sympy.expand((left - right).subs(point))) != 0 for point in points):
            yield (plane := sympy.Eq(symbol, root)), SymbolicKink(plane, symbol, left, right)
        elif not complete:
            yield sympy.Eq(symbol, root), None


def _on_set(expr: Expr, switch: Expr, region: Region) -> Iterator[_Place]:
    """A kink on a set that is no coordinate plane, if the gradient jumps at a point of it."""
    own = _terms_in(expr, switch.free_symbols)
    solved = min(switch.free_symbols, key=lambda s: (_degree(switch, s), str(s)))
    points, complete = _places(own, region, (switch, solved))
    for point in points:
        for root in _real_roots(switch.subs(point), solved):
            here = {**point, solved: root}
            across = {symbol: sympy.diff(switch, symbol).subs(here) for symbol in here}
            if _is_defined_around(region, here, across) and _jumps(own, here, across):
                yield (place := sympy.Eq(switch, 0)), SymbolicKink(place)
                return
    if not complete:
        yield sympy.Eq(switch, 0), None


def _places(expr: Expr, region: Region, surface: tuple[Expr, Expr] | None = None) -> tuple[list[Point], bool]:
    """(Points, whether they miss no cell between the switches of the expression): its symbols' values.

    With a surface, (its expression, the symbol to solve it for), the values of the other symbols, for each piece of the surface.
    """
    symbols = sorted(expr.free_symbols | (surface[0].free_symbols if surface else set()), key=str)
    others = [s for s in symbols if surface is None or s != surface[1]]
    limits = [condition for condition in region.conditions if condition.free_symbols & set(symbols)]
    cuts = [*switches(expr), *roots_in(expr), *(cut for c in limits for cut in (*_factors(c), *switches(c)))]
    try:
        if not all(cut.free_symbols <= set(symbols) for cut in cuts):
            raise TooManyCellsError
        if surface:
            crossed = [c for c in cuts if c.has(surface[1]) and c not in (surface[0], -surface[0])]
            ends = [surface[1] - end for end in region.limits(surface[1]) if end.is_finite]
            cuts = [c for c in cuts if not c.has(surface[1])] + meeting(surface[0], [*crossed, *ends], surface[1])
        return [dict(point) for point in cell_points(cuts, others, region)], True
    except TooManyCellsError:
        rng = np.random.default_rng(0)
        return [{s: random_rational(rng, region.limits(s)) for s in others} for _ in range(_SAMPLES)], False


def _where_vanishing(expr: Expr, base: Expr, region: Region, known: Sequence[Expr]) -> Iterator[_Place]:
    """Kinks where the argument of a root is 0: for one symbol its zeros, else the minimisers of a sum of squares.

    A minimiser that lies on a kink already known is part of it.
    """
    if region.positive(base) or base.is_positive:
        return
    symbols = sorted(base.free_symbols, key=str)
    if len(symbols) == 1:
        for factor in _factors(base):
            yield from _on_coordinate(expr, factor, region)
        return
    solution = _minimiser(base, symbols)
    if sympy.simplify(base.subs(solution)) != 0:
        return
    rng = np.random.default_rng(0)
    everything = sorted(base.free_symbols | expr.free_symbols, key=str)
    free = {s: random_rational(rng, region.limits(s)) for s in everything if s not in solution}
    here = {**free, **{s: value.subs(free) for s, value in solution.items()}}
    across = {s: random_rational(rng, (-sympy.oo, sympy.oo)) for s in everything}
    on_known = any(condition.subs(here) == sympy.true for condition in known)
    if not on_known and _is_defined_around(region, here, across) and _jumps(expr, here, across):
        place = sympy.And(*(sympy.Eq(s, value) for s, value in solution.items()))
        yield place, SymbolicKink(place)


def _minimiser(base: Expr, symbols: Sequence[Expr]) -> dict[Expr, Expr]:
    """The one point, or the affine set, where the gradient vanishes."""
    try:
        solutions = [] if base.has(*BRANCHING) else sympy.solve([base.diff(s) for s in symbols], symbols, dict=True)
    except NotImplementedError:
        solutions = []
    if len(solutions) != 1:
        raise SymbolicError(f"where {base} vanishes, and its root has a kink, cannot be solved for.")
    return dict(solutions[0])


def _terms_in(expr: Expr, symbols: set[Expr]) -> Expr:
    """The terms of a sum that change with one of the symbols."""
    return sympy.Add(*(term for term in sympy.Add.make_args(expr) if term.free_symbols & symbols))


def _is_defined_around(region: Region, point: Point, direction: Point) -> bool:
    """Whether the point is inside the box, and no condition of the region is known to fail beside it on the line.

    Where a condition is 0 and its sign beside the point cannot be found, the point counts as its boundary.
    """
    if not region.has_inside_box(point):
        return False
    for condition in region.conditions:
        here = condition.subs(point)
        if not here.is_number:  # depends on coordinates that are not given
            continue
        sign = _sign_of_number(here)
        beside = _signs_beside(condition, point, direction) if sign == 0 else (sign,)
        if any(found is None or found < 0 for found in beside):
            return False
    return True


def _signs_beside(expr: Expr, point: Point, direction: Point) -> tuple[int | None, int | None]:
    """Signs of the expression at ``point + t direction`` for small t below and above 0; None where not found."""
    t = sympy.Dummy("t", positive=True)

    def sign(side: int) -> int | None:
        line = {symbol: value + side * t * direction[symbol] for symbol, value in point.items()}
        active = _resolved(expr, lambda difference: _sign_near_zero(difference.xreplace(line), t))
        return _sign_near_zero(active.xreplace(line), t)

    return sign(-1), sign(1)


def _jumps(expr: Expr, point: Point, direction: Point) -> bool:
    left, right = one_sided_derivatives(expr, point, direction)
    return _sign_of_number(sympy.expand(left - right)) != 0


# Roots and points


def _degree(expr: Expr, symbol: Expr) -> int:
    return int(sympy.degree(expr, symbol)) if expr.is_polynomial(symbol) else 1000


def _real_roots(expr: Expr, symbol: Expr) -> list[Expr]:
    """The real zeros of an expression in one symbol; of a constant none."""
    zeros = _solved(expr, symbol)
    if zeros is None:
        raise SymbolicError(f"the zeros of {expr} in {symbol}, where a kink may be, cannot be solved for.")
    return zeros


def _solved(expr: Expr, symbol: Expr) -> list[Expr] | None:
    """The real zeros; None where SymPy cannot list them."""
    if not expr.has(symbol):
        return []
    zeros = sympy.solveset(expr, symbol, sympy.S.Reals)
    return list(zeros) if zeros is sympy.S.EmptySet or isinstance(zeros, sympy.FiniteSet) else None


def _between(points: Sequence[Expr], low: Expr, high: Expr) -> list[Expr]:
    """A rational number inside each interval between the points."""
    return [_middle(a, b) for a, b in pairwise([low, *points, high])]


def _middle(low: Expr, high: Expr) -> Expr:
    if low.is_finite and high.is_finite:
        return sympy.Rational(sympy.N((low + high) / 2, 30))
    if low.is_finite or high.is_finite:
        return sympy.Rational(sympy.N(low + 1 if low.is_finite else high - 1, 30))
    return sympy.Rational(1, 3)


def random_rational(rng: np.random.Generator, limits: tuple[Expr, Expr]) -> Expr:
    """A fraction between the limits, of a moderate size where they are infinite."""
    low, high = limits
    if low.is_finite and high.is_finite:
        return low + (high - low) * sympy.Rational(int(rng.integers(1, 64)), 64)
    offset = sympy.Rational(int(rng.integers(-128, 129)), 32)
    return low + abs(offset) if low.is_finite else high - abs(offset) if high.is_finite else offset
