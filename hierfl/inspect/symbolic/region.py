"""What the known bounds of x say about the sign of SymPy expressions, and which branches they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import sympy

Expr = Any
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
        """The conditions as a SymPy Boolean."""
        return sympy.And(*(condition >= 0 for condition in self.conditions))

    def limits(self, symbol: Expr) -> tuple[Expr, Expr]:
        """The bounds of a symbol."""
        return self.bounds.get(symbol, (-sympy.oo, sympy.oo))

    def has_inside_box(self, point: Mapping[Expr, Expr]) -> bool:
        """Whether a point, some coordinates of which may be missing, is inside the box and not on its boundary."""
        limits = ((value, self.limits(symbol)) for symbol, value in point.items())
        return all(bool(low < value) and bool(value < high) for value, (low, high) in limits)

    def contains(self, point: Mapping[Expr, Expr]) -> bool:
        """Whether the point is in the box and satisfies the conditions."""
        boxed = all(low <= point[symbol] <= high for symbol, (low, high) in self.bounds.items())
        return boxed and bool(self.domain.subs(point))

    def nonnegative(self, expr: Expr) -> bool:
        """Whether expr >= 0 is proved on the whole box; False if it is not known."""
        lowest = self._lowest(expr)
        return bool(lowest >= 0) if lowest is not None else self._shifted(expr, "is_nonnegative")

    def positive(self, expr: Expr) -> bool:
        """Whether expr > 0 is proved on the whole box; False if it is not known."""
        lowest = self._lowest(expr)
        return bool(lowest > 0) if lowest is not None else self._shifted(expr, "is_positive")

    def simplified(self, expr: Expr) -> Expr:
        """The expression without the branches of maxima, minima and absolute values that the box rules out."""
        return map_branching(expr, self._live_branches)

    def _lowest(self, expr: Expr) -> Expr | None:
        """The least value of an affine expression; None for others."""
        symbols = sorted(expr.free_symbols, key=str)
        if not symbols:
            return expr
        try:
            affine = sympy.Poly(expr, *symbols)
        except sympy.PolynomialError:
            return None
        if affine.total_degree() > 1:
            return None
        lowest = affine.coeff_monomial(1)
        for symbol in symbols:
            slope = affine.coeff_monomial(symbol)
            lowest += slope * self.limits(symbol)[0 if slope > 0 else 1] if slope != 0 else 0
        return lowest

    def _shifted(self, expr: Expr, question: str) -> bool:
        """SymPy's answer when every symbol is written as its low end plus, or its high end minus, something nonnegative."""
        return any(getattr(sympy.expand(expr.xreplace(self._substitution(expr, end))), question) for end in (0, 1))

    def _substitution(self, expr: Expr, end: int) -> dict[Expr, Expr]:
        finite = ((s, self.limits(s)[end]) for s in expr.free_symbols if self.limits(s)[end].is_finite)
        return {s: value + (1 - 2 * end) * sympy.Dummy(nonnegative=True) for s, value in finite}

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


def map_branching(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The expression with every branching node replaced, innermost first."""
    return expr.replace(lambda node: isinstance(node, BRANCHING), change)
