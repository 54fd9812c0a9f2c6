"""The cone of positive semidefinite matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def project(z: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric part of ``z`` with its negative eigenvalues set to 0 (Higham, 1988).

    Its derivative is that of a spectral function (Lewis and Sendov, 2001): in the basis of the eigenvectors a divided difference
    multiplies each off-diagonal entry, and at equal eigenvalues that is a slope. Instead of a rule of differentiation, the formula
    is part of the value: with the vectors held fixed, the off-diagonal entries of V' Z V vanish but carry their derivatives. So no
    equal eigenvalues are ever subtracted to divide by. Second derivatives do not follow.
    """
    symmetric = 0.5 * (z + z.T)
    values, vectors = jnp.linalg.eigh(jax.lax.stop_gradient(symmetric))
    turned = vectors.T @ symmetric @ vectors
    diagonal = jnp.diagonal(turned)
    inner = jnp.diag(jnp.maximum(diagonal, 0.0)) + _slopes(values) * (turned - jnp.diag(diagonal))
    return vectors @ inner @ vectors.T


def _slopes(values: Float[Array, " n"]) -> Float[Array, "n n"]:
    """(max(v_i, 0) - max(v_j, 0)) / (v_i - v_j), or the slope where v_i = v_j; no derivatives."""
    positive = jnp.maximum(values, 0.0)
    difference = values[:, None] - values
    same = difference == 0
    slope = jnp.where(values > 0, 1.0, jnp.where(values < 0, 0.0, 0.5))
    quotient = (positive[:, None] - positive) / jnp.where(same, 1.0, difference)
    return jax.lax.stop_gradient(jnp.where(same, slope, jnp.clip(quotient, 0.0, 1.0)))
