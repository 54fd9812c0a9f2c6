"""The logarithm of a positive semidefinite matrix, and its entropy, with derivatives that survive repeated eigenvalues.

The derivative of log X in the direction D is V (G * (V' D V)) V' with X = V diag(l) V' and the divided differences
G_ij = (log l_i - log l_j) / (l_i - l_j), 1 / l_i where both agree (Daleckii and Krein, 1951).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_jvp
def logarithm(matrix: Any) -> Any:
    """log X of a symmetric matrix; eigenvalues below the least positive number count as that.

    Its own derivative may be differentiated again where the eigenvalues differ.
    """
    values, vectors = _positive_part(matrix)
    return (vectors * jnp.log(values)) @ vectors.T


@logarithm.defjvp
def _logarithm_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (matrix,), (tangent,) = primals, tangents
    values, vectors = _positive_part(matrix)
    slope = vectors @ (_divided_differences(values) * (vectors.T @ tangent @ vectors)) @ vectors.T
    return (vectors * jnp.log(values)) @ vectors.T, slope


@jax.custom_jvp
def entropy(matrix: Any) -> Any:
    """-tr(X log X) of a symmetric positive semidefinite matrix; its gradient is -log X - I."""
    values = jnp.linalg.eigvalsh(matrix)
    inside = values > 0
    kept = jnp.where(inside, values, 1.0)
    return -jnp.sum(jnp.where(inside, kept * jnp.log(kept), 0.0))


@entropy.defjvp
def _entropy_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (matrix,), (tangent,) = primals, tangents
    gradient = -logarithm(matrix) - jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    return entropy(matrix), jnp.sum(gradient * tangent)


def is_semidefinite(matrix: Any) -> Any:
    """Whether no eigenvalue of a symmetric matrix is negative beyond rounding."""
    values = jnp.linalg.eigvalsh(jax.lax.stop_gradient(matrix))
    return values[0] >= -_rounding(values)


def _rounding(values: Any) -> Any:
    return values.shape[0] * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))


def _positive_part(matrix: Any) -> tuple[Any, Any]:
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.maximum(values, jnp.finfo(matrix.dtype).tiny), vectors


def _divided_differences(values: Any) -> Any:
    """Of the logarithm; for neighbours by the area tangent, log(a / b) = 2 artanh((a - b) / (a + b))."""
    a, b = values[:, None], values[None, :]
    ratio = (a - b) / (a + b)
    near = jnp.abs(ratio) < 0.5
    inner = jnp.where(near & (ratio != 0), ratio, 0.25)
    area = jnp.where(ratio == 0, 1.0, jnp.arctanh(inner) / inner)
    gap = jnp.where(near, 1.0, a - b)
    return jnp.where(near, 2.0 * area / (a + b), (jnp.log(a) - jnp.log(b)) / gap)
