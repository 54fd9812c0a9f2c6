"""Extragradient (Korpelevich, 1976), for monotone maps that are no gradients.

It needs no Lipschitz constant: the step starts from a power iteration and shrinks when the observed differences of F ask for it.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.compiler.lower_level.certificate import LowerSolution, Map, target
from hierfl.compiler.lower_level.methods.method import ITERATION_LIMIT, IterativeMethod, Question, Verdict
from hierfl.compiler.lower_level.methods.step_sizes import first_step, tiny
from hierfl.compiler.lower_level.structure import LowerStructure


class ExtragradientMethod(IterativeMethod):
    """The method for monotone maps F over sets that can be projected on, exactly or (for equilibria) by iteration."""

    name: ClassVar[str] = "extragradient"
    cost: ClassVar[str] = "two passes and two projections in each step, until the residual is met"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.rough is None and (structure.exact_projection or structure.level.kind == "equilibrium"):
            return Verdict(True, "F can be evaluated and Y(x) projected on")
        return Verdict(False, structure.obstacle or "")

    def answer(self, question: Question) -> LowerSolution:
        owner, start = question.owner, question.start
        step, force = first_step(owner.operator, start)
        end = extragradient(
            owner.operator, owner.project, start, force, step, question.mu, question.tolerance, ITERATION_LIMIT
        )
        return question.certified(*end)


def extragradient(
    operator: Map,
    project: Map,
    start: Float[Array, " size"],
    force: Float[Array, " size"],
    step: Float[Array, ""],
    mu: Float[Array, ""],
    tolerance: Array | float,
    limit: int,
) -> tuple[Float[Array, " size"], Float[Array, ""], Array]:
    """Extragradient with a step that shrinks until it is short of 1/L along the way; returns (y, step, iterations).

    Called as ``accelerated`` is; it does not need F at the start.
    """

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, count, done = state
        return (count < limit) & ~done

    def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
        y, step, count, _ = state
        force = operator(y)
        half = project(y - step * force)
        half_force = operator(half)
        moved, changed = jnp.linalg.norm(half - y), jnp.linalg.norm(half_force - force)
        short = step * changed <= 0.9 * moved + tiny(y)
        new = project(y - step * half_force)
        done = moved / step <= target(half, force, step, mu, tolerance)
        shrunk = jnp.where(short, step, jnp.minimum(0.7 * moved / jnp.where(changed > 0, changed, 1.0), 0.7 * step))
        return jnp.where(short, jnp.where(done, half, new), y), shrunk, count + 1, done

    initial: tuple[Array, ...] = (start, step, jnp.zeros((), int), jnp.zeros((), bool))
    final = jax.lax.while_loop(unfinished, advance, initial)
    return final[0], final[1], final[2]
