"""Largest and smallest entries, sums of the largest, and sorting. Programs restore ``keepdims`` from the declared shape."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.max import max as max_entries
from cvxpy.atoms.min import min as min_entries
from cvxpy.settings import ATOM_EVAL_TOL

from hierfl.atoms import narrowing
from hierfl.atoms.formulas import Expr, Scalars, exact, reduced, reduction
from hierfl.atoms.loaded_late import jax, jnp, safe, sympy
from hierfl.atoms.ranges import slopes_between
from hierfl.atoms.row import AtomRow
from hierfl.atoms.writing.latex_pen import LatexPen, Template, subscriptable
from hierfl.atoms.writing.pen import PRODUCT, Written
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Spelling

FEW, MANY = 16, 64  # entries, whose differences are few enough to look at every one: where a law bends, and at a point


# Values


def _sum_of_largest(atom: Any, value: Any) -> Any:
    ordered = jnp.sort(safe.reduced_first(value, atom.axis), axis=0)[::-1]
    whole = int(np.floor(atom.k))
    total = jnp.sum(ordered[:whole], axis=0)
    return total + float(atom.k - whole) * ordered[whole] if whole < ordered.shape[0] else total


def _dot_of_sorted(atom: Any, value: Any, weights: Any) -> Any:
    padded = jnp.pad(jnp.ravel(weights), (0, jnp.size(value) - jnp.size(weights)))
    return jnp.sort(jnp.ravel(value)) @ jnp.sort(padded)


def _length(atom: Any, value: Any) -> Any:
    """Position of the last entry that is not (nearly) zero, from 1; 0 if there is none."""
    flat = jnp.ravel(value)
    places = jnp.arange(1, flat.shape[0] + 1)
    return jnp.max(jnp.where(jnp.abs(flat) > ATOM_EVAL_TOL, places, 0)).astype(value.dtype)


# Switches


def _from_extreme(atom: Any) -> list[Any]:
    """How far every entry is from the largest, or the smallest."""
    return [atom.args[0] - type(atom)(atom.args[0], axis=atom.axis, keepdims=atom.axis is not None)]


def _from_kth(atom: Any) -> list[Any]:
    """The entries less the k-th largest, as those that tie with it decide; for a fractional k, less those on either side of it too."""
    x, apart = atom.args[0], {"axis": atom.axis, "keepdims": atom.axis is not None}
    most = x.size if atom.axis is None else x.shape[atom.axis]

    def kth(k: int) -> Any:
        return cp.sum_largest(x, k, **apart) - (cp.sum_largest(x, k - 1, **apart) if k > 1 else 0)

    return [x - kth(k) for k in sorted({int(np.floor(atom.k)), int(np.ceil(atom.k))}) if 0 < k < most]


def _from_largest_before(atom: Any) -> list[Any]:
    """How far every entry but the first is from the largest before it."""
    rows, so_far = (atom.args[0], atom) if atom.axis == 0 else (atom.args[0].T, atom.T)
    return [rows[1:] - so_far[:-1]] if rows.shape[0] > 1 else []


def differences(atom: Any, most: int = FEW) -> list[Any]:
    """Of every two entries; none for an atom along an axis, or of too many."""
    if getattr(atom, "axis", None) is not None or atom.args[0].size > most:
        return []
    entries = cp.vec(atom.args[0], order="F")
    before, after = np.triu_indices(entries.size, k=1)
    return [entries[before] - entries[after]] if before.size else []


# Formulas


def _formula_of_largest(atom: Any, value: Scalars) -> Scalars:
    """k t + sum of max(v - t, 0) is least at an entry t: the sum of the k largest, for fractional k as well."""

    def total(entries: list[Expr]) -> Expr:
        k = exact(min(float(atom.k), len(entries)))
        return sympy.Min(*(k * t + sympy.Add(*(sympy.Max(v - t, 0) for v in entries)) for t in entries))

    return reduced(atom, value, total)


# Notation


def _latex_of_largest(pen: LatexPen, phrase: Phrase) -> Written:
    """Order statistics in brackets: x_[1] is the largest entry."""
    (argument,) = phrase.args
    count = phrase.option("k")
    if phrase.option("axis") is not None or int(count) != count:
        return pen.operator(phrase, r"\operatorname{sumlargest}")
    return Written(rf"\sum_{{j=1}}^{{{int(count)}}} {subscriptable(pen, argument)}_{{[j]}}", PRODUCT)


_SORTED = r"\operatorname{sort}\left(#1\right)^{\top} \, \operatorname{sort}\left(#2\right)"
_OF_EXTREMES: dict[str, Any] = {"slopes": slopes_between(0.0, 1.0), "switches": _from_extreme, "crossings": differences}

ROWS = (
    AtomRow(
        (max_entries,),
        lower=lambda atom, value: safe.first_largest(value, atom.axis),
        narrow=narrowing.below_largest,
        formula=reduction(lambda atom, entries: sympy.Max(*entries)),
        spellings=(Spelling("max", latex=r"\max"),),
        **_OF_EXTREMES,
    ),
    AtomRow(
        (min_entries,),
        lower=lambda atom, value: -safe.first_largest(-value, atom.axis),
        narrow=narrowing.above_smallest,
        formula=reduction(lambda atom, entries: sympy.Min(*entries)),
        spellings=(Spelling("min", latex=r"\min"),),
        **_OF_EXTREMES,
    ),
    AtomRow(
        (cp.cummax,),
        lower=lambda atom, value: jax.lax.cummax(value, axis=atom.axis % jnp.ndim(value)),
        switches=_from_largest_before,
        spellings=(Spelling("cummax", {"axis": 0}),),
    ),
    AtomRow(
        (cp.sum_largest,),
        lower=_sum_of_largest,
        switches=_from_kth,
        crossings=differences,
        formula=_formula_of_largest,
        spellings=(Spelling("sum_largest", {"k": None}, _latex_of_largest),),
    ),
    AtomRow(
        (cp.dotsort,),
        lower=_dot_of_sorted,
        switches=lambda atom: differences(atom, MANY),
        opaque=True,
        spellings=(Spelling("dotsort", latex=Template(_SORTED, PRODUCT)),),
    ),
    AtomRow((cp.length,), lower=_length),
)
