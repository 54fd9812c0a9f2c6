"""Elementwise atoms made of smooth pieces. At kinks the derivative is a fixed element of the subdifferential."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.trig import sin

from hierfl.atoms import narrowing
from hierfl.atoms.algebra import times
from hierfl.atoms.formulas import Expr, Scalars, as_array, entry_by_entry, exact
from hierfl.atoms.intervals import EPS, Interval
from hierfl.atoms.loaded_late import jnp, sympy
from hierfl.atoms.ranges import always_smooth, broadcast, flat_at_zero, kinked_at_zero, of_magnitudes, slopes_between
from hierfl.atoms.row import AtomRow, NoAnswerError
from hierfl.atoms.writing.latex_pen import Template
from hierfl.atoms.writing.spelling import Spelling, operands

_DECIMALS = 4  # CVXPY rounds to its ATOM_EVAL_TOL before ceil and floor
_HALF_DECIMAL = 0.5e-4


# Values


def _huber(atom: Any, value: Any, bound: Any) -> Any:
    size = jnp.abs(value)
    inner = jnp.minimum(size, bound)
    return inner**2 + 2 * bound * (size - inner)


# Range


def _range_of_huber(atom: Any, arguments: list[Interval]) -> Interval:
    """The range follows from magnitudes; of a threshold that is a parameter no more is known than 0 <= huber(v) <= v^2."""
    if isinstance(atom.M, cp.Constant):
        return of_magnitudes()(atom, arguments)
    square = arguments[0].magnitude ** 2
    return Interval(np.zeros_like(square), square * (1 + 4 * EPS))


# Curvature


def _second_of_huber(atom: Any, z: Interval, bound: Interval) -> Interval:
    inside = z.magnitude <= bound.lo
    return Interval(np.where(inside, 2.0, 0.0), np.full(z.shape, 2.0))


# Kinks


def _at_ties(atom: Any, arguments: list[Interval]) -> Interval:
    """Where two arguments are the largest (or smallest), the value is one that both can take."""
    wide = [broadcast(argument, atom.shape) for argument in arguments]
    ties = [one.meet(other) for place, one in enumerate(wide) for other in wide[:place]]
    possible = [tie.lo <= tie.hi for tie in ties]
    low = np.min([np.where(are, tie.lo, np.inf) for tie, are in zip(ties, possible)], axis=0)
    high = np.max([np.where(are, tie.hi, -np.inf) for tie, are in zip(ties, possible)], axis=0)
    return Interval(low, high)


def _below_another(atom: Any, index: int, values: Interval, arguments: list[Interval]) -> np.ndarray:
    """An argument does not count where another one is larger; one that is spread over several entries, only where all of them agree."""
    others = [argument.lo for place, argument in enumerate(arguments) if place != index]
    holds = values.hi < functools.reduce(np.maximum, others)
    return holds if holds.shape == values.shape else np.full(values.shape, bool(holds.all()))


def _above_another(atom: Any, index: int, values: Interval, arguments: list[Interval]) -> np.ndarray:
    """An argument does not count where another one is smaller."""
    return _below_another(atom, index, -values, [-argument for argument in arguments])


# Switches


def _at_zero(atom: Any) -> list[Any]:
    return [atom.args[0]]


def _between_arguments(atom: Any) -> list[Any]:
    """The largest (or smallest) of several changes where one of their differences changes sign."""
    return [a - b for place, a in enumerate(atom.args) for b in atom.args[:place]]


def _at_whole_numbers(shift: float) -> Callable[[Any], list[Any]]:
    """What is constant between whole numbers changes at them, or ``shift`` before them."""

    def switches(atom: Any) -> list[Any]:
        return [sin(np.pi * (atom.args[0] + shift))]

    return switches


# Formulas


def _huber_formula(atom: Any, value: Scalars) -> Scalars:
    if not isinstance(atom.M, cp.Constant):
        raise NoAnswerError("the threshold of {atom} is a parameter; write it as a number.")
    bound = exact(float(atom.M.value))

    def penalty(v: Expr) -> Expr:
        inner = sympy.Min(sympy.Abs(v), bound)
        return inner**2 + 2 * bound * (sympy.Abs(v) - inner)

    return as_array([penalty(v) for v in value.flat], value.shape)


_OF_EXTREMES: dict[str, Any] = {
    "slopes": slopes_between(0.0, 1.0),
    "kink_values": _at_ties,
    "switches": _between_arguments,
    "read": lambda reader, atom: reader.operation(atom, operands(reader, atom)),
}

ROWS = (
    AtomRow(
        (cp.abs,),
        narrow=lambda atom, target, arguments: [narrowing.within(target.hi)],
        lower=lambda atom, value: jnp.abs(value),  # derivative 0 at 0
        range=of_magnitudes(exact=True),
        slopes=slopes_between(-1.0, 1.0),
        kink_values=kinked_at_zero,
        switches=_at_zero,
        formula=entry_by_entry(lambda v: sympy.Abs(v)),
        spellings=(Spelling("abs", latex=Template(r"\left\vert #1 \right\vert")),),
    ),
    AtomRow(
        (cp.huber,),
        lower=_huber,
        settings=("M",),
        copy=lambda atom, rebuild: cp.huber(rebuild(atom.args[0]), rebuild(atom.M)),  # an expression beside the arguments
        range=_range_of_huber,
        second_derivative=_second_of_huber,
        smooth=always_smooth,
        flat=flat_at_zero,
        derivative=lambda atom, index, adjoint: times(times(2, adjoint), cp.maximum(cp.minimum(atom.args[0], atom.M), -atom.M)),
        switches=lambda atom: [cp.abs(atom.args[0]) - atom.M],
        crossings=lambda atom: [atom.args[0] - atom.M, atom.args[0] + atom.M],
        formula=_huber_formula,
        spellings=(Spelling("huber", {"M": 1}, r"\phi^{\mathrm{huber}}"),),
    ),
    AtomRow(
        (cp.maximum,),
        narrow=narrowing.below_largest,
        lower=lambda atom, *values: functools.reduce(jnp.maximum, values),  # at ties half of each derivative
        flat=_below_another,
        formula=entry_by_entry(lambda *values: sympy.Max(*values)),
        spellings=(Spelling("maximum", latex=r"\max"),),
        **_OF_EXTREMES,
    ),
    AtomRow(
        (cp.minimum,),
        narrow=narrowing.above_smallest,
        lower=lambda atom, *values: functools.reduce(jnp.minimum, values),
        flat=_above_another,
        formula=entry_by_entry(lambda *values: sympy.Min(*values)),
        spellings=(Spelling("minimum", latex=r"\min"),),
        **_OF_EXTREMES,
    ),
    AtomRow(
        (cp.sign,),
        lower=lambda atom, value: jnp.where(value > 0, 1.0, -1.0).astype(value.dtype),
        switches=_at_zero,
    ),
    AtomRow(
        (cp.floor,),
        lower=lambda atom, value: jnp.floor(jnp.round(value, _DECIMALS)),
        switches=_at_whole_numbers(_HALF_DECIMAL),
        spellings=(Spelling("floor", latex=Template(r"\left\lfloor #1 \right\rfloor")),),
    ),
    AtomRow(
        (cp.ceil,),
        lower=lambda atom, value: jnp.ceil(jnp.round(value, _DECIMALS)),
        switches=_at_whole_numbers(-_HALF_DECIMAL),
        spellings=(Spelling("ceil", latex=Template(r"\left\lceil #1 \right\rceil")),),
    ),
)
