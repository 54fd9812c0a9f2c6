"""Atoms that reduce a vector or an axis to fewer numbers."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.cumprod import cumprod
from cvxpy.atoms.geo_mean import GeoMean, GeoMeanApprox
from cvxpy.atoms.prod import Prod

from hierfl.compiler.registry import lowers


def first_largest(value: Any, axis: Any, keepdims: bool) -> Any:
    """max along an axis (None: all) with the derivative of the first maximiser: one element of the subdifferential."""
    if axis is None:
        result = jnp.ravel(value)[jnp.argmax(jnp.ravel(value))]
        return jnp.reshape(result, (1,) * jnp.ndim(value)) if keepdims else result
    axes = sorted(a % jnp.ndim(value) for a in (axis if isinstance(axis, tuple) else (axis,)))
    moved = jnp.moveaxis(value, axes, range(len(axes)))
    flat = moved.reshape((-1, *moved.shape[len(axes) :]))
    result = jnp.take_along_axis(flat, jnp.argmax(flat, axis=0)[None], axis=0)[0]
    return jnp.expand_dims(result, axes) if keepdims else result


@lowers(cp.max)
def _max(atom: Any, value: Any) -> Any:
    return first_largest(value, atom.axis, atom.keepdims)


@lowers(cp.min)
def _min(atom: Any, value: Any) -> Any:
    return -first_largest(-value, atom.axis, atom.keepdims)


@lowers(cp.cummax)
def _cumulative_max(atom: Any, value: Any) -> Any:
    return jax.lax.cummax(value, axis=atom.axis % jnp.ndim(value))


@lowers(cp.log_sum_exp)
def _log_sum_exp(atom: Any, value: Any) -> Any:
    return jax.scipy.special.logsumexp(value, axis=atom.axis, keepdims=atom.keepdims)


@lowers(cp.quad_over_lin)
def _sum_of_squares_over(atom: Any, value: Any, denominator: Any) -> Any:
    axis, keepdims = getattr(atom, "axis", None), getattr(atom, "keepdims", False)
    numerator = jnp.sum(value * value, axis=axis, keepdims=keepdims)
    one = getattr(atom.args[1], "value", None) if atom.args[1].is_constant() and not atom.args[1].parameters() else None
    return numerator if one is not None and np.all(np.asarray(one) == 1.0) else numerator / denominator


@lowers(cp.sum_largest)
def _sum_of_largest(atom: Any, value: Any) -> Any:
    axis, keepdims = getattr(atom, "axis", None), getattr(atom, "keepdims", False)
    whole, part = int(np.floor(atom.k)), float(atom.k - np.floor(atom.k))
    if axis is None:
        total = _weighted_largest(jnp.ravel(value), whole, part)
        return jnp.reshape(total, (1,) * jnp.ndim(value)) if keepdims else total
    axes = sorted(a % jnp.ndim(value) for a in (axis if isinstance(axis, tuple) else (axis,)))
    moved = jnp.moveaxis(value, axes, range(len(axes)))
    flat = moved.reshape((-1, *moved.shape[len(axes) :]))
    ordered = jnp.sort(flat, axis=0)[::-1]
    total = jnp.sum(ordered[:whole], axis=0) + (part * ordered[whole] if part else 0.0)
    return jnp.expand_dims(total, axes) if keepdims else total


def _weighted_largest(value: Any, whole: int, part: float) -> Any:
    ordered = jnp.sort(value)[::-1]
    return jnp.sum(ordered[:whole]) + (part * ordered[whole] if part else 0.0)


@lowers(cp.dotsort)
def _dot_of_sorted(atom: Any, value: Any, weights: Any) -> Any:
    size = max(jnp.size(value), jnp.size(weights))
    padded = jnp.sort(jnp.concatenate([jnp.ravel(weights), jnp.zeros(size - jnp.size(weights), value.dtype)]))
    return jnp.sort(jnp.ravel(value)) @ padded


@lowers(GeoMean, GeoMeanApprox)
def _geometric_mean(atom: Any, value: Any) -> Any:
    weights = jnp.asarray(np.array([float(w) for w in atom.w]), value.dtype)
    if atom.axis is None:
        kept = jnp.ravel(value, order="F")[np.asarray(atom._keep)]
    else:
        axes = atom.axis if isinstance(atom.axis, tuple) else (atom.axis,)
        moved = jnp.moveaxis(value, axes, range(len(axes)))
        size = int(np.prod(moved.shape[: len(axes)], dtype=int))
        kept = jnp.reshape(moved, (size, *moved.shape[len(axes) :]), order="F")[np.asarray(atom._keep)]
    positive = kept > 0
    inner = jnp.exp(jnp.tensordot(weights, jnp.log(jnp.where(positive, kept, 1.0)), axes=1))
    broken, outside = jnp.any(~positive, axis=0), jnp.any(kept < 0, axis=0)
    return jnp.where(outside, -jnp.inf, jnp.where(broken, 0.0, inner))


@lowers(Prod)
def _product(atom: Any, value: Any) -> Any:
    return jnp.prod(value, axis=atom.axis, keepdims=atom.keepdims)


@lowers(cumprod)
def _cumulative_product(atom: Any, value: Any) -> Any:
    return jnp.cumprod(value, axis=atom.axis)


@lowers(cp.length)
def _length(atom: Any, value: Any) -> Any:
    """Position of the last nonzero entry, from 1."""
    flat = jnp.ravel(value)
    return jnp.max(jnp.where(flat != 0, jnp.arange(1, flat.shape[0] + 1), 0)).astype(value.dtype)


@lowers(cp.dist_ratio)
def _distance_ratio(atom: Any, value: Any, *_: Any) -> Any:
    a, b = (
        jnp.asarray(np.asarray(part.value if hasattr(part, "value") else part, dtype=float), value.dtype)
        for part in (atom.a, atom.b)
    )
    return jnp.linalg.norm(value - a) / jnp.linalg.norm(value - b)


@lowers(cp.one_minus_pos)
def _one_minus(atom: Any, value: Any) -> Any:
    return 1.0 - value
