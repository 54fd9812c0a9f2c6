"""The zero of a nonincreasing scalar function, differentiable by the implicit function theorem.

Bracketing with inverse quadratic interpolation, which needs no derivative and never leaves the bracket, so that kinks, plateaus
and jumps of the function cost bisections but cannot break it. What the function depends on may be differentiated, batched
and traced: ``jax.lax.custom_root`` replaces the derivative of the iterations by one Newton correction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LIMIT = 250  # bisections alone need at most 210 in double precision
GROWTH = 4.0

Scalar: TypeAlias = Callable[[Float[Array, ""]], Float[Array, ""]]  # a function of one number


def decreasing_root(g: Scalar, low: Float[Array, ""], high: Float[Array, ""]) -> Float[Array, ""]:
    """The t in [low, high] with g(t) = 0 to machine precision, for a continuous nonincreasing scalar ``g`` of a scalar.

    Without a change of sign it is the end where |g| is smaller. Derivatives with respect to everything that ``g`` closes over
    follow from the implicit function theorem; where g' vanishes they are 0. None go to ``low`` and ``high``.
    """
    low, high = jnp.broadcast_arrays(jnp.asarray(low), jnp.asarray(high))
    root: Float[Array, ""] = jax.lax.custom_root(
        g, low, lambda function, _: _chandrupatla(function, low, high), _divide
    )
    return root


def bracket(g: Scalar, start: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Bounds (low, high) around the zero of a nonincreasing ``g`` on t >= 0, by growing ``start`` > 0; no derivatives.

    When g stays positive, ``high`` is 4^30 (about 1e18) times ``start``.
    """

    def positive(state: tuple[Array, Array, Array]) -> Array:
        _, high, count = state
        return (g(high) > 0) & (count < 30)

    def grow(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        _, high, count = state
        return high, GROWTH * high, count + 1

    start = jax.lax.stop_gradient(start)
    low, high, _ = jax.lax.while_loop(positive, grow, (jnp.zeros_like(start), start, jnp.zeros((), int)))
    return jax.lax.stop_gradient(low), jax.lax.stop_gradient(high)


def _divide(linear: Scalar, right: Float[Array, ""]) -> Float[Array, ""]:
    """Solve slope * t = right, with 0 where the slope vanishes."""
    slope = linear(jnp.ones_like(right))
    return jnp.where(slope != 0, right / jnp.where(slope != 0, slope, 1.0), 0.0)


def _chandrupatla(g: Scalar, low: Float[Array, ""], high: Float[Array, ""]) -> Float[Array, ""]:
    """The zero in a bracket, by Chandrupatla's method.

    Chandrupatla (1997), "A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear function".
    """
    eps = jnp.finfo(low.dtype).eps
    g_low, g_high = g(low), g(high)
    tiny = eps**4 * jnp.abs(high - low)  # a zero at 0 cannot be approached to a relative accuracy

    def width(
        x1: Float[Array, ""], x2: Float[Array, ""], f1: Float[Array, ""], f2: Float[Array, ""]
    ) -> Float[Array, ""]:
        """The tolerance as a share of the bracket [x1, x2]."""
        best = jnp.where(jnp.abs(f1) < jnp.abs(f2), x1, x2)
        return (2 * eps * jnp.abs(best) + tiny) / jnp.abs(jnp.where(x1 == x2, tiny, x2 - x1))

    def unfinished(state: tuple[Array, ...]) -> Array:
        x1, x2, _, f1, f2, _, _, count = state
        return (width(x1, x2, f1, f2) < 0.5) & (f1 * jnp.sign(f2) < 0) & (count < LIMIT)

    def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
        x1, x2, _, f1, f2, _, share, count = state
        x = x1 + share * (x2 - x1)
        f = g(x)
        same = jnp.sign(f) == jnp.sign(f1)
        x3, f3 = jnp.where(same, x1, x2), jnp.where(same, f1, f2)
        x2, f2, x1, f1 = jnp.where(same, x2, x1), jnp.where(same, f2, f1), x, f
        xi, phi = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
        trusted = (phi * phi < xi) & ((1 - phi) ** 2 < 1 - xi)
        quadratic = f1 / (f2 - f1) * f3 / (f2 - f3) + (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
        margin = jnp.minimum(width(x1, x2, f1, f2), 0.5)
        share = jnp.clip(jnp.where(trusted, quadratic, 0.5), margin, 1 - margin)
        return x1, x2, x3, f1, f2, f3, share, count + 1

    half = jnp.full_like(low, 0.5)
    start: tuple[Array, ...] = (low, high, low, g_low, g_high, g_low, half, jnp.zeros((), int))
    x1, x2, _, f1, f2, *_ = jax.lax.while_loop(unfinished, advance, start)
    return jnp.where(jnp.abs(f1) <= jnp.abs(f2), x1, x2)
