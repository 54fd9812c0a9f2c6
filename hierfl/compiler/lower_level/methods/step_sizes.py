"""Step sizes of first-order iterations: about 1 / L at the start, and shorter where the way shows a larger L."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.compiler.lower_level.certificate import Map

POWER_STEPS = 15


def first_step(operator: Map, start: Array, force: Array, iterations: Any = POWER_STEPS) -> Array:
    """1/L from a power iteration on F's Jacobian at the start, F there being known; L from below, hence the later safeguards."""
    probe = jnp.cos(jnp.arange(1, start.size + 1, dtype=start.dtype) ** 2)

    def multiply(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        image = jax.jvp(operator, (start,), (state[0],))[1]
        size = jnp.linalg.norm(image)
        return image / jnp.where(size > 0, size, 1.0), size

    first = probe / jnp.linalg.norm(probe), jnp.zeros((), start.dtype)
    _, size = jax.lax.fori_loop(0, iterations, multiply, first)
    length = jnp.linalg.norm(force)
    # F constant here: any step will do
    flat = 100.0 * (1.0 + jnp.linalg.norm(start)) / jnp.where(length > 0, length, 1.0)
    curved = (size * flat > 1e-6) & jnp.isfinite(size)
    return jnp.where(curved, 1.0 / (1.05 * jnp.where(size > 0, size, 1.0)), flat)


def safe_step(step: Float[Array, ""], moved: Array, changed: Array) -> Array:
    """Shrink the step when ||F(a) - F(b)|| shows a Lipschitz constant above 1/step, beyond rounding."""
    distance, difference = jnp.linalg.norm(moved), jnp.linalg.norm(changed)
    violated = step * difference > 1.0001 * distance + tiny(moved)
    return jnp.where(violated, 0.95 * distance / jnp.where(difference > 0, difference, 1.0), step)


def tiny(like: Array) -> Array:
    """A length that rounding alone may make."""
    return jnp.asarray(1e-13 if like.dtype == jnp.float64 else 1e-6, like.dtype)
