"""Branches of piecewise expressions: where they meet, which one is active, and exact one-sided derivatives.

Along a line x + t d every maximum, minimum and absolute value keeps one branch for small t > 0: the one that the first
nonzero Taylor coefficient of a difference of branches decides. What is left is smooth, and its derivative at t = 0 is the
one-sided one. A ``Region`` is what the known bounds of x say about signs, and which branches they leave. At the end: real zeros of
expressions in one symbol with numbers between them, and formulas as one line of text, ``{x**2 if x < 0; 0 otherwise}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import sympy
from sympy.core.relational import Relational
from sympy.printing.str import StrPrinter

from hierfl.atoms.formulas import Expr
from hierfl.errors import SymbolicError

BRANCHING = (sympy.Max, sympy.Min, sympy.Abs, sympy.Piecewise)
"""What makes an expression piecewise; all other functions here are smooth inside their domains, or roots."""


@dataclass(frozen=True)
class Region:
    """A box, ``bounds[symbol] = (low, high)``, exact numbers or infinities, in which further ``conditions`` are >= 0.

    Signs are decided by the box alone; a symbol without an entry is free.
    """

    bounds: Mapping[Expr, tuple[Expr, Expr]]
    conditions: tuple[Expr, ...] = ()

    @property
    def domain(self) -> Expr:
        return sympy.And(*(condition >= 0 for condition in self.conditions))

    def limits(self, symbol: Expr) -> tuple[Expr, Expr]:
        return self.bounds.get(symbol, (-sympy.oo, sympy.oo))

    def has_inside_box(self, point: Mapping[Expr, Expr]) -> bool:
        """Whether a point, some coordinates of which may be missing, is inside the box and not on its boundary."""
        limits = ((value, self.limits(symbol)) for symbol, value in point.items())
        return all(bool(low < value) and bool(value < high) for value, (low, high) in limits)

    def contains(self, point: Mapping[Expr, Expr]) -> bool:
        boxed = all(low <= point[symbol] <= high for symbol, (low, high) in self.bounds.items())
        return boxed and bool(self.domain.subs(point))

    def nonnegative(self, expr: Expr) -> bool:
        """Whether expr >= 0 is proved on the whole box; False if it is not known."""
        lowest = self._lowest(expr)
        return bool(lowest >= 0) if lowest is not None else self._shifted(expr, "is_nonnegative")

    def positive(self, expr: Expr) -> bool:
        lowest = self._lowest(expr)
        return bool(lowest > 0) if lowest is not None else self._shifted(expr, "is_positive")

    def simplified(self, expr: Expr) -> Expr:
        """The expression without the branches of maxima, minima and absolute values that the box rules out, innermost first."""
        return expr.replace(lambda node: isinstance(node, BRANCHING), self._live_branches)

    def _lowest(self, expr: Expr) -> Expr | None:
        """The least value of an affine expression; None for others."""
        symbols = sorted(expr.free_symbols, key=str)
        if not symbols:
            return expr
        affine = polynomial(expr, symbols)
        if affine is None or affine.total_degree() > 1:
            return None
        lowest = affine.coeff_monomial(1)
        for symbol in symbols:
            slope = affine.coeff_monomial(symbol)
            lowest += slope * self.limits(symbol)[0 if slope > 0 else 1] if slope != 0 else 0
        return lowest

    def _shifted(self, expr: Expr, question: str) -> bool:
        """SymPy's answer when every symbol is written as its low end plus, or its high end minus, something nonnegative."""
        for end, way in ((0, 1), (1, -1)):
            finite = ((s, self.limits(s)[end]) for s in expr.free_symbols if self.limits(s)[end].is_finite)
            moved = {s: value + way * sympy.Dummy(nonnegative=True) for s, value in finite}
            if getattr(sympy.expand(expr.xreplace(moved)), question):
                return True
        return False

    def _live_branches(self, node: Expr) -> Expr:
        if isinstance(node, sympy.Abs):
            (inner,) = node.args
            return inner if self.nonnegative(inner) else -inner if self.nonnegative(-inner) else node
        if isinstance(node, sympy.Piecewise):
            return node
        sign = 1 if isinstance(node, sympy.Max) else -1

        def insert(kept: tuple[Expr, ...], new: Expr) -> tuple[Expr, ...]:
            if any(self.nonnegative(sign * (old - new)) for old in kept):
                return kept
            return (*(old for old in kept if not self.nonnegative(sign * (new - old))), new)

        return node.func(*reduce(insert, node.args, ()))


def polynomial(expr: Expr, symbols: Sequence[Expr]) -> Any:
    """The expression as a polynomial in the symbols; None if it is none."""
    try:
        return sympy.Poly(sympy.expand(expr), *symbols)
    except sympy.PolynomialError:
        return None


Point = Mapping[Expr, Expr]
LeadingOf = Callable[[Expr], Expr | None]  # a term that has the sign of a difference of branches; None where there is none
_TAYLOR_TERMS = 8
_DIGITS = 50  # zero to so many digits counts as zero


