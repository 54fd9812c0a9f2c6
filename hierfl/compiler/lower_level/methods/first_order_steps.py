"""Iterations of first order: accelerated projected gradient with restart, and extragradient where a map is no gradient.

They need no Lipschitz constant: the step starts from a power iteration, about 1 / L, and shrinks when the observed differences of F ask
for it. They are what makes Newton's method safe (O'Donoghue and Candes, 2015; Korpelevich, 1976). Accelerated gradient is a method of
its own as well, for whoever asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from hierfl.compiler.lower_level.certificate import LowerSolution, target
from hierfl.compiler.lower_level.methods.method import ITERATION_LIMIT, IterativeMethod, Question, Verdict
from hierfl.compiler.lower_level.methods.walk import Iteration, Onward, walked
from hierfl.compiler.lower_level.structure import LowerStructure


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
        step = _safe_step(stand.step, point - stand.point, force - stand.force)
        return Onward(stand._replace(force=force, step=step, point=point), point - step * force, stand.done)


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
        short = step * changed <= 0.9 * moved + _tiny(y)
        met = ~whole & (moved / step <= target(point, old, step, self.mu, self.tolerance))
        arrived, half = whole | (met & short), ~whole & short
        shrunk = jnp.minimum(0.7 * moved / jnp.where(changed > 0, changed, 1.0), 0.7 * step)
        step = jnp.where(whole | short, step, shrunk)
        new_y, new_force = jnp.where(arrived, point, y), jnp.where(arrived, force, old)
        onward = jnp.where(half, y - step * force, new_y - step * new_force)
        taken = taken + ~whole
        return Onward(Halfway(new_y, new_force, step, half, taken), onward, met | (~half & (taken >= self.limit)))


def _safe_step(step: Float[Array, ""], moved: Array, changed: Array) -> Array:
    """Shrink the step when ||F(a) - F(b)|| shows a Lipschitz constant above 1/step, beyond rounding."""
    distance, difference = jnp.linalg.norm(moved), jnp.linalg.norm(changed)
    violated = step * difference > 1.0001 * distance + _tiny(moved)
    return jnp.where(violated, 0.95 * distance / jnp.where(difference > 0, difference, 1.0), step)


def _tiny(like: Array) -> Array:
    """A length that rounding alone may make."""
    return jnp.asarray(1e-13 if like.dtype == jnp.float64 else 1e-6, like.dtype)


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
