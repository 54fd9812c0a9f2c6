"""Bounded terms ``scale * function <= bound``: the few convex functions that CVXPY's many spellings of a set come down to.

``read_atoms`` reads them, ``families`` recognise them. Arguments are affine in y. ``refusal`` says why no family took a term.
"""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
from cvxpy.atoms.atom import Atom
from cvxpy.expressions.expression import Expression


@dataclass(frozen=True, eq=False)
class Norm:
    """The norm of ``order`` 1, 2 or infinity, of the whole argument or along an axis."""

    order: float
    argument: Expression
    axis: int | None
    refusal: str = "norms below a bound that moves with y"


@dataclass(frozen=True, eq=False)
class NormSum:
    """The sum of the Euclidean norms along an axis."""

    argument: Expression
    axis: int | None
    refusal: str = "a weighted sum of norms, or one below a bound that moves with y"


@dataclass(frozen=True, eq=False)
class Squares:
    """The sum of the squares of all entries."""

    argument: Expression
    refusal: str = "squares"


@dataclass(frozen=True, eq=False)
class SquaresOver:
    """The sum of the squares over an affine denominator that moves with y."""

    argument: Expression
    denominator: Expression
    refusal: str = "quad_over_lin"


@dataclass(frozen=True, eq=False)
class SpectralNorm:
    """The largest singular value of a matrix."""

    argument: Expression
    refusal: str = "the atom sigma_max below a bound that moves with y"


@dataclass(frozen=True, eq=False)
class NuclearNorm:
    """The sum of the singular values of a matrix."""

    argument: Expression
    refusal: str = "the atom normNuc below a bound that moves with y"


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
    """Any other atom, for families that look at it themselves."""

    atom: Atom
    refusal: str


BoundedFunction = (
    Norm
    | NormSum
    | Squares
    | SquaresOver
    | SpectralNorm
    | NuclearNorm
    | LargestEigenvalue
    | Semidefinite
    | LargestEntry
    | Unread
)


@dataclass(frozen=True, eq=False)
class BoundedTerm:
    """``scale * function <= bound`` with an affine bound; the y-free ``scale`` >= 0 is None for 1."""

    function: BoundedFunction
    bound: Expression
    scale: Expression | None = None

    @property
    def bound_moves(self) -> bool:
        """Whether y is in the bound."""
        return bool(self.bound.variables())

    def scaled(self, argument: Expression) -> Expression:
        """The argument times the scale."""
        return argument if self.scale is None else cp.multiply(self.scale, argument)

    def root_scaled(self, argument: Expression) -> Expression:
        """The argument times the root of the scale, for functions that square it."""
        return argument if self.scale is None else cp.multiply(cp.sqrt(self.scale), argument)

    def norm_below_moving_number(self, order: float) -> Expression | None:
        """The scaled argument of one norm of this order below a single bound that moves with y; None for other terms."""
        norm = self.function
        if not (isinstance(norm, Norm) and norm.order == order and norm.axis is None):
            return None
        return self.scaled(norm.argument) if self.bound_moves and self.bound.size == 1 else None
