"""Sets of matrices that are given by eigenvalues or singular values.

The projection acts on the spectrum alone (Lewis, 1995). Derivatives are those of spectral functions, by divided differences
(Lewis and Sendov, 2001): the vectors are held fixed and what turns them enters through the off-diagonal entries of V' Z V, which
vanish at Z itself. So nothing divides by differences of equal eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.projections import l1_ball

Projection = Callable[[Array], Array]


def project_symmetric(z: Array, project_eigenvalues: Projection) -> Array:
    """V diag(project(eigenvalues)) V' for the symmetric part of ``z`` (n, n) and a projection that ignores the order."""
    symmetric = 0.5 * (z + z.T)
    values, vectors = map(jax.lax.stop_gradient, jnp.linalg.eigh(jax.lax.stop_gradient(symmetric)))
    turned = vectors.T @ symmetric @ vectors
    moved = project_eigenvalues(jnp.diagonal(turned))
    slopes = jax.lax.stop_gradient(_divided(project_eigenvalues, values, 1.0))
    inner = jnp.diag(moved) + slopes * (turned - jnp.diag(jnp.diagonal(turned)))
    return vectors @ inner @ vectors.T


def project_singular(z: Array, project_values: Projection) -> Array:
    """U diag(project(singular values)) V' for ``z`` (p, q), nonnegative values."""
    if z.shape[0] < z.shape[1]:
        return project_singular(z.T, project_values).T
    u, values, vt = map(jax.lax.stop_gradient, jnp.linalg.svd(jax.lax.stop_gradient(z), full_matrices=False))
    turned = u.T @ z @ vt.T
    moved = project_values(jnp.diagonal(turned))
    off = turned - jnp.diag(jnp.diagonal(turned))
    even = jax.lax.stop_gradient(_divided(project_values, values, 1.0))
    odd = jax.lax.stop_gradient(_divided(project_values, values, -1.0))
    ratio = jnp.diagonal(odd)  # the projected over the original value, its slope at 0
    inner = jnp.diag(moved) + even * 0.5 * (off + off.T) + odd * 0.5 * (off - off.T)
    outside = z @ vt.T - u @ turned  # 0 at z itself
    return (u @ inner + outside * ratio) @ vt


def project_nuclear_ball(z: Array, radius: Array) -> Array:
    """{sum of the singular values <= radius}."""
    ones = jnp.ones(min(z.shape), z.dtype)
    return project_singular(z, lambda values: l1_ball.project(values, jnp.zeros_like(values), ones, radius))


def project_spectral_ball(z: Array, radius: Array) -> Array:
    """{largest singular value <= radius}."""
    return project_singular(z, lambda values: jnp.minimum(values, jnp.maximum(radius, 0.0)))


def _divided(project: Projection, values: Array, sign: float) -> Array:
    """(f_i - sign f_j) / (v_i - sign v_j) of the projected values f; slopes where the denominator vanishes."""
    moved, slopes = project(values), jax.jacfwd(project)(values)
    difference = values[:, None] - sign * values[None, :]
    limit = jnp.diagonal(slopes)[:, None] - sign * (slopes - jnp.diag(jnp.diagonal(slopes)))
    largest = jnp.max(jnp.abs(values), initial=0.0)
    near = jnp.abs(difference) <= 64 * jnp.finfo(values.dtype).eps * largest
    quotient = (moved[:, None] - sign * moved[None, :]) / jnp.where(near, 1.0, difference)
    return jnp.where(near, limit, quotient)
