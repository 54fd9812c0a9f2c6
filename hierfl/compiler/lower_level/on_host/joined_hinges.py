"""Hinges of one argument as one: c max(w, 0) + d max(-w, 0) is (c + d) max(w, 0) - d w.

Quantile losses and newsvendors are written as such sums. As two bounds they have twice as many entries of u, and where w = 0 both hold with
multipliers that are not determined; of one bound both pieces have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf

from hierfl.analysis.hoist import instantiate
from hierfl.atoms.algebra import positive_part
from hierfl.atoms.table import row_of
from hierfl.language.function import UserAtom

PROBES = 3  # random values of everything, at which expressions that are equal agree
ROUNDING = 1e-12


@dataclass(frozen=True)
class Hinge:
    """up max(w, 0) + down max(-w, 0), entry by entry, or the sum of all entries."""

    w: Expression
    up: Any
    down: Any
    summed: bool

    @classmethod
    def of(cls, part: Any) -> Hinge | None:
        """A hinge, or an absolute value, with factors and a sum around it; None where it is neither."""
        if (w := positive_part(part)) is not None:
            return cls(w, 1.0, 0.0, False)
        if isinstance(part, NegExpression):
            return cls._scaled(part.args[0], -1.0)
        if isinstance(part, cp.Sum) and part.axis is None and part.shape == ():
            inner = cls.of(part.args[0])
            return None if inner is None or inner.summed else cls(inner.w, inner.up, inner.down, True)
        if row_of(part).product and len(part.args) == 2:
            for factor, other in (part.args, part.args[::-1]):
                if factor.shape == () and (found := cls._scaled(other, factor)) is not None:
                    return found
            return None
        return cls(part.args[0], 1.0, 1.0, False) if isinstance(part, cp.abs) else None

    @classmethod
    def _scaled(cls, part: Any, factor: Any) -> Hinge | None:
        inner = cls.of(part)
        return None if inner is None else cls(inner.w, factor * inner.up, factor * inner.down, inner.summed)

    def flipped(self) -> Hinge:
        """The same, told by -w."""
        return Hinge(-self.w, self.down, self.up, self.summed)


def with_joined_hinges(parts: Sequence[Any], y: set[int]) -> list[Any]:
    """The parts of a sum, with hinges of the same argument, up to its sign, as one and a linear part."""
    out: list[Any] = []
    groups: list[tuple[list[Hinge], list[Any]]] = []
    for part in parts:
        hinge = Hinge.of(part)
        if hinge is None or any(v.id in y for factor in (hinge.up, hinge.down) for v in _variables(factor)):
            out.append(part)
            continue
        for hinges, written in groups:
            like = _like(hinges[0], hinge)
            if like is not None:
                hinges.append(like)
                written.append(part)
                break
        else:
            groups.append(([hinge], [part]))
    for hinges, written in groups:
        out.append(written[0] if len(hinges) == 1 else _joined(hinges))
    return out


def _joined(hinges: Sequence[Hinge]) -> Expression:
    up, down = sum(one.up for one in hinges), sum(one.down for one in hinges)
    w = hinges[0].w
    largest, linear = cp.maximum(w, 0), w
    if hinges[0].summed:
        largest, linear = cp.sum(largest), cp.sum(linear)
    return (up + down) * largest - down * linear


def _like(first: Hinge, other: Hinge) -> Hinge | None:
    """The other one told by the first one's argument; None where it has another."""
    if first.summed != other.summed or first.w.shape != other.w.shape:
        return None
    if first.w is other.w or _agree(first.w, other.w):
        return other
    return other.flipped() if _agree(first.w, -other.w) else None


def _agree(one: Expression, other: Expression) -> bool:
    """Whether two expressions that are polynomials of all that is in them are equal at random values: others are so with probability zero."""
    if not (_is_polynomial(one) and _is_polynomial(other)):
        return False
    leaves = {leaf.id: leaf for e in (one, other) for leaf in (*e.variables(), *e.parameters())}
    rng = np.random.default_rng(0)
    for _ in range(PROBES):
        values = {leaf: rng.normal(size=leaf.shape) for leaf in leaves.values()}
        first, second = (e.value for e in instantiate([one, other], values))
        if not np.allclose(first, second, rtol=ROUNDING, atol=ROUNDING):
            return False
    return True


def _is_polynomial(expression: Any) -> bool:
    """Whether only sums, products and picked entries are in it: what has pieces may agree with another wherever one looks."""
    if isinstance(expression, Leaf):
        return True
    made = isinstance(expression, AffAtom) and not isinstance(expression, UserAtom)
    return made and all(map(_is_polynomial, expression.args))


def _variables(factor: Any) -> list[Any]:
    return list(factor.variables()) if isinstance(factor, Expression) else []
