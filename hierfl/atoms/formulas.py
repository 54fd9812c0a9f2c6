"""SymPy formulas of atoms: what several rows share. Numbers become fractions, 0.1 is 1/10."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.sparse as sp

from hierfl.atoms.loaded_late import sympy

Expr = Any  # a SymPy expression; SymPy has no types of its own
Scalars = np.ndarray  # of SymPy expressions, dtype object
_LARGEST_DENOMINATOR = 1000


def exact(value: float) -> Expr:
    """The number as a fraction: the nearest one of a small denominator if it rounds to the float, else its decimals."""
    value = float(value)
    if not np.isfinite(value):
        return sympy.oo if value > 0 else -sympy.oo
    near = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
    if abs(float(near) - value) <= 2e-16 * abs(value):
        return sympy.Rational(near.numerator, near.denominator)
    return sympy.Rational(repr(value))


def exact_array(value: Any) -> Scalars:
    """An array of floats as fractions."""
    dense = np.asarray(value.toarray() if sp.issparse(value) else value, dtype=float)
    return as_array([exact(entry) for entry in dense.ravel()], dense.shape)


def as_array(entries: Any, shape: tuple[int, ...]) -> Scalars:
    """SymPy expressions, in C order, as an array."""
    array = np.empty(len(entries), dtype=object)
    array[:] = entries
    return array.reshape(shape)


def entry_by_entry(function: Callable[..., Expr]) -> Callable[..., Scalars]:
    """The formula of an elementwise atom, from that of an entry."""

    def formula(atom: Any, *values: Scalars) -> Scalars:
        entries = np.broadcast_arrays(*values)
        return as_array([function(*entry) for entry in zip(*(e.ravel() for e in entries))], entries[0].shape)

    return formula


def reduction(function: Callable[..., Expr]) -> Callable[..., Scalars]:
    """The formula of an atom along axes, from ``function(atom, list of entries, *scalars)``."""

    def formula(atom: Any, value: Scalars, *others: Scalars) -> Scalars:
        return reduced(atom, value, lambda entries: function(atom, entries, *(o.ravel()[0] for o in others)))

    return formula


def reduced(atom: Any, value: Scalars, function: Callable[[list[Expr]], Expr]) -> Scalars:
    """A function of the entries along the atom's axis."""
    axis = getattr(atom, "axis", None)
    axes = tuple(range(value.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    last = np.moveaxis(value, axes, range(-len(axes), 0)) if axes else value.reshape(1)
    kept = last.shape[: value.ndim - len(axes)]
    rows = last.reshape(int(np.prod(kept)), -1)
    return as_array([function(list(row)) for row in rows], kept)
