"""What a convex constraint consists of, still as CVXPY expressions: affine rows and memberships ``A y + b in C``."""

from __future__ import annotations

from dataclasses import dataclass

from cvxpy.expressions.expression import Expression

from hierfl.compiler.sets.families.family import Membership


@dataclass(frozen=True)
class AffineRows:
    """``expression <= 0`` (or ``== 0``), affine in y, element by element."""

    expression: Expression
    equality: bool


@dataclass(frozen=True)
class Other:
    """A convex constraint without a closed form; ``reason`` says what it is."""

    reason: str


Piece = AffineRows | Membership | Other
