"""Norms; at the origin their gradient is 0, an element of the subdifferential (p < 1: see ``_concave_pnorm``)."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
from cvxpy.atoms.norm_nuc import normNuc
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.atoms.sigma_max import sigma_max

from hierfl.compiler.expressions.atoms.safe import first_largest, norm2, steep
from hierfl.compiler.expressions.atoms.spectral_values import largest_singular_value, singular_value_sum
from hierfl.compiler.expressions.registry import lowers


@lowers(cp.norm1)
def _norm1(atom: Any, value: Any) -> Any:
    return jnp.sum(jnp.abs(value), axis=atom.axis)


@lowers(cp.norm_inf)
def _norm_inf(atom: Any, value: Any) -> Any:
    return first_largest(jnp.abs(value), atom.axis)


@lowers(Pnorm, PnormApprox)
def _pnorm(atom: Any, value: Any) -> Any:
    p = float(atom.p)
    if p == 2:
        return norm2(value, atom.axis)
    return _convex_pnorm(value, p, atom.axis) if p > 1 else _concave_pnorm(value, p, atom.axis)


@lowers(sigma_max)
def _spectral_norm(atom: Any, value: Any) -> Any:
    return largest_singular_value(value)


@lowers(normNuc)
def _nuclear_norm(atom: Any, value: Any) -> Any:
    return singular_value_sum(value)


def _convex_pnorm(value: Any, p: float, axis: Any) -> Any:
    """p > 1, relative to the largest entry: neither overflow nor 0 ** negative in the derivative."""
    size = jnp.abs(value)
    scale = jax.lax.stop_gradient(jnp.max(size, axis=axis, keepdims=True))
    ratio = size / jnp.where(scale == 0, 1.0, scale)
    some = ratio > 0
    total = jnp.sum(jnp.where(some, jnp.where(some, ratio, 1.0) ** p, 0.0), axis=axis, keepdims=True)
    return scale * jnp.where(scale == 0, 1.0, total) ** (1.0 / p)


def _concave_pnorm(value: Any, p: float, axis: Any) -> Any:
    """p < 1: -inf as soon as an entry is negative; where entries are 0, an element of the superdifferential.

    The norm of k equal entries t is k**(1/p) t, so the gradient at 0 is k**(1/p - 1) in each of them. For p < 0 this
    holds for the zero entries alone (the norm is 0 along the others); for 0 < p < 1 a single zero entry has infinite slope.
    """
    zero = value == 0
    safe = jnp.where(value > 0, value, 1.0)
    edge = 0.0 if p < 0 else steep(value)
    total = jnp.sum(jnp.where(zero, edge, safe**p), axis=axis, keepdims=True)
    regular = jnp.where(total == 0, 1.0, total) ** (1.0 / p)
    zeros = jnp.maximum(jnp.sum(zero, axis=axis, keepdims=True), 1).astype(value.dtype)
    origin = zeros ** (1.0 / p - 1.0) * jnp.sum(jnp.where(zero, value, 0.0), axis=axis, keepdims=True)
    flat = (jnp.any if p < 0 else jnp.all)(zero, axis=axis, keepdims=True)
    outside = jnp.any(value < 0, axis=axis, keepdims=True)
    return jnp.where(outside, -jnp.inf, jnp.where(flat, origin, regular))
