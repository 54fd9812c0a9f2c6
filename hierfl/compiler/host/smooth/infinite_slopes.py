"""Newton's method where the derivative of a map is infinite inside its domain, as that of sqrt(|w|) at w = 0.

There a step is short whatever is missing, and may be lost beside u altogether: an answer is told by whether multipliers balance the map,
up to what the map changes within the rounding of u; and a step that proves nothing is made long enough to be seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import nnls

from hierfl.compiler.host.cones import blocks, project_dual
from hierfl.compiler.host.standard_form import NONNEGATIVE, SEMIDEFINITE, ZERO, Cone

ROUNDING = 4e-16  # of u, relative
SEEN = 1e-8  # of 1 + |u|, a step that is not lost in it
HOLDS = 1e-14  # of a row's size, up to which it holds
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


def balancing(
    a: Float[np.ndarray, "rows width"],
    b: Float[np.ndarray, " rows"],
    cones: Sequence[Cone],
    u: Vector,
    forces: Sequence[Vector],
    z: Float[np.ndarray, " rows"],
) -> Float[np.ndarray, " rows"]:
    """Multipliers of what holds which balance a map, where these ones do not: beside a derivative of 1e16 any numbers are steps of nothing.

    ``forces`` are the map at u and ``around`` it.
    """
    force, pulled = forces[0], a.T @ z
    missed = _length(pulled - force)
    if balanced(_length(force) + _length(z), pulled, *forces) or any(cone.kind == SEMIDEFINITE for cone in cones):
        return z
    e, reach = a @ u + b, np.abs(a) @ np.abs(u) + np.abs(b) + 1.0
    ways = [np.zeros((len(z), 0))]  # in which multipliers may grow
    for cone, rows in blocks(cones):
        one = np.eye(len(z))[:, rows]
        size = HOLDS * float(reach[rows].max(initial=0.0))
        if cone.kind == NONNEGATIVE:
            ways.append(one[:, e[rows] <= HOLDS * reach[rows]])
        elif cone.kind == ZERO or _length(e[rows]) <= size:
            ways += [one, -one]
        elif e[rows][0] - _length(e[rows][1:]) <= size:
            normal = np.concatenate([[1.0], -e[rows][1:] / _length(e[rows][1:])])
            ways.append((one @ normal)[:, None])
    way = np.concatenate(ways, axis=1)
    if not way.size:  # SciPy's solver ends the process
        return z
    shares, left = nnls(a.T @ way, force)
    found = way @ shares
    return found if left < missed and are_multipliers(cones, found, _length(force) + _length(found)) else z


def _length(v: np.ndarray) -> float:
    return float(np.linalg.norm(v))


def loosened(slope: Float[np.ndarray, "width width"], force: Vector, u: Vector) -> Float[np.ndarray, "width width"]:
    """The derivative cut so that a step along it can be seen beside u."""
    values, vectors = np.linalg.eigh(0.5 * (slope + slope.T))
    longest = SEEN * (1.0 + np.abs(u).max(initial=0.0))
    return np.asarray((vectors * np.minimum(values, np.abs(force).max(initial=0.0) / longest)) @ vectors.T)
