"""The row of an atom: all that hierfl knows of it beyond what CVXPY's class says itself.

Only ``classes`` must be given, and of an atom of one's own ``lower`` where it is to be computed. A field that is left out stands for the honest default named beside it, which holds for
every atom: compiled by nobody, no bound on the curvature, differentiated by JAX, without pieces, written under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import numpy as np
from cvxpy.atoms.atom import Atom
from cvxpy.expressions.expression import Expression

from hierfl.atoms.intervals import Interval
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Reader, Spelling

Parts = Sequence[Expression | None]
Rebuild = Callable[[Sequence[Expression]], Expression]


class CurvatureSearch(Protocol):
    """What the search for quadratic bounds of a Hessian tells the rule of an atom."""

    def bound(self, node: Any, upper: bool) -> Expression | None:
        """A quadratic of the node's shape whose Hessian is on that side of the node's."""

    def scaled(
        self, node: Any, factor: Any, part: Any, upper: bool, join: Callable[[Any, Any], Any]
    ) -> Expression | None:
        """A bound of ``join(factor, part)`` for a factor without kept variables."""

    def by_second_derivative(self, node: Any, upper: bool) -> Expression | None:
        """A bound from the range of the atom's second derivative, for an atom of one argument."""

    def range_of(self, node: Any) -> Interval:
        """An interval that contains the node's values."""

    def has_kept(self, node: Any) -> bool:
        """Whether the variables of the Hessian occur in the node."""

    def is_moved(self, node: Any) -> bool:
        """Whether other variables enter the coefficients of the kept ones."""

    def is_affine(self, node: Any) -> bool:
        """Whether the node is affine in the kept variables."""


class NoAnswerError(Exception):
    """The row has no answer for this atom as it stands; the message names the atom as ``{atom}``."""


