"""Sets of matrices that are given by eigenvalues or singular values.

The projection acts on the spectrum alone (Lewis, 1995). Its derivative is that of a spectral function (Lewis and Sendov, 2001,
for singular values their 2005 paper): in the basis of the eigenvectors a divided difference multiplies each off-diagonal entry,
and at equal eigenvalues that is a slope. Instead of a rule of differentiation, the formula is part of the value: with the
vectors held fixed, the off-diagonal entries of V' Z V vanish but carry their derivatives. So no equal eigenvalues are ever
subtracted to divide by, and ``project`` may close over anything differentiated. Second derivatives do not follow.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections import l1_ball
from hierfl.projections.emptiness import below_zero, not_below_zero
from hierfl.projections.projection import Projection


def project_symmetric(z: Float[Array, "n n"], project_eigenvalues: Projection) -> Float[Array, "n n"]:
    """V diag(project(eigenvalues)) V' for the symmetric part of ``z``; ``project`` of vectors must commute with permutations."""
    symmetric = 0.5 * (z + z.T)
    values, vectors = jnp.linalg.eigh(jax.lax.stop_gradient(symmetric))
    turned = vectors.T @ symmetric @ vectors
    diagonal, rest = _split(turned)
    inner = jnp.diag(project_eigenvalues(diagonal)) + _slopes(project_eigenvalues, values, 1.0) * rest
    return vectors @ inner @ vectors.T


def project_singular(z: Float[Array, "p q"], project_values: Projection) -> Float[Array, "p q"]:
    """U diag(project(singular values)) V' for ``z``; ``project`` must commute with permutations and changes of sign."""
    if z.shape[0] < z.shape[1]:
        return project_singular(z.T, project_values).T
    u, values, vt = jnp.linalg.svd(jax.lax.stop_gradient(z), full_matrices=False)
    turned = u.T @ z @ vt.T
    diagonal, rest = _split(turned)
    even, odd = _slopes(project_values, values, 1.0), _slopes(project_values, values, -1.0)
    inner = jnp.diag(project_values(diagonal)) + even * 0.5 * (rest + rest.T) + odd * 0.5 * (rest - rest.T)
    outside = z @ vt.T - u @ turned  # orthogonal to u, 0 at z: as if paired with further singular values 0
    return (u @ inner + outside * jnp.diagonal(odd)) @ vt


def project_nuclear_ball(z: Float[Array, "p q"], radius: Float[Array, ""]) -> Float[Array, "p q"]:
    """The nearest matrix to ``z`` whose singular values sum to at most ``radius`` >= 0."""
    ones = jnp.ones(min(z.shape), z.dtype)
    return project_singular(z, lambda values: l1_ball.project(values, jnp.zeros_like(values), ones, radius))


def project_spectral_ball(z: Float[Array, "p q"], radius: Float[Array, ""]) -> Float[Array, "p q"]:
    """The nearest matrix to ``z`` whose largest singular value is at most ``radius`` >= 0."""
    bound = not_below_zero(radius)

    def clip(values: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.where(jnp.abs(values) < bound, values, jnp.sign(values) * bound)

    return project_singular(z, clip)


def gap(radius: Float[Array, ""]) -> Float[Array, ""]:
    """How far the radius is below 0: positive when the nuclear or spectral ball is empty."""
    return below_zero(radius)


def _split(matrix: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """The diagonal, and the matrix without it."""
    diagonal = jnp.diagonal(matrix)
    return diagonal, matrix - jnp.diag(diagonal)


def _slopes(project: Projection, values: Float[Array, " n"], sign: float) -> Float[Array, "n n"]:
    """(f_i - sign f_j) / (v_i - sign v_j) of the projected values f, or their slopes where v_i = sign v_j; no derivatives.

    Slopes are taken for close values too, where rounding spoils the quotient, unless they differ: then a kink is between.
    """
    moved, jacobian = project(values), jax.jacfwd(project)(values)
    own, others = _split(jacobian)
    limit = own[:, None] - sign * others
    eps = jnp.finfo(values.dtype).eps
    agree = jnp.abs(limit - limit.T) <= eps**0.5
    difference = values[:, None] - sign * values
    near = jnp.abs(difference) <= jnp.where(agree, eps**0.5, 64 * eps) * jnp.max(jnp.abs(values), initial=0.0)
    quotient = (moved[:, None] - sign * moved) / jnp.where(near, 1.0, difference)
    slopes = jnp.where(near, 0.5 * (limit + limit.T), quotient)
    return jax.lax.stop_gradient(jnp.clip(slopes, 0.0, 1.0))  # projections are monotone and nonexpansive
