"""Exponentials, logarithms and entropies, trigonometric and hyperbolic functions. At the edge of a domain the slope is huge, never NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.hyperbolic import asinh, atanh, sinh, tanh
from cvxpy.atoms.elementwise.normcdf import normcdf
from cvxpy.atoms.elementwise.trig import cos, sin, tan
from cvxpy.expressions.expression import Expression

from hierfl.atoms import narrowing
from hierfl.atoms.algebra import inverse, times
from hierfl.atoms.formulas import Expr, entry_by_entry, reduction
from hierfl.atoms.intervals import EPS, Interval, bounded
from hierfl.atoms.loaded_late import jax, jnp, safe, special, sympy
from hierfl.atoms.ranges import always_smooth, everywhere, slopes_between, smooth_above, value_at, with_slack
from hierfl.atoms.row import AtomRow, CurvatureSearch
from hierfl.atoms.writing.latex_pen import LatexPen, Template
from hierfl.atoms.writing.pen import ELEMENTWISE, POWER, PRODUCT, SUM, Written
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Spelling


def _of_each_entry(kind: type, lower: Callable[[Any], Any], formula: Callable[[Any], Any], latex: str) -> AtomRow:
    return AtomRow(
        (kind,),
        lower=lambda atom, value: lower(value),
        formula=entry_by_entry(formula),
        spellings=(Spelling(kind.__name__, latex=latex),),
    )


_OF_ANGLES = (
    _of_each_entry(sin, lambda value: jnp.sin(value), lambda v: sympy.sin(v), r"\sin"),
    _of_each_entry(cos, lambda value: jnp.cos(value), lambda v: sympy.cos(v), r"\cos"),
    _of_each_entry(tan, lambda value: jnp.tan(value), lambda v: sympy.tan(v), r"\tan"),
    _of_each_entry(sinh, lambda value: jnp.sinh(value), lambda v: sympy.sinh(v), r"\sinh"),
    _of_each_entry(tanh, lambda value: jnp.tanh(value), lambda v: sympy.tanh(v), r"\tanh"),
    _of_each_entry(asinh, lambda value: jnp.arcsinh(value), lambda v: sympy.asinh(v), r"\operatorname{arsinh}"),
    _of_each_entry(atanh, lambda value: jnp.arctanh(value), lambda v: sympy.atanh(v), r"\operatorname{artanh}"),
)


# Values


def _entropy(atom: Any, value: Any) -> Any:
    inside = value > 0
    kept = jnp.where(inside, value, 1.0)
    edge = jnp.where(value == 0, safe.steep(value), -jnp.inf)
    return jnp.where(inside, -kept * jnp.log(kept), edge)


def _relative_entropy(atom: Any, x: Any, y: Any) -> Any:
    x, y = jnp.broadcast_arrays(x, y)
    inside = (x > 0) & (y > 0)
    kept_x, kept_y = jnp.where(inside, x, 1.0), jnp.where(inside, y, 1.0)
    edge = jnp.where((x == 0) & (y >= 0), -safe.steep(x), jnp.inf)
    return jnp.where(inside, kept_x * (jnp.log(kept_x) - jnp.log(kept_y)), edge)


# Ranges


def _range_of_log_sum_exp(atom: Any, arguments: list[Interval]) -> Interval:
    (z,) = arguments
    reached = bounded(value_at(atom, [z.lo]), value_at(atom, [z.hi]))
    return with_slack(reached, z.lo.size, 1.0 + np.abs(reached.lo), 1.0 + np.abs(reached.hi))


# Curvature


def _second_of_logistic(atom: Any, z: Interval) -> Interval:
    def slope(t: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(-t) / (1 + np.exp(-t)) ** 2)

    return Interval(slope(np.minimum(z.magnitude, 700.0)) * (z.magnitude < 700), slope(z.mignitude))


def _second_of_log(atom: Any, z: Interval) -> Interval:
    low = np.maximum(z.lo, 0.0)
    return Interval(-1 / low**2, -1 / z.hi**2)


def _curvature_of_log_sum_exp(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    """The Hessian is at most I / 2."""
    (argument,) = atom.args
    if not upper or not search.is_affine(argument) or search.is_moved(argument):
        return None
    return 0.25 * cp.sum(cp.square(argument), axis=atom.axis, keepdims=atom.keepdims)


# Formulas


def _relative_entropy_formula(x: Expr, y: Expr) -> Expr:
    return x * sympy.log(x / y)


# Notation


def _latex_of_entropy(pen: LatexPen, phrase: Phrase) -> Written:
    (argument,) = phrase.args
    logarithm = rf"\log\left({pen.text(argument)}\right)"
    return Written(f"-{pen.times_function(argument, logarithm)}", SUM)


def _times_its(function: str) -> Callable[[LatexPen, Phrase], Written]:
    def written(pen: LatexPen, phrase: Phrase) -> Written:
        first = phrase.args[0]
        factor = function % tuple(map(pen.text, phrase.args))
        return Written(pen.times_function(first, factor), ELEMENTWISE if first.shape else PRODUCT)

    return written


ROWS = (
    *_OF_ANGLES,
    AtomRow(
        (cp.exp,),
        twice_smooth=everywhere,
        narrow=narrowing.of_exponential,
        lower=lambda atom, value: jnp.exp(value),
        second_derivative=lambda atom, z: Interval(np.exp(z.lo), np.exp(z.hi)),
        smooth=always_smooth,
        derivative=lambda atom, index, adjoint: times(adjoint, atom),
        formula=entry_by_entry(lambda v: sympy.exp(v)),
        spellings=(Spelling("exp", latex=r"\exp"),),
    ),
    AtomRow(
        (cp.log,),
        narrow=narrowing.of_logarithm,
        lower=lambda atom, value: jnp.log(value),
        second_derivative=_second_of_log,
        smooth=smooth_above(0.0),
        derivative=lambda atom, index, adjoint: times(adjoint, inverse(atom.args[0])),
        formula=entry_by_entry(lambda v: sympy.log(v)),
        spellings=(Spelling("log", latex=r"\log"),),
    ),
    AtomRow(
        (cp.log1p,),
        lower=lambda atom, value: jnp.log1p(value),
        second_derivative=lambda atom, z: _second_of_log(atom, z + Interval.of(np.ones(z.shape))),
        smooth=smooth_above(-1.0),
        formula=entry_by_entry(lambda v: sympy.log(1 + v)),
        spellings=(Spelling("log1p", latex=Template(r"\log\left(1 + #1\right)", POWER)),),
    ),
    AtomRow(
        (cp.logistic,),
        twice_smooth=everywhere,
        lower=lambda atom, value: jnp.logaddexp(value, jnp.zeros((), value.dtype)),
        slopes=slopes_between(0.0, 1.0),
        second_derivative=_second_of_logistic,
        smooth=always_smooth,
        formula=entry_by_entry(lambda v: sympy.log(1 + sympy.exp(v))),
        spellings=(Spelling("logistic", latex=Template(r"\log\left(1 + \exp\left(#1\right)\right)", POWER)),),
    ),
    AtomRow(
        (cp.log_sum_exp,),
        twice_smooth=everywhere,
        narrow=narrowing.below_largest,
        lower=lambda atom, value: jax.scipy.special.logsumexp(value, axis=atom.axis),
        range=_range_of_log_sum_exp,
        slopes=slopes_between(0.0, 1.0),
        curvature=_curvature_of_log_sum_exp,
        smooth=always_smooth,
        formula=reduction(lambda atom, entries: sympy.log(sympy.Add(*map(sympy.exp, entries)))),
        spellings=(Spelling("log_sum_exp", latex=r"\log\sum\exp"),),
    ),
    AtomRow(
        (cp.entr,),
        lower=_entropy,
        second_derivative=lambda atom, z: Interval(-1 / np.maximum(z.lo, 0.0), -1 / z.hi),
        smooth=smooth_above(0.0),
        formula=entry_by_entry(lambda v: -v * sympy.log(v)),
        spellings=(Spelling("entr", latex=_latex_of_entropy),),
    ),
    AtomRow(
        (cp.rel_entr,),
        lower=_relative_entropy,
        formula=entry_by_entry(_relative_entropy_formula),
        spellings=(Spelling("rel_entr", latex=_times_its(r"\log\left(\frac{%s}{%s}\right)")),),
    ),
    AtomRow(
        (cp.kl_div,),
        lower=lambda atom, x, y: _relative_entropy(atom, x, y) - x + y,
        formula=entry_by_entry(lambda x, y: _relative_entropy_formula(x, y) - x + y),
        spellings=(Spelling("kl_div", latex=Template(r"D_{\mathrm{KL}}\left(#1 \,\Vert\, #2\right)", POWER)),),
    ),
    AtomRow(
        (cp.xexp,),
        lower=lambda atom, value: jnp.where(value >= -1e-9, value * jnp.exp(value), jnp.nan),  # what is 0 may be less by rounding
        range=lambda atom, arguments: arguments[0] * bounded(*map(np.exp, (arguments[0].lo, arguments[0].hi))).widened(8 * EPS),
        formula=entry_by_entry(lambda v: v * sympy.exp(v)),
        spellings=(Spelling("xexp", latex=_times_its(r"\exp\left(%s\right)")),),
    ),
    AtomRow((normcdf,), lower=lambda atom, value: special.ndtr(value), spellings=(Spelling("normcdf", latex=r"\Phi"),)),
)