@dataclass(frozen=True)
class AtomRow:
    """What hierfl knows of an atom.

    Attributes
    ----------
    classes
        The CVXPY classes that the row describes; empty for an atom that is none of CVXPY's, whose class carries the row as ``atom_row``.
    lower
        The JAX function ``(atom, *argument values, *setting values) -> value``; None for an atom that is not compiled.
    settings
        Attributes of the atom that hold expressions beside ``args`` (the ``M`` of huber): they may be parameters.
    shared
        Whether two atoms of equal arguments and ``get_data()`` are the same function, so that they run once.
    inside
        Expressions over variables of their own that the atom holds. ``lower`` is then
        ``(atom, programs, *argument values)``, each program a function of an environment.
    refusal
        Why no instance of the classes is compiled.
    refusal_of
        Why this instance is not compiled; None where it is.
    only_compiled
        Whether CVXPY cannot evaluate it: its value exists in a compiled problem only.
    layout
        Whether it only moves, repeats or picks entries.
    entrywise
        Whether an entry of the value depends on the arguments' entries of its place alone; CVXPY's ``Elementwise`` are
        such without saying so.
    copy
        ``(atom, rebuild)``: the atom over rebuilt arguments, where CVXPY's own ``copy`` loses a setting or misses
        expressions that the atom holds. Default: CVXPY's own.
    product
        Whether its arguments multiply one another, although CVXPY counts it as affine.
    keeps_rows
        Whether row j of this instance depends on row j of its argument alone; default never, but for entrywise ones.
    range
        ``(atom, intervals of the arguments)``: an interval that contains the values, whatever values parameters among its
        ``settings`` take. Default: by monotonicity.
    slopes
        ``(atom, intervals of the arguments)``: an interval that contains the partial derivatives, Clarke's at kinks;
        None where unbounded, as is the default.
    curvature
        ``(search, atom, upper)``: a quadratic whose Hessian is on that side. Default: by the second derivative.
    second_derivative
        ``(atom, interval of the argument, *intervals of the settings)`` for an elementwise atom. Default: unbounded.
    majorant
        ``(atom, parts, rebuild)``: the atom with all coefficients in absolute value. ``parts`` are the arguments' majorants,
        None for those without variables of the quadratic; ``rebuild`` is the atom over other arguments. Default: none
        follows, but for affine atoms with nonnegative coefficients.
    smooth
        ``(atom, which arguments vary, enclosure)``: whether the gradient is locally Lipschitz wherever the enclosure's
        bounds hold. Default: for affine atoms only.
    twice_smooth
        ``(atom,)``: whether it is twice continuously differentiable inside its domain. Default: affine atoms only.
    narrow
        ``(atom, interval of the values, intervals of the arguments)``: what the values say about each argument, None for
        nothing, as is the default (but for atoms of ``layout``).
    derivative
        ``(atom, index, adjoint)``: the adjoint of an argument as an expression, None to leave it to JAX, as is the default.
    kink_values
        ``(atom, intervals of the arguments)``: an interval that contains its values where it has no gradient, for an atom with kinks
        that is Lipschitz continuous. Default: unbounded.
    flat
        ``(atom, index, values, intervals of the arguments)``: in which entries of an argument the partial derivative vanishes, and is
        continuous, wherever the entry takes one of these values. Default: nowhere.
    switches
        Expressions that change sign where it changes its branch. Default: none.
    crossings
        ``(atom,)``: expressions that are affine in the arguments and change sign wherever it changes its branch, perhaps elsewhere too;
        none where there would be too many. Default: its switches.
    opaque
        Whether it has pieces that no switch tells apart, where it has no switches; so for an atom from outside without ``smooth`` and ``switches``.
    formula
        ``(atom, *arrays of SymPy scalars)``: its value. Default: for affine atoms only.
    read
        ``(reader, atom)``: the phrase that a user meant by it. Default: a function of its arguments, named by the first
        spelling, else by the class.
    spellings
        How the phrases that ``read`` makes of it are written.
    """

    classes: tuple[type, ...] = ()
    lower: Callable[..., Any] | None = None
    settings: tuple[str, ...] = ()
    shared: bool = True
    inside: Callable[[Any], tuple[Expression, ...]] | None = None
    refusal: str | None = None
    refusal_of: Callable[[Any], str | None] | None = None
    only_compiled: bool = False
    copy: Callable[[Any, Callable[[Any], Any]], Any] | None = None
    layout: bool = False
    entrywise: bool = False
    product: bool = False
    keeps_rows: Callable[[Any], bool] | None = None
    range: Callable[[Any, list[Interval]], Interval] | None = None
    slopes: Callable[[Any, Sequence[Interval]], Interval | None] | None = None
    curvature: Callable[[CurvatureSearch, Any, bool], Expression | None] | None = None
    second_derivative: Callable[..., Interval] | None = None
    majorant: Callable[[Any, Parts, Rebuild], Expression | None] | None = None
    smooth: Callable[[Any, Sequence[bool], Callable[[Any], Interval]], bool] | None = None
    twice_smooth: Callable[[Any], bool] | None = None
    narrow: Callable[[Any, Interval, list[Interval]], list[Interval | None]] | None = None
    derivative: Callable[[Any, int, Expression], Expression | None] | None = None
    kink_values: Callable[[Any, list[Interval]], Interval] | None = None
    flat: Callable[[Any, int, Interval, list[Interval]], np.ndarray] | None = None
    switches: Callable[[Any], list[Any]] | None = None
    crossings: Callable[[Any], list[Any]] | None = None
    opaque: bool = False
    formula: Callable[..., Any] | None = None
    read: Callable[[Reader, Any], Phrase] | None = None
    spellings: tuple[Spelling, ...] = ()

    @property
    def kinked(self) -> bool:
        """Whether it has points without a gradient: where it changes its branch, unless it is smooth there as well."""
        return (self.switches is not None or self.opaque) and self.smooth is None

    def branches(self, atom: Any) -> bool:
        """Whether an atom has branches, or may have: random points see some of them."""
        return self.opaque or bool(self.switches and self.switches(atom))


class Unknown(Atom):
    """Base of atoms of which CVXPY is told neither sign nor monotonicity, and which are not concave."""

    def sign_from_args(self) -> tuple[bool, bool]:
        return False, False

    def is_atom_concave(self) -> bool:
        return False

    def is_incr(self, idx: int) -> bool:
        return False

    def is_decr(self, idx: int) -> bool:
        return False


class OnlyCompiled(Atom):
    """Base of atoms that CVXPY can neither evaluate nor solve: whatever asks for a number is refused, in words of the atom's own."""

    @property
    def value(self) -> Any:
        return self._refuse()

    def numeric(self, values: Any) -> Any:
        return self._refuse()

    def canonicalize(self) -> Any:
        return self._refuse()

    def _grad(self, values: Any) -> Any:
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotImplementedError


PLAIN = AtomRow()
"""The row of a class that has none: all defaults."""


def own_row(kind: type) -> AtomRow | None:
    """The row that a class carries which is none of CVXPY's; one from outside hierfl that says nothing of kinks may have some."""
    row: AtomRow | None = getattr(kind, "atom_row", None)
    if not isinstance(row, AtomRow) or kind.__module__.startswith("hierfl."):
        return row
    return row if any(said is not None for said in (row.smooth, row.twice_smooth, row.switches)) else replace(row, opaque=True)
