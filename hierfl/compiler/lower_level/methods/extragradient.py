"""Extragradient (Korpelevich, 1976), for monotone maps that are no gradients: what makes Newton's method safe there.

It needs no Lipschitz constant: the step starts from a power iteration and shrinks when the observed differences of F ask for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from hierfl.compiler.lower_level.certificate import target
from hierfl.compiler.lower_level.methods.step_sizes import tiny
from hierfl.compiler.lower_level.methods.walk import Iteration, Onward


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
