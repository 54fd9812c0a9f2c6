"""Branches of piecewise expressions: where they meet, which one is active, and exact one-sided derivatives.

Along a line x + t d every maximum, minimum and absolute value keeps one branch for small t > 0: the one that the first
nonzero Taylor coefficient of a difference of branches decides. What is left is smooth, and its derivative at t = 0 is the
one-sided one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
from sympy.core.relational import Relational

from hierfl.inspect.symbolic.region import BRANCHING

Expr = Any
Point = Mapping[Expr, Expr]
SignOf = Callable[[Expr], int | None]  # of a difference of branches; None where it is not decided
_TAYLOR_TERMS = 8
_DIGITS = 50  # zero to so many digits counts as zero


def one_sided_derivatives(expr: Expr, point: Point, direction: Point) -> tuple[Expr, Expr]:
    """(left, right) derivatives at t = 0 of the expression at ``point + t direction``."""
    t = sympy.Dummy("t", positive=True)

    def slope(sign: int) -> Expr:
        line = {symbol: value + sign * t * direction[symbol] for symbol, value in point.items()}
        active = resolved(expr, lambda difference: sign_near_zero(difference.xreplace(line), t))
        return _slope(sign * active.xreplace(line), t)

    return slope(-1), slope(1)


def shortest(expr: Expr) -> Expr:
    """The shortest of a few ways to write the expression."""
    return min((sympy.factor(expr), sympy.expand(expr), expr), key=sympy.count_ops)


def switches(expr: Expr) -> tuple[Expr, ...]:
    """Irreducible factors of the differences of branches: their signs decide which branch is active."""
    conditions: dict[Expr, None] = {}
    for node in sympy.preorder_traversal(expr):
        for difference in _differences(node):
            conditions |= dict.fromkeys(irreducible_factors(difference))
    return tuple(conditions)


def _differences(node: Expr) -> Iterator[Expr]:
    if isinstance(node, (sympy.Max, sympy.Min)):
        first = list(node.args)
        yield from (a - b for place, a in enumerate(first) for b in first[place + 1 :])
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
    if isinstance(node, sympy.Abs):
        branches = [node.args[0], -node.args[0]]
    else:
        branches = [b[0] if isinstance(node, sympy.Piecewise) else b for b in node.args]
    return [expr.xreplace({node: branch}) for branch in branches]


def roots_in(expr: Expr) -> tuple[Expr, ...]:
    """Bases of fractional powers below 1: where one vanishes, the power may have a kink."""
    powers = (node for node in expr.atoms(sympy.Pow) if node.exp.is_Rational and not node.exp.is_Integer)
    return tuple({power.base: None for power in powers if power.exp < 1 and power.base.free_symbols})


def resolved(expr: Expr, sign_of: SignOf) -> Expr:
    """The expression with its active branches only; what ``sign_of`` leaves open stays as cases."""
    if not expr.has(*BRANCHING):
        return expr
    if isinstance(expr, sympy.Piecewise):
        return _active_piece(expr, sign_of)
    args = [resolved(arg, sign_of) for arg in expr.args]
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
        cases.append((resolved(branch, sign_of), holds))
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


def sign_near_zero(expr: Expr, t: Expr) -> int | None:
    """Sign for small t > 0, by the first nonzero Taylor coefficient; None where other symbols decide it."""
    coefficient = sympy.expand(expr)
    for _ in range(_TAYLOR_TERMS):
        if coefficient == 0:
            return 0
        start = sympy.expand(coefficient.subs(t, 0))
        if start.is_number:
            sign = sign_of_number(start)
            if sign != 0:
                return sign
        elif sympy.simplify(start) != 0:
            return None
        coefficient = sympy.expand(sympy.diff(coefficient, t))
    return 0 if sympy.simplify(expr) == 0 else None


def sign_of_number(value: Expr) -> int | None:
    """Sign of a number, by fifty digits of it; None for one that is not real."""
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


def branch_at(expr: Expr, point: Point) -> Expr:
    """The expression with the branches that are active at a point at which none meet."""
    return resolved(expr, lambda difference: sign_of_number(difference.xreplace(dict(point))))
