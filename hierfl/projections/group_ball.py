"""Balls of a weighted sum of Euclidean norms, {y : sum_g weights[g] ||y_g - centre_g||_2 <= radius}."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.projections import l1_ball
from hierfl.projections.emptiness import below_zero


def project(
    z: Float[Array, " n"],
    groups: Int[np.ndarray, " n"],
    centre: Float[Array, " n"],
    weights: Float[Array, " groups"],
    radius: Float[Array, ""],
) -> Float[Array, " n"]:
    """The nearest point to ``z``, ``groups`` being a constant index of ``weights`` >= 0 for every entry.

    Each group keeps its direction; the lengths are projected on a weighted l1 ball (van den Berg et al., 2008). Groups of
    weight 0 are free; ``radius`` >= 0 may be infinite.
    """
    groups = np.asarray(groups, np.int32)
    shift = z - centre
    square = jax.ops.segment_sum(shift * shift, groups, weights.shape[0])
    some = jnp.where(square > 0, square, 1.0)
    lengths = jnp.where(square > 0, jnp.sqrt(some), 0.0)
    kept = l1_ball.shortened(lengths, weights, radius) / jnp.sqrt(some)
    inside = jnp.sum(weights * lengths) <= radius
    return jnp.where(inside, z, centre + shift * kept[groups])


def gap(radius: Float[Array, ""]) -> Float[Array, ""]:
    """How far the radius is below 0: positive when the ball is empty."""
    return below_zero(radius)
