"""Weighted sums of eigenvalues and of singular values, logarithm and entropy of a matrix, with derivatives that survive repeated values.

JAX differentiates eigenvectors, which divides by the gaps between eigenvalues. Here the gradient is written down,
V diag(w) V' or U diag(w) V', and so is its derivative, by divided differences of the weights: 0 where both agree
(Lewis and Sendov, Twice differentiable spectral functions, 2001).

The derivative of log X, X positive semidefinite, in the direction D is V (G * (V' D V)) V' with X = V diag(l) V' and the divided
differences G_ij = (log l_i - log l_j) / (l_i - l_j), 1 / l_i where both agree (Daleckii and Krein, 1951).
"""

from __future__ import annotations

from functools import partial
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
    return values[0] >= -(values.shape[0] * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values)))


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


Weights = tuple[float, ...]


def symmetric(value: Any) -> Any:
    """The symmetric part of a matrix, or of each matrix of a batch."""
    return 0.5 * (value + jnp.swapaxes(value, -1, -2))


def eigenvalue_sum(weights: Weights, matrix: Any) -> Any:
    """sum_i weights[i] * (i-th largest eigenvalue) of the symmetric part; missing weights are 0."""
    ascending = (0.0,) * (matrix.shape[-1] - len(weights)) + tuple(reversed(weights))
    return _eigenvalue_sum(ascending, symmetric(matrix))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _eigenvalue_sum(weights: Weights, matrix: Any) -> Any:
    return jnp.linalg.eigvalsh(matrix) @ jnp.asarray(weights, matrix.dtype)


@_eigenvalue_sum.defjvp
def _eigenvalue_sum_jvp(weights: Weights, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (matrix,), (tangent,) = primals, tangents
    gradient = _eigenvalue_gradient(weights, matrix)
    return jnp.sum(gradient * matrix, axis=(-2, -1)), jnp.sum(gradient * tangent, axis=(-2, -1))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _eigenvalue_gradient(weights: Weights, matrix: Any) -> Any:
    _, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.asarray(weights, matrix.dtype)) @ jnp.swapaxes(vectors, -1, -2)


@_eigenvalue_gradient.defjvp
def _eigenvalue_gradient_jvp(weights: Weights, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (matrix,), (tangent,) = primals, tangents
    values, vectors = jnp.linalg.eigh(matrix)
    transposed = jnp.swapaxes(vectors, -1, -2)
    w = jnp.asarray(weights, matrix.dtype)
    slopes = _quotient(w[:, None] - w, values[..., :, None] - values[..., None, :])
    curvature = vectors @ (slopes * (transposed @ tangent @ vectors)) @ transposed
    return (vectors * w) @ transposed, curvature


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def singular_value_sum(largest: bool, matrix: Any) -> Any:
    """The spectral norm, of the ``largest`` alone, or the nuclear norm; its gradient is U V' without the singular vectors of value 0."""
    values = jnp.linalg.svd(matrix, compute_uv=False)
    return values[0] if largest else jnp.sum(values)


@singular_value_sum.defjvp
def _singular_value_sum_jvp(largest: bool, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (matrix,), (tangent,) = primals, tangents
    gradient = _singular_gradient(largest, matrix)
    return jnp.sum(gradient * matrix), jnp.sum(gradient * tangent)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _singular_gradient(largest: bool, matrix: Any) -> Any:
    u, values, vt = jnp.linalg.svd(matrix, full_matrices=False)
    return (u * _weights(largest, values, matrix)) @ vt


@_singular_gradient.defjvp
def _singular_gradient_jvp(largest: bool, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (matrix,), (tangent,) = primals, tangents
    u, s, vt = jnp.linalg.svd(matrix, full_matrices=False)
    w = _weights(largest, s, matrix)
    inner = u.T @ tangent @ vt.T
    even = _quotient(w[:, None] - w, s[:, None] - s) * symmetric(inner)
    odd = _quotient(w[:, None] + w, s[:, None] + s) * (inner - symmetric(inner))
    ratio = _quotient(w, s)
    left = ((tangent - u @ (u.T @ tangent)) @ vt.T * ratio) @ vt  # outside the range of U, then of V
    right = (u * ratio) @ (u.T @ tangent - inner @ vt)
    return (u * w) @ vt, u @ (even + odd) @ vt + left + right


def _weights(largest: bool, values: Any, matrix: Any) -> Any:
    positive = values > values[0] * jnp.finfo(matrix.dtype).eps * max(matrix.shape)
    return jnp.where(positive & (jnp.arange(values.shape[0]) == 0) if largest else positive, 1.0, 0.0).astype(
        matrix.dtype
    )


def _quotient(numerator: Any, denominator: Any) -> Any:
    """numerator / denominator, 0 where the denominator is 0."""
    return jnp.where(denominator == 0, 0.0, numerator / jnp.where(denominator == 0, 1.0, denominator))
