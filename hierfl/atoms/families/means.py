"""Products of entries, geometric means and ratios of distances."""

from __future__ import annotations

import operator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.cumprod import cumprod
from cvxpy.atoms.geo_mean import GeoMean, GeoMeanApprox
from cvxpy.atoms.prod import Prod

from hierfl.atoms.formulas import entry_by_entry, reduction
from hierfl.atoms.intervals import Interval
from hierfl.atoms.loaded_late import jnp, safe, sympy
from hierfl.atoms.row import AtomRow
from hierfl.atoms.writing.latex_pen import LatexPen, Template, raised
from hierfl.atoms.writing.pen import ATOM, POWER, PRODUCT, SUM, Written
from hierfl.atoms.writing.phrase import Phrase, value_phrase
from hierfl.atoms.writing.spelling import Reader, Spelling

# Values


def _geometric_mean(atom: Any, value: Any) -> Any:
    """NaN below 0, as in CVXPY; at the origin its gradient is the weights, elsewhere a zero entry has infinite slope."""
    kept = safe.reduced_first(value, atom.axis, order="F")[np.asarray(atom._keep)]
    if kept.shape[0] == 1:
        return kept[0]
    weights = jnp.asarray([float(w) for w in atom.w], value.dtype)
    zero = kept == 0
    inside = jnp.exp(jnp.tensordot(weights, jnp.log(jnp.where(zero, 1.0, kept)), axes=1))
    edge = jnp.sum(jnp.where(zero, safe.steep(kept), 0.0), axis=0)
    origin = jnp.tensordot(weights, jnp.where(zero, kept, 0.0), axes=1)
    broken = jnp.where(jnp.all(zero, axis=0), origin, edge)
    negative = jnp.any(kept < 0, axis=0)
    return jnp.where(negative, jnp.nan, jnp.where(jnp.any(zero, axis=0), broken, inside))


# Ranges and formulas


def _range_of_cumulative_product(atom: Any, arguments: list[Interval]) -> Interval:
    """Although CVXPY counts it as increasing: of both signs it is not."""
    axis = atom.axis or 0  # without one it is of a vector
    low, high = (np.moveaxis(end, axis, 0) for end in (arguments[0].lo, arguments[0].hi))
    products = list(accumulate(map(Interval, low, high), operator.mul))
    ends = ([p.lo for p in products], [p.hi for p in products])
    return Interval(*(np.moveaxis(np.stack(end), 0, axis) for end in ends))


# Notation


def _read_geometric_mean(reader: Reader, atom: Any) -> Phrase:
    phrase = reader.operation(atom, (reader(atom.args[0]),))
    weights = atom.get_data()[0]
    if weights is None or len(set(weights)) == 1:
        return phrase
    return replace(phrase, options=(("p", value_phrase(np.asarray(weights, dtype=float))), *phrase.options))


def _latex_of_geometric_mean(pen: LatexPen, phrase: Phrase) -> Written:
    """The n-th root of a product; weights are powers in it."""
    (argument,) = phrase.args
    weights = phrase.option("p")
    if phrase.option("axis") is not None:
        return pen.operator(phrase)
    if weights is None:
        factors, degree = pen.text(argument), f"{np.prod(argument.shape):.0f}"
    else:
        base = pen.at(argument, ATOM)
        factors, degree = raised(base, pen.text(weights), elementwise=True).text, f"{np.sum(weights.value):g}"
    return Written(rf"\left(\prod\left({factors}\right)\right)^{{1/{degree}}}", POWER)


_DISTANCES = r"\frac{\left\Vert #1 - *2 \right\Vert_{2}}{\left\Vert #1 - *3 \right\Vert_{2}}"

ROWS = (
    AtomRow(
        (GeoMean, GeoMeanApprox),
        lower=_geometric_mean,
        read=_read_geometric_mean,
        spellings=(Spelling("geo_mean", latex=_latex_of_geometric_mean),),
    ),
    AtomRow(
        (Prod,),
        lower=lambda atom, value: jnp.prod(value, axis=atom.axis),
        formula=reduction(lambda atom, entries: sympy.Mul(*entries)),
        spellings=(Spelling("prod", latex=r"\prod"),),
    ),
    AtomRow(
        (cumprod,),
        lower=lambda atom, value: jnp.cumprod(value, axis=atom.axis),
        product=True,
        range=_range_of_cumulative_product,
        formula=lambda atom, value: np.asarray(np.multiply.accumulate(value, axis=atom.axis), dtype=object),
        spellings=(Spelling("cumprod", {"axis": 0}),),
    ),
    AtomRow(
        (cp.dist_ratio,),
        lower=lambda atom, value, a, b: safe.norm2(value - a) / safe.norm2(value - b),
        spellings=(Spelling("dist_ratio", latex=Template(_DISTANCES, PRODUCT)),),
    ),
    AtomRow(
        (cp.one_minus_pos,),
        lower=lambda atom, value: 1.0 - value,
        formula=entry_by_entry(lambda v: 1 - v),
        spellings=(Spelling("one_minus_pos", latex=Template(r"1 - *1", SUM)),),
    ),
)
