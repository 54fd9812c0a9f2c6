"""Newton's method where the derivative of a map is infinite inside its domain, as that of sqrt(|w|) at w = 0.

There a step is short whatever is missing, and may be lost beside u altogether: an answer is told by whether multipliers balance the map,
up to what the map changes within the rounding of u; and a step that proves nothing is made long enough to be seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.cones import project_dual
from hierfl.compiler.host.standard_form import Cone

ROUNDING = 4e-16  # of u, relative
SEEN = 1e-8  # of 1 + |u|, a step that is not lost in it
BALANCED = 1e-12  # of the largest force, what multipliers may miss of one
FAINT = (
    1e-6  # of the largest force, a multiplier of the wrong sign: beside a derivative of 1e16 any number is told as one
)

Vector = Float[np.ndarray, " width"]
Stack = Float[np.ndarray, "*k width"]


def around(u: Stack) -> tuple[Stack, Stack]:
    """Points on both sides of u, as near as rounding."""
    return u * (1.0 + ROUNDING), u * (1.0 - ROUNDING)


def balanced(
    felt: Float[np.ndarray, "*k"] | float, pulled: Stack, force: Stack, above: Stack, below: Stack
) -> Bool[np.ndarray, "*k"]:
    """Whether a map is what multipliers pull: up to a little of the largest that was ``felt`` of it, and to its change ``around`` there."""
    allowed = BALANCED * np.asarray(felt)[..., None] + np.abs(above - below)
    return np.asarray((np.abs(pulled - force) <= allowed).all(axis=-1))


def are_multipliers(cones: Sequence[Cone], z: Float[np.ndarray, " rows"], felt: float) -> bool:
    """Whether z is in the dual cones, beside the largest force that was ``felt``."""
    return bool(np.abs(z - project_dual(cones, z)).max(initial=0.0) <= FAINT * felt)


def loosened(slope: Float[np.ndarray, "width width"], force: Vector, u: Vector) -> Float[np.ndarray, "width width"]:
    """The derivative cut so that a step along it can be seen beside u."""
    values, vectors = np.linalg.eigh(0.5 * (slope + slope.T))
    longest = SEEN * (1.0 + np.abs(u).max(initial=0.0))
    return np.asarray((vectors * np.minimum(values, np.abs(force).max(initial=0.0) / longest)) @ vectors.T)
