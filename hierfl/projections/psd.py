"""The cone of positive semidefinite matrices."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections.spectral import project_symmetric


def project(z: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric part of ``z`` with its negative eigenvalues set to 0 (Higham, 1988)."""
    return project_symmetric(z, lambda values: jnp.maximum(values, 0.0))
