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
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.sparse.linalg import cg, gmres
from jaxtyping import Float

from hierfl.compiler.lower_level.certificate import LowerSolution, Map, target
from hierfl.compiler.lower_level.methods.accelerated_gradient import accelerated
from hierfl.compiler.lower_level.methods.extragradient import extragradient
from hierfl.compiler.lower_level.methods.method import IterativeMethod, Question, Verdict
from hierfl.compiler.lower_level.methods.step_sizes import POWER_STEPS, first_step
from hierfl.compiler.lower_level.structure import LowerStructure

DENSE_LIMIT = 64
LIMIT = 200
SAFE_STEPS = 50
KRYLOV_STEPS = 400


Safeguard = Callable[..., tuple[Array, Array, Array]]


class SemismoothNewton(IterativeMethod):
    """The method for smooth maps F over sets with an exact projection."""

    name: ClassVar[str] = "semismooth Newton"
    cost: ClassVar[str] = "some Newton steps; each takes tens of products with the Hessian, of the cost of a gradient"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.obstacle is not None:
            return Verdict(False, structure.obstacle)
        how = "Newton-CG" if structure.kind == "free" and structure.is_gradient else "on the normal map"
        safeguard = "accelerated gradient" if structure.is_gradient else "extragradient"
        return Verdict(True, f"F is smooth and Y(x) has an exact projection ({how}); safeguarded by {safeguard}")

    def answer(self, question: Question) -> LowerSolution:
        return question.certified(*newton_from(question, question.start, self.structure.is_gradient))


def newton_from(
    question: Question, start: Array, gradient: bool, power_steps: Any = POWER_STEPS
) -> tuple[Array, Array, Array]:
    """(y, step, iterations) of Newton's method on a question, from a start of its own; ``gradient`` says whether F is one."""
    owner = question.owner
    step, force = first_step(owner.operator, start, power_steps)
    safeguard = accelerated if gradient else extragradient
    return semismooth_newton(
        owner.operator, owner.project, safeguard, start, force, step, question.mu, question.tolerance, gradient
    )


def semismooth_newton(
    operator: Map,
    project: Map,
    safeguard: Safeguard,
    start: Float[Array, " size"],
    force: Float[Array, " size"],
    step: Float[Array, ""],
    mu: Float[Array, ""],
    tolerance: Array | float,
    symmetric: bool,
) -> tuple[Array, Array, Array]:
    """(y, step, iterations) from a start and F there.

    ``safeguard`` is ``accelerated`` for gradients, ``extragradient`` otherwise. Every pass makes one trial, by Newton or, after
    a Newton trial that failed, by the safeguard, whose trial always counts.
    """

    def residual(y: Float[Array, " size"], force: Array, step: Array) -> Array:
        return jnp.linalg.norm(y - project(y - step * force)) / step

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, count, done = state
        return ~done & (count < LIMIT)

    def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
        y, force, step, error, last, failed, count, _ = state

        def by_newton(step: Array) -> tuple[Array, Array]:
            forcing = jnp.clip(0.5 * (error / last) ** 2, 1e-6, 0.1)  # Eisenstat and Walker (1996), choice 2
            return _newton_step(operator, project, y, y - step * force, step, forcing, symmetric), step

        def by_safeguard(step: Array) -> tuple[Array, Array]:
            limit = jnp.where(failed, SAFE_STEPS, 0)  # side by side both kinds are run for all
            return safeguard(operator, project, y, force, step, mu, tolerance, limit)[:2]

        trial, trial_step = jax.lax.cond(failed, by_safeguard, by_newton, step)
        trial_force = operator(trial)
        trial_error = residual(trial, trial_force, trial_step)
        good = failed | (trial_error <= 0.5 * error)
        new, new_force, step = jax.tree.map(
            lambda ours, theirs: jnp.where(good, ours, theirs),
            (trial, trial_force, trial_step),
            (y, force, step),
        )
        new_error, last = jnp.where(good, trial_error, error), jnp.where(good, error, last)
        done = good & (new_error <= target(new, new_force, step, mu, tolerance))
        return new, new_force, step, new_error, last, ~good, count + good, done

    error = residual(start, force, step)
    done = error <= target(start, force, step, mu, tolerance)
    state: tuple[Array, ...] = (start, force, step, error, error, jnp.zeros((), bool), jnp.zeros((), int), done)
    y, _, step, _, _, _, count, _ = jax.lax.while_loop(unfinished, advance, state)
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
