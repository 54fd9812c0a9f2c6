"""Solving 0 in F(y) + N_Y(y) by a semismooth Newton method, safeguarded by first-order steps.

The unknown is z of the normal map G(z) = (z - P(z)) / s + F(P(z)), y = P(z), with s about 1 / L: unscaled maps may cycle. With
D = DP(z) and H = DF(y) a Newton step solves (H D + (I - D) / s) dz = -G. In v = D dz this is (I - D + s D H) v = -s D G, and
dz = v - s (G + H v). For gradients v = D u makes it symmetric and positive, (D - D^2 + s D H D) u = -s D G, so that conjugate
gradients solve it from products alone (Milzarek and Ulbrich, 2014); small systems are solved densely, other maps by GMRES.

A Newton step counts if it shrinks the natural residual; else some steps of the safeguard are taken from the best point, so
that the method is never much worse than its safeguard and needs no line search.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg, gmres

from hierfl.compiler.fixed_point import Map, target
from hierfl.compiler.program import Array

DENSE_LIMIT = 64
LIMIT = 200
SAFE_STEPS = 50
KRYLOV_STEPS = 400

Safeguard = Callable[..., tuple[Array, Array, Array]]


def semismooth_newton(
    operator: Map,
    project: Map,
    safeguard: Safeguard,
    start: Array,
    step: Array,
    mu: Array,
    tolerance: Array | float,
    symmetric: bool,
) -> tuple[Array, Array, Array]:
    """(y, step, iterations); ``safeguard`` is ``accelerated`` for gradients, ``extragradient`` otherwise."""

    def natural(y: Array, step: Array) -> tuple[Array, Array, Array]:
        """(force, projected step, residual / step)."""
        force = operator(y)
        new = project(y - step * force)
        return force, new, jnp.linalg.norm(y - new) / step

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, count, done = state
        return ~done & (count < LIMIT)

    def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
        y, step, error, last, count, _ = state
        force = operator(y)
        forcing = jnp.clip(0.5 * (error / last) ** 2, 1e-6, 0.1)  # Eisenstat and Walker (1996), choice 2
        trial = _newton_step(operator, project, y, y - step * force, step, forcing, symmetric)
        trial_force, _, trial_error = natural(trial, step)
        good = trial_error <= 0.5 * error

        def safe(step: Array) -> tuple[Array, ...]:
            better, shorter, _ = safeguard(operator, project, y, step, mu, tolerance, SAFE_STEPS)
            better_force, _, better_error = natural(better, shorter)
            return better, shorter, better_error, better_force

        new, step, new_error, new_force = jax.lax.cond(
            good, lambda step: (trial, step, trial_error, trial_force), safe, step
        )
        done = new_error <= target(new, new_force, step, mu, tolerance)
        return new, step, new_error, error, count + 1, done

    force, _, error = natural(start, step)
    done = error <= target(start, force, step, mu, tolerance)
    state: tuple[Array, ...] = (start, step, error, error, jnp.zeros((), int), done)
    y, step, _, _, count, _ = jax.lax.while_loop(unfinished, advance, state)
    return y, step, count


def _newton_step(
    operator: Map, project: Map, y: Array, z: Array, step: Array, forcing: Array, symmetric: bool
) -> Array:
    """P(z + dz); a step that is not finite falls back to P(z), which the caller will not accept."""
    p, derivative = jax.linearize(project, z)
    force, hessian = jax.linearize(operator, p)
    g = (z - p) / step + force
    right = -step * derivative(g)
    if z.size <= DENSE_LIMIT:
        identity = jnp.eye(z.size, dtype=z.dtype)
        d, h = jax.vmap(derivative, out_axes=1)(identity), jax.vmap(hessian, out_axes=1)(identity)
        v = jnp.linalg.solve(identity - d + step * (d @ h), right)
    elif symmetric:

        def product(u: Array) -> Array:
            du = derivative(u)
            return du - derivative(du) + step * derivative(hessian(du))

        v = derivative(cg(product, right, tol=forcing, maxiter=KRYLOV_STEPS)[0])
    else:

        def mixed(v: Array) -> Array:
            return v - derivative(v) + step * derivative(hessian(v))

        v = gmres(mixed, right, tol=forcing, restart=30, maxiter=KRYLOV_STEPS // 30)[0]
    dz = v - step * (g + hessian(v))
    return project(jnp.where(jnp.isfinite(dz).all(), z + dz, z))