def one_sided_derivatives(expr: Expr, point: Point, direction: Point) -> tuple[Expr, Expr]:
    """(left, right) derivatives at t = 0 of the expression at ``point + t direction``."""
    t = sympy.Dummy("t", positive=True)
    left, right = (_slope(side * _beside(expr, point, direction, side * t, t), t) for side in (-1, 1))
    return left, right


def signs_beside(expr: Expr, point: Point, direction: Point) -> tuple[int | None, int | None]:
    """Signs of the expression at ``point + t direction`` for small t below and above 0; None where not found."""
    t = sympy.Dummy("t", positive=True)
    leads = (leading(_beside(expr, point, direction, side * t, t), t) for side in (-1, 1))
    left, right = (int(lead) if lead is not None and lead.is_number else None for lead in leads)
    return left, right


def _beside(expr: Expr, point: Point, direction: Point, step: Expr, t: Expr) -> Expr:
    """The expression a step away, a multiple of t, with the branches that are active there for small t > 0."""
    line = {symbol: value + step * direction[symbol] for symbol, value in point.items()}
    return resolved(expr, lambda difference: leading(difference.xreplace(line), t)).xreplace(line)


def shortest(expr: Expr) -> Expr:
    """The shortest of a few ways to write the expression."""
    return min((sympy.factor(expr), sympy.expand(expr), expr), key=sympy.count_ops)


def switches(expr: Expr) -> tuple[Expr, ...]:
    """Irreducible factors of the differences of branches: their signs decide which branch is active."""
    differences = (difference for node in sympy.preorder_traversal(expr) for difference in _differences(node))
    return tuple(dict.fromkeys(factor for difference in differences for factor in irreducible_factors(difference)))


def _differences(node: Expr) -> Iterator[Expr]:
    if isinstance(node, (sympy.Max, sympy.Min)):
        yield from (a - b for a, b in combinations(node.args, 2))
    elif isinstance(node, sympy.Abs):
        yield node.args[0]
    elif isinstance(node, sympy.Piecewise):
        for _, condition in node.args:
            yield from (relation.lhs - relation.rhs for relation in condition.atoms(Relational))


def irreducible_factors(expr: Expr) -> list[Expr]:
    """Factors over the symbols, of every branch of the expression."""
    if expr.has(*BRANCHING):
        return [factor for branch in _all_branches(expr) for factor in irreducible_factors(branch)]
    try:
        factors = [factor for factor, _ in sympy.factor_list(expr)[1]]
    except sympy.PolynomialError:
        factors = [expr]
    return [factor for factor in factors if factor.free_symbols]


def _all_branches(expr: Expr) -> list[Expr]:
    """The expression with its first branching node replaced by each of its branches."""
    node = next(n for n in sympy.postorder_traversal(expr) if isinstance(n, BRANCHING))
    branches = [b[0] if isinstance(node, sympy.Piecewise) else b for b in node.args]
    branches += [-node.args[0]] if isinstance(node, sympy.Abs) else []
    return [expr.xreplace({node: branch}) for branch in branches]


def roots_in(expr: Expr) -> tuple[Expr, ...]:
    """Bases of fractional powers below 1: where one vanishes, the power may have a kink."""
    powers = (node for node in expr.atoms(sympy.Pow) if node.exp.is_Rational and not node.exp.is_Integer)
    return tuple({power.base: None for power in powers if power.exp < 1 and power.base.free_symbols})


def resolved(expr: Expr, leading_of: LeadingOf) -> Expr:
    """The expression with its active branches only; where other symbols decide the sign of ``leading_of`` a difference, cases by this sign."""
    if not expr.has(*BRANCHING):
        return expr
    if isinstance(expr, sympy.Piecewise):
        return _active_piece(expr, leading_of)
    args = [resolved(arg, leading_of) for arg in expr.args]
    if isinstance(expr, sympy.Abs) and (lead := leading_of(args[0])) is not None and lead.is_number:
        return args[0] if lead >= 0 else -args[0]
    if isinstance(expr, (sympy.Max, sympy.Min)):
        return _active_extreme(args, 1 if isinstance(expr, sympy.Max) else -1, leading_of)
    return expr.func(*args)


def _active_piece(node: Expr, leading_of: LeadingOf) -> Expr:
    cases = []
    for branch, condition in node.args:
        holds = condition.xreplace({r: _holds(r.func, r.lhs - r.rhs, leading_of) for r in condition.atoms(Relational)})
        if holds == sympy.false:
            continue
        cases.append((resolved(branch, leading_of), holds))
        if holds == sympy.true:
            break
    return sympy.Piecewise(*cases)


