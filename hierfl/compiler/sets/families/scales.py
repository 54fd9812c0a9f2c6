"""Row norms d of a membership, and the radius under them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hierfl.atoms.numerics.safe import steep


def is_uniform(scales: Float[np.ndarray, " k"]) -> bool:
    """Whether all are equal, up to rounding."""
    return scales.size == 0 or bool(np.ptp(scales) <= 1e-12 * np.max(scales))


def is_uniform_cone(scales: Float[np.ndarray, " k"]) -> bool:
    """Whether the scales of (u, t) are equal in u and positive in t."""
    return is_uniform(scales[:-1]) and bool(scales[-1] > 0)


def divided(radius: Float[Array, ""], scale: Float[Array, ""]) -> Float[Array, ""]:
    """The radius over the scale; a vanishing scale leaves everything free."""
    return jnp.where(scale > 0, radius / jnp.where(scale > 0, scale, 1.0), jnp.inf)


def safe_sqrt(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """sqrt(max(square, 0)) with derivative 0, not NaN, where it is not positive."""
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def root_of(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """sqrt(max(square, 0)), at 0 with a slope that counts as infinite."""
    return jnp.where(square == 0, steep(square), safe_sqrt(square))
