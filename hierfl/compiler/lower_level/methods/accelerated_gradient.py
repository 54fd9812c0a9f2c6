"""Accelerated projected gradient with gradient restart (O'Donoghue and Candes, 2015).

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
from hierfl.compiler.lower_level.methods.step_sizes import first_step, safe_step
from hierfl.compiler.lower_level.structure import LowerStructure


class AcceleratedGradient(IterativeMethod):
    """The method for Lipschitz gradients F over sets with an exact projection.

    Never the first choice, since Newton's method is safeguarded by it.
    """

    name: ClassVar[str] = "accelerated gradient"
    cost: ClassVar[str] = "a full pass over the data and a projection in each step, until the residual is met"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.obstacle is not None:
            return Verdict(False, structure.obstacle)
        if not structure.is_gradient:
            return Verdict(False, "needs a gradient; F is not one")
        return Verdict(True, "F is a Lipschitz gradient and Y(x) can be projected on")

    def answer(self, question: Question) -> LowerSolution:
        owner, start = question.owner, question.start
        step, force = first_step(owner.operator, start)
        end = accelerated(
            owner.operator, owner.project, start, force, step, question.mu, question.tolerance, ITERATION_LIMIT
        )
        return question.certified(*end)


def accelerated(
    operator: Map,
    project: Map,
    start: Float[Array, " size"],
    force: Float[Array, " size"],
    step: Float[Array, ""],
    mu: Float[Array, ""],
    tolerance: Array | float,
    limit: int,
) -> tuple[Float[Array, " size"], Float[Array, ""], Array]:
    """Accelerated projected gradient with restart, from a start and F there; returns (y, step, iterations)."""

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, count, done = state
        return (count < limit) & ~done

    def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
        y, ahead, momentum, step, last, last_force, count, _ = state
        force = operator(ahead)
        step = safe_step(step, ahead - last, force - last_force)
        new = project(ahead - step * force)
        gap = jnp.linalg.norm(ahead - new)
        done = gap / step <= target(new, force, step, mu, tolerance)
        restart = jnp.vdot(ahead - new, new - y) > 0
        next_momentum = 0.5 * (1 + jnp.sqrt(1 + 4 * momentum**2))
        push = jnp.where(restart, 0.0, (momentum - 1) / next_momentum)
        next_momentum = jnp.where(restart, 1.0, next_momentum)
        return new, new + push * (new - y), next_momentum, step, ahead, force, count + 1, done

    one = jnp.ones((), start.dtype)
    initial: tuple[Array, ...] = (start, start, one, step, start, force, jnp.zeros((), int), jnp.zeros((), bool))
    final = jax.lax.while_loop(unfinished, advance, initial)
    return final[0], final[3], final[6]
