"""What one evaluation of the implicit function gives."""

from __future__ import annotations

from typing import NamedTuple

from jax import Array
from jaxtyping import Float

from hierfl.compiler.lower_level.certificate import LowerSolution


class Evaluation(NamedTuple):
    """The implicit function at one x; ``value`` is oriented for minimisation, ``solution`` and ``gap`` are per owner."""

    value: Float[Array, ""]
    server: Float[Array, ""]
    clients: Float[Array, " m"]
    solution: LowerSolution | None
    gap: Float[Array, " owners"]
