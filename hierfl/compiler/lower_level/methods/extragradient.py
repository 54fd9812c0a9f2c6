"""Extragradient (Korpelevich, 1976), for monotone maps that are no gradients.

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
from hierfl.compiler.lower_level.methods.step_sizes import tiny
from hierfl.compiler.lower_level.methods.walk import Iteration, Onward, walked
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
        rule = ExtragradientSteps(question.mu, question.tolerance, ITERATION_LIMIT)
        return walked(question, rule, question.warm)


class Halfway(NamedTuple):
    """A stand of extragradient: a trip goes from y to half a step, the next one, with F there, from y to the ``whole`` step's end."""

    y: Float[Array, " size"]
    force: Float[Array, " size"]
    step: Float[Array, ""]
    whole: Bool[Array, ""]
    taken: Int[Array, ""]


@dataclass(frozen=True)
class ExtragradientSteps(Iteration[Halfway]):
    """Extragradient with a step that shrinks until it is short of 1/L along the way."""

    mu: Array
    tolerance: Array | float
    limit: int

    def begin(self, y: Array, force: Array, step: Array) -> Halfway:
        return Halfway(y, force, step, jnp.zeros((), bool), jnp.zeros((), int))

    def arrive(self, stand: Halfway, nearest: Array) -> tuple[Halfway, Array]:
        return stand, nearest

    def depart(
        self, stand: Halfway, ahead: Array, point: Array, force: Array, slope: Any, stepping: Array
    ) -> Onward[Halfway]:
        y, old, step, whole, taken = stand
        moved, changed = jnp.linalg.norm(point - y), jnp.linalg.norm(force - old)
        short = step * changed <= 0.9 * moved + tiny(y)
        met = ~whole & (moved / step <= target(point, old, step, self.mu, self.tolerance))
        arrived, half = whole | (met & short), ~whole & short
        shrunk = jnp.minimum(0.7 * moved / jnp.where(changed > 0, changed, 1.0), 0.7 * step)
        step = jnp.where(whole | short, step, shrunk)
        new_y, new_force = jnp.where(arrived, point, y), jnp.where(arrived, force, old)
        onward = jnp.where(half, y - step * force, new_y - step * new_force)
        taken = taken + ~whole
        return Onward(Halfway(new_y, new_force, step, half, taken), onward, met | (~half & (taken >= self.limit)))
