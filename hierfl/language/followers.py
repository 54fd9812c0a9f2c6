"""Several followers: lower levels that answer x one after another, a later one given the answers before; each may ignore those."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
from cvxpy.expressions.expression import Expression

from hierfl.language.levels import LowerLevel


class Followers(LowerLevel):
    """Levels of one scope, each of which answers x and the y of those before it."""

    kind = "sequence"

    def __init__(self, levels: Sequence[LowerLevel]) -> None:
        self.levels = tuple(levels)
        self.scope = self.levels[0].scope
        self.variables = tuple(v for level in levels for v in level.variables)
        self.expressions = tuple(e for level in levels for e in level.expressions)
        self.constraints = tuple(c for level in levels for c in level.constraints)
        self.prices = tuple(p for level in levels for p in level.prices)
        self.same_prices = tuple(same for level in levels for same in level.same_prices)
        self.selection = self.levels[-1].selection

    @property
    def declared(self) -> tuple[Expression, ...]:
        return tuple(e for level in self.levels for e in level.declared)

    @property
    def decided(self) -> tuple[cp.Variable, ...]:
        return tuple(v for level in self.levels for v in level.decided)

    def before(self, place: int) -> tuple[cp.Variable, ...]:
        """What a level is given besides x: the answers of those before it, prices that are mentioned among them."""
        return tuple(v for level in self.levels[:place] for v in level.variables)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.levels))}]"
