"""Norms; at the origin their gradient is 0, an element of the subdifferential."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
from cvxpy.atoms.norm_nuc import normNuc
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.atoms.sigma_max import sigma_max

from hierfl.compiler.atoms.reductions import first_largest
from hierfl.compiler.registry import lowers


@lowers(cp.norm1)
def _norm1(atom: Any, value: Any) -> Any:
    return jnp.sum(jnp.abs(value), axis=atom.axis, keepdims=atom.keepdims)


@lowers(cp.norm_inf)
def _norm_inf(atom: Any, value: Any) -> Any:
    return first_largest(jnp.abs(value), atom.axis, atom.keepdims)


@lowers(Pnorm, PnormApprox)
def _pnorm(atom: Any, value: Any) -> Any:
    p, axis, keepdims = float(atom.p), atom.axis, atom.keepdims
    if p < 1:
        return _small_pnorm(value, p, axis, keepdims)
    size = jnp.abs(value)
    scale = jax.lax.stop_gradient(jnp.max(size, axis=axis, keepdims=True))
    zero = scale == 0
    ratio = size / jnp.where(zero, 1.0, scale)
    power = ratio * ratio if p == 2 else jnp.where(ratio > 0, jnp.where(ratio > 0, ratio, 1.0) ** p, 0.0)
    total = jnp.sum(power, axis=axis, keepdims=True)
    root = jnp.where(zero, 0.0, jnp.where(zero, 1.0, total) ** (1.0 / p))
    result = root * scale
    return result if keepdims else jnp.squeeze(result, axis=axis) if axis is not None else jnp.reshape(result, ())


def _small_pnorm(value: Any, p: float, axis: Any, keepdims: bool) -> Any:
    """p < 1 (concave, on nonnegative values): -inf outside; 0 as soon as an entry is 0 for negative p."""
    positive = value > 0
    safe = jnp.where(positive, value, 1.0)
    power = jnp.where(positive, safe**p, 0.0)
    total = jnp.sum(power, axis=axis, keepdims=keepdims)
    some = total > 0
    root = jnp.where(some, jnp.where(some, total, 1.0) ** (1.0 / p), 0.0)
    if p < 0:
        root = jnp.where(jnp.any(value == 0, axis=axis, keepdims=keepdims), 0.0, root)
    return jnp.where(jnp.any(value < 0, axis=axis, keepdims=keepdims), -jnp.inf, root)


@lowers(sigma_max)
def _spectral_norm(atom: Any, value: Any) -> Any:
    return _largest_singular_value(value)


@lowers(normNuc)
def _nuclear_norm(atom: Any, value: Any) -> Any:
    return _sum_of_singular_values(value)


@jax.custom_jvp
def _largest_singular_value(value: Any) -> Any:
    return jnp.linalg.svd(value, compute_uv=False)[0]


@_largest_singular_value.defjvp
def _largest_singular_value_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (value,), (tangent,) = primals, tangents
    u, s, vt = jnp.linalg.svd(value, full_matrices=False)
    slope = jnp.where(s[0] > 0, u[:, 0] @ tangent @ vt[0], 0.0)
    return s[0], slope


@jax.custom_jvp
def _sum_of_singular_values(value: Any) -> Any:
    return jnp.sum(jnp.linalg.svd(value, compute_uv=False))


@_sum_of_singular_values.defjvp
def _sum_of_singular_values_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (value,), (tangent,) = primals, tangents
    u, s, vt = jnp.linalg.svd(value, full_matrices=False)
    kept = s > s[0] * jnp.finfo(value.dtype).eps * max(value.shape)
    return jnp.sum(s), jnp.sum((u * kept) @ vt * tangent)
