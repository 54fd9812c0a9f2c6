"""Real zeros of expressions in one symbol, and numbers between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import sympy

from hierfl.errors import SymbolicError

Expr = Any


def degree(expr: Expr, symbol: Expr) -> int:
    """Degree in the symbol; very large for what is no polynomial."""
    return int(sympy.degree(expr, symbol)) if expr.is_polynomial(symbol) else 1000


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


def numbers_between(points: Sequence[Expr], low: Expr, high: Expr) -> list[Expr]:
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
