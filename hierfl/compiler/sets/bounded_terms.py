"""Bounded terms ``scale * function <= bound``: the few convex functions that CVXPY's many spellings of a set come down to.

``read_atoms`` reads them, ``families`` recognise them. Arguments are affine in y. ``refusal`` says why no family took a term.
"""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
from cvxpy.expressions.expression import Expression


@dataclass(frozen=True, eq=False)
class Norm:
    """The norm of ``order`` 1 or 2, or its square, of the whole argument or along an axis."""

    order: float
    argument: Expression
    axis: int | None = None
    squared: bool = False
    refusal: str = "norms below a bound that moves with y"


@dataclass(frozen=True, eq=False)
class LargestEigenvalue:
    """The largest eigenvalue of a symmetric matrix."""

    argument: Expression
    refusal: str = "an eigenvalue"


@dataclass(frozen=True, eq=False)
class Semidefinite:
    """A matrix that is positive semidefinite; its bound is 0."""

    argument: Expression
    refusal: str = "a semidefinite matrix"


@dataclass(frozen=True, eq=False)
class LargestEntry:
    """The largest entry of the arguments, which are broadcast against each other and against the bound."""

    arguments: tuple[Expression, ...]
    refusal: str = "a largest entry"


@dataclass(frozen=True, eq=False)
class Unread:
    """Any other function."""

    refusal: str


@dataclass(frozen=True, eq=False)
class BoundedTerm:
    """``scale * function <= bound`` with an affine bound; the y-free ``scale`` >= 0 is None for 1."""

    function: Norm | LargestEigenvalue | Semidefinite | LargestEntry | Unread
    bound: Expression
    scale: Expression | None = None

    def scaled(self, argument: Expression) -> Expression:
        """The argument times the scale."""
        return argument if self.scale is None else cp.multiply(self.scale, argument)
