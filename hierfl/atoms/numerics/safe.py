"""What many atoms share: reductions over axes, and derivatives that are never NaN where the function is finite."""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp


@jax.custom_jvp
def steep(value: Any) -> Any:
    """0, with a huge slope: for the edge of a domain where the function is finite and its slope infinite.

    The slope is the square root of the largest number of the precision (1e154, or 2e19 in single), so that
    ``2 * sqrt(sum of squares)`` at 0 still gives 0 in the chain rule: infinity times 0 would be NaN.
    """
    return jnp.zeros_like(value)


@steep.defjvp
def _steep_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (value,), (tangent,) = primals, tangents
    return jnp.zeros_like(value), tangent * jnp.asarray(float(jnp.finfo(value.dtype).max) ** 0.5, value.dtype)


def reduced_first(value: Any, axis: Any, order: Literal["C", "F"] = "C") -> Any:
    """The reduced axes (None: all) as one leading axis, vectorised in the given order."""
    if axis is None:
        return jnp.ravel(value, order=order)
    axes = axis if isinstance(axis, tuple) else (axis,)
    moved = jnp.moveaxis(value, axes, range(len(axes)))
    size = math.prod(moved.shape[: len(axes)])
    return jnp.reshape(moved, (size, *moved.shape[len(axes) :]), order=order)


def first_largest(value: Any, axis: Any) -> Any:
    """max along an axis (None: all) with the derivative of the first maximiser: one element of the subdifferential."""
    flat = reduced_first(value, axis)
    return jnp.take_along_axis(flat, jnp.argmax(flat, axis=0)[None], axis=0)[0]


def norm2(value: Any, axis: Any = None) -> Any:
    """Euclidean norm with keepdims, without overflow; its derivative at 0 is 0."""
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(value), axis=axis, keepdims=True))
    plain = (scale > 0) & jnp.isfinite(scale)
    ratio = value / jnp.where(plain, scale, 1.0)
    total = jnp.sum(ratio * ratio, axis=axis, keepdims=True)
    return scale * jnp.sqrt(jnp.where(plain, total, 1.0))