def _active_extreme(args: Sequence[Expr], better: int, leading_of: LeadingOf) -> Expr:
    """The largest (better = 1) or least argument; cases over those that are not known to lose."""
    kept: list[Expr] = []
    for new in args:
        wins = [_holds(sympy.Ge, better * (old - new), leading_of) for old in kept]
        if sympy.true not in wins:
            kept = [old for old, win in zip(kept, wins) if win != sympy.false] + [new]
    *first, last = kept
    cases = [(a, sympy.And(*(_holds(sympy.Ge, better * (a - b), leading_of) for b in kept if b is not a))) for a in first]
    return sympy.Piecewise(*cases, (last, True))


def _holds(relation: Any, difference: Expr, leading_of: LeadingOf) -> Expr:
    lead = leading_of(difference)
    return relation(difference if lead is None else lead, 0)


def leading(expr: Expr, t: Expr) -> Expr | None:
    """The first Taylor coefficient that is not zero, of which the expression has the sign for small t > 0: this sign of a number; None where not found."""
    coefficient = sympy.expand(expr)
    for _ in range(_TAYLOR_TERMS):
        if coefficient == 0:
            return sympy.S.Zero
        start = sympy.expand(coefficient.subs(t, 0))
        sign = sign_of_number(start) if start.is_number else 0 if sympy.simplify(start) == 0 else start
        if sign != 0:
            return sympy.sympify(sign)
        coefficient = sympy.expand(_derivative(coefficient, t))
    return sympy.S.Zero if sympy.simplify(expr) == 0 else None


def sign_of_number(value: Expr) -> int | None:
    """Sign of a number, by fifty digits of it; None for one that is not real."""
    number = sympy.N(value, _DIGITS)
    if not number.is_real:
        return None
    return 0 if abs(number) < sympy.Float(10) ** (20 - _DIGITS) else int(sympy.sign(number))


def _derivative(expr: Expr, t: Expr) -> Expr:
    """The derivative for small t > 0: of what vanishes at 0, the sign is that of what leads."""
    return sympy.diff(expr, t).replace(sympy.sign, lambda inner: sympy.sign(leading(inner, t) or inner))


def _slope(smooth: Expr, t: Expr) -> Expr:
    derivative = _derivative(smooth, t)
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


def branch_at(expr: Expr, point: Point) -> Expr:
    """The expression with the branches that are active at a point at which none meet."""
    return resolved(expr, lambda difference: leading(difference.xreplace(dict(point)), sympy.Dummy()))


class _Printer(StrPrinter):
    def _print_Piecewise(self, expr: Any) -> str:  # noqa: N802 - the name that SymPy looks for
        whens = ["otherwise" if condition == sympy.true else f"if {self._print(condition)}" for _, condition in expr.args]
        return "{" + "; ".join(f"{self._print(branch)} {when}" for (branch, _), when in zip(expr.args, whens)) + "}"


def formula_text(formula: Any) -> str:
    """The formula as text."""
    return str(_Printer().doprint(formula))


def real_roots(expr: Expr, symbol: Expr) -> list[Expr]:
    """The real zeros of an expression in one symbol; of a constant none."""
    zeros = listed_zeros(expr, symbol)
    if zeros is None:
        raise SymbolicError(f"the zeros of {expr} in {symbol}, where a kink may be, cannot be solved for.")
    return zeros


def listed_zeros(expr: Expr, symbol: Expr) -> list[Expr] | None:
    """The real zeros; None where SymPy cannot list them."""
    if not expr.has(symbol):
        return []
    zeros = sympy.solveset(expr, symbol, sympy.S.Reals)
    return list(zeros) if zeros is sympy.S.EmptySet or isinstance(zeros, sympy.FiniteSet) else None


_SHARE = Fraction(19, 47)  # of an interval: no centre of symmetry, where something may vanish by chance


def numbers_between(points: Sequence[Expr], low: Expr, high: Expr) -> list[Expr]:
    """A fraction of few digits inside each interval between the points."""
    return [_between(a, b) for a, b in pairwise([low, *points, high])]


def _between(low: Expr, high: Expr) -> Expr:
    if not low.is_finite and not high.is_finite:
        return sympy.Rational(_SHARE.numerator, _SHARE.denominator)
    start = low if low.is_finite else high - 1
    width = _fraction(high - low) if low.is_finite and high.is_finite else Fraction(1)
    inside = _fraction(start) + width * _SHARE
    short = inside.limit_denominator(int(16 / width) + 16) if width else inside
    return sympy.Rational(short.numerator, short.denominator)


def _fraction(value: Expr) -> Fraction:
    number = sympy.Rational(sympy.N(value, 40))
    return Fraction(int(number.p), int(number.q))


def random_rational(rng: np.random.Generator, limits: tuple[Expr, Expr]) -> Expr:
    """A fraction between the limits, of a moderate size where they are infinite."""
    low, high = limits
    if low.is_finite and high.is_finite:
        return low + (high - low) * sympy.Rational(int(rng.integers(1, 64)), 64)
    offset = sympy.Rational(int(rng.integers(-128, 129)), 32)
    return low + abs(offset) if low.is_finite else high - abs(offset) if high.is_finite else offset
