"""Rotated cones {(u, s, t) : ||u||^2 <= factor * s * t, s >= 0, t >= 0}; factor = 2 is the standard one.

In p = (s + t) / sqrt 2, q = (s - t) / sqrt 2 the cone reads ||(c u, q)|| <= p, c^2 = 2 / factor. A multiplier m = b / a gives

    u' = a u / (a + c^2 b),   q' = a q / (a + b),   p' = a p / (a - b),

with m < 1 for p > 0 and m > 1 for p < 0. With (a, b) = (1, w) or (w, 1) both are one equation, (a + b - 2 w) ||(c u', q')|| =
a |p|, decreasing in w on [0, 1] (linear for c = 1, where it is the closed form) and solved to a relative accuracy of w, on
which the accuracy for large and small factors depends.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections.norm import norm
from hierfl.projections.root import decreasing_root


def project(
    u: Float[Array, " n"], s: Float[Array, ""], t: Float[Array, ""], factor: Float[Array, ""]
) -> tuple[Float[Array, " n"], Float[Array, ""], Float[Array, ""]]:
    """The nearest point to ``u``, ``s``, ``t`` for ``factor`` > 0."""
    length = norm(u)
    size = jax.lax.stop_gradient(jnp.maximum(length, jnp.maximum(jnp.abs(s), jnp.abs(t))))
    size = jnp.where(size > 0, size, 1.0)
    half = jnp.sqrt(jnp.asarray(0.5, u.dtype))
    c = jnp.sqrt(2.0 / jnp.asarray(factor, u.dtype))
    p, q, r = (s + t) / size * half, (s - t) / size * half, length / size
    upward = p >= 0

    def pair(w: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The pair (a, b) of the multiplier."""
        return jnp.where(upward, 1.0, w), jnp.where(upward, w, 1.0)

    def axis(w: Float[Array, ""]) -> Float[Array, ""]:
        """The length ||(c u', q')|| / a."""
        a, b = pair(w)
        square = (c * r / (a + c * c * b)) ** 2 + (q / (1.0 + w)) ** 2
        return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)

    def excess(w: Float[Array, ""]) -> Float[Array, ""]:
        return (1.0 - w) * axis(w) - jnp.where(upward, p, -p)  # |p| would have no derivative at 0

    zero, one = jnp.zeros_like(p), jnp.ones_like(p)
    beyond = excess(zero) <= 0
    inside, polar = beyond & upward, beyond & ~upward
    w = decreasing_root(excess, zero, one)
    a, b = pair(w)
    new_u = u * (a / (a + c * c * b))
    # the larger of s and t has no cancellation, the other one follows from the boundary
    side = jnp.where(q >= 0, 1.0, -1.0)
    larger = size * half * a * (axis(w) + side * q / (1.0 + w))
    shorter = length * (a / (a + c * c * b))
    smaller = shorter * (shorter / jnp.where(larger > 0, larger, 1.0)) / factor
    new_s, new_t = jnp.where(q >= 0, larger, smaller), jnp.where(q >= 0, smaller, larger)

    def choose(old: Float[Array, "*shape"], new: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return jnp.where(inside, old, jnp.where(polar, 0.0, new))

    return choose(u, new_u), choose(s, new_s), choose(t, new_t)
