"""Atoms that reduce a vector or an axis to fewer numbers. The program restores ``keepdims`` from the declared shape."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.cumprod import cumprod
from cvxpy.atoms.geo_mean import GeoMean, GeoMeanApprox
from cvxpy.atoms.prod import Prod
from cvxpy.settings import ATOM_EVAL_TOL

from hierfl.compiler.expressions.atoms.safe import first_largest, norm2, reduced_first, steep
from hierfl.compiler.expressions.registry import lowers


@lowers(cp.max)
def _max(atom: Any, value: Any) -> Any:
    return first_largest(value, atom.axis)


@lowers(cp.min)
def _min(atom: Any, value: Any) -> Any:
    return -first_largest(-value, atom.axis)


@lowers(cp.cummax)
def _cumulative_max(atom: Any, value: Any) -> Any:
    return jax.lax.cummax(value, axis=atom.axis % jnp.ndim(value))


@lowers(cp.log_sum_exp)
def _log_sum_exp(atom: Any, value: Any) -> Any:
    return jax.scipy.special.logsumexp(value, axis=atom.axis)


@lowers(cp.quad_over_lin)
def _sum_of_squares_over(atom: Any, value: Any, denominator: Any) -> Any:
    squares = jnp.sum(value * value, axis=atom.axis)
    divisor = atom.args[1]
    return (
        squares if isinstance(divisor, cp.Constant) and divisor.value == 1 else squares / jnp.reshape(denominator, ())
    )


@lowers(cp.sum_largest)
def _sum_of_largest(atom: Any, value: Any) -> Any:
    ordered = jnp.sort(reduced_first(value, atom.axis), axis=0)[::-1]
    whole = int(np.floor(atom.k))
    total = jnp.sum(ordered[:whole], axis=0)
    return total + float(atom.k - whole) * ordered[whole] if whole < ordered.shape[0] else total


@lowers(cp.dotsort)
def _dot_of_sorted(atom: Any, value: Any, weights: Any) -> Any:
    padded = jnp.pad(jnp.ravel(weights), (0, jnp.size(value) - jnp.size(weights)))
    return jnp.sort(jnp.ravel(value)) @ jnp.sort(padded)


@lowers(GeoMean, GeoMeanApprox)
def _geometric_mean(atom: Any, value: Any) -> Any:
    """NaN below 0, as in CVXPY; at the origin its gradient is the weights, elsewhere a zero entry has infinite slope."""
    kept = reduced_first(value, atom.axis, order="F")[np.asarray(atom._keep)]
    if kept.shape[0] == 1:
        return kept[0]
    weights = jnp.asarray([float(w) for w in atom.w], value.dtype)
    zero = kept == 0
    inside = jnp.exp(jnp.tensordot(weights, jnp.log(jnp.where(zero, 1.0, kept)), axes=1))
    edge = jnp.sum(jnp.where(zero, steep(kept), 0.0), axis=0)
    origin = jnp.tensordot(weights, jnp.where(zero, kept, 0.0), axes=1)
    broken = jnp.where(jnp.all(zero, axis=0), origin, edge)
    negative = jnp.any(kept < 0, axis=0)
    return jnp.where(negative, jnp.nan, jnp.where(jnp.any(zero, axis=0), broken, inside))


@lowers(Prod)
def _product(atom: Any, value: Any) -> Any:
    return jnp.prod(value, axis=atom.axis)


@lowers(cumprod)
def _cumulative_product(atom: Any, value: Any) -> Any:
    return jnp.cumprod(value, axis=atom.axis)


@lowers(cp.length)
def _length(atom: Any, value: Any) -> Any:
    """Position of the last entry that is not (nearly) zero, from 1; 0 if there is none."""
    flat = jnp.ravel(value)
    places = jnp.arange(1, flat.shape[0] + 1)
    return jnp.max(jnp.where(jnp.abs(flat) > ATOM_EVAL_TOL, places, 0)).astype(value.dtype)


@lowers(cp.dist_ratio)
def _distance_ratio(atom: Any, value: Any, a: Any, b: Any) -> Any:
    return norm2(value - a) / norm2(value - b)


@lowers(cp.one_minus_pos)
def _one_minus(atom: Any, value: Any) -> Any:
    return 1.0 - value
