"""The threshold m of a weighted soft thresholding with a given budget: sum(w * max(s - m w, 0)) - slope * m = budget.

The left side is convex, piecewise linear and decreasing in m, so Newton's method from a point where it is too large only
moves up, drops entries for good, and ends after finitely many steps (Michelot, 1986, for w = 1).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def threshold(
    s: Float[Array, " n"], w: Float[Array, " n"], budget: Float[Array, ""], slope: Float[Array, ""] | float = 0.0
) -> Float[Array, ""]:
    """The m for ``s`` and weights ``w`` > 0 where the budget is positive; exact, with the derivatives of its last piece.

    Entries of weight 0 take no part. Without a slope, a budget of 0 or less gives the least m that leaves nothing; with one
    (> 0, for cones) the budget may have either sign.
    """
    slope = jnp.asarray(slope, s.dtype)
    stopped_s, stopped_w, stopped_budget, stopped_slope = map(jax.lax.stop_gradient, (s, w, budget, slope))
    positive = stopped_w > 0
    ratio = jnp.where(positive, stopped_s / jnp.where(positive, stopped_w, 1.0), -jnp.inf)

    def on(
        active: Bool[Array, " n"],
        s: Float[Array, " n"],
        w: Float[Array, " n"],
        budget: Float[Array, ""],
        slope: Float[Array, ""],
    ) -> Float[Array, ""]:
        """The m for which exactly the active entries share the budget."""
        square = jnp.sum(jnp.where(active, w * w, 0.0)) + slope
        return (jnp.sum(jnp.where(active, w * s, 0.0)) - budget) / jnp.where(square > 0, square, 1.0)

    def shrink(state: tuple[Bool[Array, " n"], Bool[Array, ""]]) -> tuple[Bool[Array, " n"], Bool[Array, ""]]:
        """The entries that stay active, and whether they are the last."""
        active, _ = state
        smaller = active & (ratio > on(active, stopped_s, stopped_w, stopped_budget, stopped_slope))
        last = (~jnp.any(smaller) & (stopped_slope <= 0)) | jnp.all(smaller == active)
        return jnp.where(last, active, smaller), last

    active, _ = jax.lax.while_loop(lambda state: ~state[1], shrink, (positive, ~jnp.any(positive)))
    top = jnp.max(ratio, initial=-jnp.inf)
    largest = jnp.max(jnp.where(positive & (ratio == top), s / jnp.where(w > 0, w, 1.0), -jnp.inf), initial=-jnp.inf)
    return jnp.where((stopped_budget > 0) | (stopped_slope > 0), on(active, s, w, budget, slope), largest)
