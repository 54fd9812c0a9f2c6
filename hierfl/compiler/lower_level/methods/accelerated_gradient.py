"""Accelerated projected gradient with gradient restart (O'Donoghue and Candes, 2015).

It needs no Lipschitz constant: the step starts from a power iteration and shrinks when the observed differences of F ask for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from hierfl.compiler.lower_level.certificate import LowerSolution, target
from hierfl.compiler.lower_level.methods.method import ITERATION_LIMIT, IterativeMethod, Question, Verdict
from hierfl.compiler.lower_level.methods.step_sizes import safe_step
from hierfl.compiler.lower_level.methods.walk import Iteration, Onward, walked
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
        rule = AcceleratedSteps(question.mu, question.tolerance, ITERATION_LIMIT)
        return walked(question, rule, question.warm)


class Extrapolated(NamedTuple):
    """A stand of accelerated gradient; ``force`` is F at ``point``, which is y pushed on, but y itself at the end."""

    y: Float[Array, " size"]
    force: Float[Array, " size"]
    step: Float[Array, ""]
    point: Float[Array, " size"]
    momentum: Float[Array, ""]
    taken: Int[Array, ""]
    done: Bool[Array, ""]


@dataclass(frozen=True)
class AcceleratedSteps(Iteration[Extrapolated]):
    """Accelerated projected gradient with restart."""

    mu: Array
    tolerance: Array | float
    limit: int

    def begin(self, y: Array, force: Array, step: Array) -> Extrapolated:
        return Extrapolated(y, force, step, y, jnp.ones((), y.dtype), jnp.zeros((), int), jnp.zeros((), bool))

    def arrive(self, stand: Extrapolated, nearest: Array) -> tuple[Extrapolated, Array]:
        y, force, step, point, momentum, taken, _ = stand
        taken, gap = taken + 1, jnp.linalg.norm(point - nearest)
        done = (gap / step <= target(nearest, force, step, self.mu, self.tolerance)) | (taken >= self.limit)
        restart = jnp.vdot(point - nearest, nearest - y) > 0
        after = 0.5 * (1 + jnp.sqrt(1 + 4 * momentum**2))
        push = jnp.where(restart | done, 0.0, (momentum - 1) / after)
        stand = Extrapolated(nearest, force, step, point, jnp.where(restart, 1.0, after), taken, done)
        return stand, nearest + push * (nearest - y)

    def depart(
        self, stand: Extrapolated, ahead: Array, point: Array, force: Array, slope: Any, stepping: Array
    ) -> Onward[Extrapolated]:
        step = safe_step(stand.step, point - stand.point, force - stand.force)
        return Onward(stand._replace(force=force, step=step, point=point), point - step * force, stand.done)
