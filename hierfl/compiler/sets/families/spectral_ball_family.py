"""Balls of the spectral norm: largest singular value is at most r."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hierfl.compiler.sets.bounded_terms import BoundedTerm, SpectralNorm
from hierfl.compiler.sets.families.family import Family, Membership, all_rows
from hierfl.compiler.sets.families.scales import divided, is_uniform
from hierfl.projections import spectral


@dataclass(frozen=True)
class SpectralBall(Family):
    """Matrices of ``shape`` whose largest singular value is at most r; v is the matrix in Fortran order."""

    shape: tuple[int, int]
    name: ClassVar[str] = "spectral ball"
    cost: ClassVar[str] = "O(n^1.5): a singular value decomposition"

    @classmethod
    def recognise(cls, term: BoundedTerm) -> Membership | None:
        """A spectral norm below a bound that is free of y."""
        norm = term.function
        if term.bound_moves or not isinstance(norm, SpectralNorm):
            return None
        rows = all_rows(norm.argument)
        return Membership(cls(norm.argument.shape), norm.argument, rows, radius=term.bound, scale=term.scale)

    def admits(self, scales: Float[np.ndarray, " k"]) -> bool:
        """Whether all rows share one scale."""
        return is_uniform(scales)

    def project(
        self, v: Float[Array, " k"], d: Float[Array, " k"], radius: Float[Array, ""], uniform: bool
    ) -> Float[Array, " k"]:
        """Clip the singular values."""
        matrix = v.reshape(self.shape, order="F")
        return jnp.ravel(spectral.project_spectral_ball(matrix, divided(radius, d[0])), order="F")
